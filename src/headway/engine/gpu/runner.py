"""Runs steps on a GPU: tables, last tokens and sampling parameters live on the device, one row for
each slot. The host sends a few numbers a step and does not wait for a token.

A step of decodes is one CUDA graph, captured for a few batch sizes; a step with prompts in it is
launched kernel by kernel, for its matrix products keep the device busy longer than that takes.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from headway.core.generation.limits import Limits
from headway.core.generation.sampling import Sampling
from headway.core.generation.step import Step
from headway.engine.gpu.adapters import DeviceAdapters
from headway.engine.gpu.decoder import GpuDecoder
from headway.engine.gpu.inputs import MixedInputs
from headway.engine.gpu.kernels.decode import decode_attention, splits_for
from headway.engine.gpu.kernels.inputs import decode_inputs, mixed_inputs
from headway.engine.gpu.kernels.prefill import prefill_attention
from headway.engine.gpu.kernels.sampling import sample as sample_on_device
from headway.engine.sampling import Row, Sampled, sample
from headway.errors import InvalidInput

_IN_FLIGHT = 4  # steps whose host buffers are kept


def buckets_up_to(most: int) -> list[int]:
    """Batch sizes with a graph of their own: few rows are wasted at any number."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, most, 32)]
    return [size for size in sizes if size < most] + [most]


@dataclass(slots=True)
class _Known:
    """A sequence as the engine knows it."""

    prompt: tuple[int, ...]
    sampling: Sampling
    generated: list[int] = field(default_factory=list)

    @property
    def is_simple(self) -> bool:
        """Whether the device draws its tokens: then nobody waits for the host."""
        sampling = self.sampling
        is_cut = sampling.top_p < 1.0 or sampling.top_k or sampling.min_p
        is_adjusted = sampling.has_penalties or sampling.logit_bias
        return not (is_cut or is_adjusted or sampling.logprobs is not None)


class Running:
    """A step on the device."""

    def __init__(
        self, runner: "GpuRunner", step: Step, tokens: torch.Tensor, logits: torch.Tensor
    ) -> None:
        self.step = step
        self._runner = runner
        self._count = len(step.sampled)
        self._tokens = runner.next_result()
        self._tokens[: self._count].copy_(tokens[: self._count], non_blocking=True)
        self._done = torch.cuda.Event()
        self._done.record()
        self._logits = logits
        self._sampled: Sampled | None = None
        self.chosen_by_host = runner.rows_for_host(step)

    def settle(self) -> None:
        """Choose what the host must choose, before the next step takes it for its input."""
        if self._sampled is not None:
            return
        self._done.synchronize()
        sampled = Sampled(self._tokens[: self._count].tolist(), [None] * self._count)
        if self.chosen_by_host:
            self._runner.choose(self.chosen_by_host, self._logits, sampled)
        self._sampled = sampled
        self._runner.note(self.step, sampled)

    def result(self) -> Sampled:
        """The tokens in the order of `step.sampled`. Waits for the device."""
        self.settle()
        assert self._sampled is not None
        return self._sampled


class GpuRunner:
    depth = 2  # steps at a time: the next one is on its way while one runs

    def __init__(
        self,
        decoder: GpuDecoder,
        limits: Limits,
        adapters: DeviceAdapters | None = None,
        *,
        has_graphs: bool = True,
    ) -> None:
        """Without graphs a step of decodes is launched kernel by kernel: for comparison."""
        shape, device = decoder.shape, decoder.device
        self.limits = limits
        self.vocabulary = decoder.vocabulary
        self._decoder = decoder
        self._limits = limits
        self._scale = shape.head_size**-0.5
        self._processors = torch.cuda.get_device_properties(device).multi_processor_count
        size = (limits.blocks, shape.kv_heads, limits.block_size, shape.head_size)
        keys, values = (
            [torch.zeros(size, dtype=decoder.dtype, device=device) for _ in range(shape.layers)]
            for _ in ("keys", "values")
        )
        self._cache = keys, values
        slots, columns = limits.max_sequences, limits.blocks_for(limits.max_context) + 1
        # One slot more than there are: of the rows that only fill a graph's batch.
        self._tables = torch.zeros((slots + 1, columns), dtype=torch.int32, device=device)
        self._lengths = [0] * slots  # of the tables, as the host knows them
        self._last = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self._temperatures = torch.zeros(slots + 1, device=device)
        self._seeds = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        numbers = 3 * limits.step_tokens + 8 * slots + slots * columns
        self._buffers = _ring(numbers)
        self._results = _ring(slots)
        self._adapters = adapters
        self._has_graphs = has_graphs
        self._graphs: dict[tuple[int, bool], _Graph] = {}  # by rows, and whether they have adapters
        self._known: dict[int, _Known] = {}
        self._unsettled: Running | None = None

    # ---- sequences

    def add(
        self,
        sequence: int,
        prompt: tuple[int, ...],
        sampling: Sampling,
        *,
        generated: Iterable[int] = (),
    ) -> None:
        """A sequence that a step will name; some of its tokens may come from an earlier engine."""
        self._known[sequence] = _Known(prompt, sampling, list(generated))

    def drop(self, sequence: int) -> None:
        """It has ended. Harmless if it is not known."""
        self._known.pop(sequence, None)

    # ---- graphs

    @property
    def adapters(self) -> DeviceAdapters:
        if self._adapters is None:
            raise InvalidInput("adapters: this engine was started without; set adapter_slots")
        return self._adapters

    def warm_up(self, sizes: Sequence[int] = ()) -> None:
        """Compile the kernels, and capture a graph for every batch size (or for these)."""
        self._sizes = sorted(sizes or buckets_up_to(self._limits.max_sequences))
        if self._adapters is not None:
            self._adapters.warm_up(self._limits.step_tokens)
        pool = None
        for rows in reversed(self._sizes):
            for is_adapted in (False, True) if self._adapters is not None else (False,):
                graph = _Graph(rows, self._limits.max_sequences, self._decoder.device)
                self._graphs[rows, is_adapted] = graph
                if self._has_graphs:
                    self._capture(graph, pool, is_adapted)
                    pool = pool or graph.graph.pool()

    def _capture(self, graph: "_Graph", pool: Any, is_adapted: bool) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._decode(graph, is_adapted)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph.graph, pool=pool):
            graph.logits = self._decode(graph, is_adapted)

    def _decode(self, graph: "_Graph", is_adapted: bool) -> torch.Tensor:
        decoder, given = self._decoder, graph.given
        slots, positions = given[0], given[1]
        rows = given.shape[1]
        ids = torch.empty(rows, dtype=torch.int64, device=decoder.device)
        places, lengths = torch.empty((2, rows), dtype=torch.int32, device=decoder.device)
        page = self._limits.block_size
        decode_inputs(given, self._last, self._tables, page, ids, places, lengths)
        splits = self._splits(rows)

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return decode_attention(
                q, k, v, self._tables, slots, lengths, self._scale, splits=splits
            )

        adapt = self.adapters.for_rows(slots) if is_adapted else None
        states = decoder.hidden(ids, positions.clamp(min=0), places, self._cache, attend, adapt)
        logits = decoder.logits(states)
        self._draw(logits, slots, lengths, graph.tokens)
        return logits

    def _splits(self, rows: int) -> int:
        heads = self._decoder.shape.kv_heads
        return splits_for(rows, heads, self._processors, self._limits.max_context)

    def _draw(
        self,
        logits: torch.Tensor,
        slots: torch.Tensor,
        positions: torch.Tensor,
        tokens: torch.Tensor,
    ) -> None:
        sample_on_device(
            logits, slots, positions, self._temperatures, self._seeds, self._last, tokens
        )

    # ---- steps

    def start(self, step: Step) -> Running:
        """Hand the step to the device. Returns as soon as the step before needs nothing more."""
        with torch.inference_mode():
            if self._unsettled is not None:
                self._unsettled.settle()
                self._unsettled = None
            self._note_samplings(step)
            is_adapted = self._adapters is not None and self._adapters.begin(step)
            run = self._run_mixed if step.prefill else self._run_decode
            tokens, logits = run(step, is_adapted)
            running = Running(self, step, tokens, logits)
            if running.chosen_by_host:
                self._unsettled = running
            return running

    def _note_samplings(self, step: Step) -> None:
        for part in step.prefill:
            known = self._known.get(part.sequence)
            if part.is_first and known is not None:
                temperature = known.sampling.temperature if known.is_simple else 0.0
                self._temperatures[part.slot] = temperature
                self._seeds[part.slot] = known.sampling.seed

    def _run_decode(self, step: Step, is_adapted: bool) -> tuple[torch.Tensor, torch.Tensor]:
        decode = step.decode
        count = len(decode)
        rows = next(size for size in self._sizes if size >= count)
        graph = self._graphs[rows, is_adapted]
        host = self._buffers[0][: 3 * rows].view(3, rows)
        self._buffers.rotate(-1)
        numbers = host.numpy()
        numbers[0, count:] = self._limits.max_sequences
        numbers[1, count:] = -1
        numbers[2] = -1
        numbers[0, :count] = [each.slot for each in decode]
        numbers[1, :count] = [each.position for each in decode]
        for index, each in enumerate(decode):
            if each.blocks:
                numbers[2, index] = each.blocks[0]
                self._lengths[each.slot] += 1
        graph.given.copy_(host, non_blocking=True)
        if self._has_graphs:
            graph.graph.replay()
        else:
            graph.logits = self._decode(graph, is_adapted)
        return graph.tokens, graph.logits

    def _run_mixed(self, step: Step, is_adapted: bool) -> tuple[torch.Tensor, torch.Tensor]:
        decoder, page, decodes = self._decoder, self._limits.block_size, len(step.decode)
        inputs = MixedInputs(step, self._lengths).to(self._buffers[0], decoder.device)
        self._buffers.rotate(-1)
        if len(inputs.entry_slots):
            self._tables[inputs.entry_slots.long(), inputs.entry_columns.long()] = (
                inputs.entry_blocks
            )
        ids = torch.empty(len(inputs.given), dtype=torch.int64, device=decoder.device)
        places = torch.empty(len(inputs.given), dtype=torch.int32, device=decoder.device)
        given, slots, positions = inputs.given, inputs.slots, inputs.positions
        mixed_inputs(given, slots, positions, self._last, self._tables, page, ids, places)
        splits = self._splits(1 << (decodes - 1).bit_length()) if decodes else 1
        lengths = positions[:decodes] + 1

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(q)
            if decodes:
                decode_attention(
                    q[:decodes],
                    k,
                    v,
                    self._tables,
                    slots[:decodes],
                    lengths,
                    self._scale,
                    splits=splits,
                    out=out[:decodes],
                )
            prefill_attention(
                q[decodes:],
                k,
                v,
                self._tables,
                inputs.sequence_slots,
                inputs.starts,
                inputs.lengths,
                self._scale,
                out=out[decodes:],
            )
            return out

        adapt = self.adapters.for_rows(slots) if is_adapted else None
        states = decoder.hidden(ids, positions, places, self._cache, attend, adapt)
        rows = inputs.rows.long()
        tokens = torch.empty(len(rows), dtype=torch.int32, device=decoder.device)
        logits = decoder.logits(states[rows])
        if len(rows):
            self._draw(logits, slots[rows], positions[rows] + 1, tokens)
        return tokens, logits

    # ---- what a running step asks for

    def next_result(self) -> torch.Tensor:
        self._results.rotate(-1)
        return self._results[-1]

    def rows_for_host(self, step: Step) -> list[tuple[int, int, Row]]:
        """Rows whose sampling is beyond the device: where, in which slot, how."""
        places = [(each.sequence, each.slot, each.position + 1) for each in step.decode]
        places += [
            (each.sequence, each.slot, each.position + len(each.tokens))
            for each in step.prefill
            if each.is_last
        ]
        found = []
        for index, (sequence, slot, position) in enumerate(places):
            known = self._known.get(sequence)
            if known is not None and not known.is_simple:
                row = Row(known.sampling, position, known.prompt, known.generated)
                found.append((index, slot, row))
        return found

    def choose(self, rows: list[tuple[int, int, Row]], logits: torch.Tensor, into: Sampled) -> None:
        indices = torch.tensor([index for index, _, _ in rows], device=logits.device)
        chosen = sample(logits[indices].cpu(), [row for _, _, row in rows])
        for (index, _, _), token, logprobs in zip(
            rows, chosen.tokens, chosen.logprobs, strict=True
        ):
            into.tokens[index], into.logprobs[index] = token, logprobs
        slots = torch.tensor([slot for _, slot, _ in rows], device=logits.device)
        self._last[slots] = torch.tensor(chosen.tokens, device=logits.device)

    def note(self, step: Step, sampled: Sampled) -> None:
        for sequence, token in zip(step.sampled, sampled.tokens, strict=True):
            known = self._known.get(sequence)
            if known is not None:
                known.generated.append(token)


class _Graph:
    """One batch size: its inputs and outputs have fixed places."""

    def __init__(self, rows: int, no_slot: int, device: str) -> None:
        self.graph = torch.cuda.CUDAGraph()
        self.given = torch.full((3, rows), -1, dtype=torch.int32, device=device)
        self.given[0] = no_slot
        self.tokens = torch.empty(rows, dtype=torch.int32, device=device)
        self.logits: Any = None


def _ring(numbers: int) -> "deque[torch.Tensor]":
    return deque(torch.empty(numbers, dtype=torch.int32).pin_memory() for _ in range(_IN_FLIGHT))
