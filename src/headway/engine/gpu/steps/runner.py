"""Runs steps on a GPU: tables, last tokens and sampling parameters live on the device, one row for
each slot. The host sends a few numbers a step and does not wait for a token.

A step is one CUDA graph, captured for some sizes before the first request. A step with very many
tokens is launched kernel by kernel: its matrix products keep the device busy longer than that.
"""

import functools
from collections import deque
from collections.abc import Iterable, Sequence

import torch

from headway.core.generation.limits import EngineLimits
from headway.core.generation.sampling import Sampling
from headway.core.generation.step import Step
from headway.engine.gpu.kernels.decode import decode_attention, splits_for
from headway.engine.gpu.kernels.inputs import decode_inputs, join_tables, mixed_inputs
from headway.engine.gpu.kernels.prefill import prefill_attention
from headway.engine.gpu.kernels.sampling import sample as sample_on_device
from headway.engine.gpu.steps.adapters import DeviceAdapters
from headway.engine.gpu.steps.decoder import GpuDecoder
from headway.engine.gpu.steps.drawing import CutDraws, Draw
from headway.engine.gpu.steps.graphs import MOST_PROMPTS, Capture, MixedGraphSizes, batch_sizes
from headway.engine.gpu.steps.inputs import MixedInputs, MixedSizes, inputs_at, sizes_of
from headway.engine.gpu.tuning import this_device
from headway.engine.sampling import NOT_FINITE, Row, Sampled, sample
from headway.engine.sequences import Known, Place, Sequences, places_of
from headway.errors import InvalidInput

_IN_FLIGHT = 4  # steps whose host buffers are kept


class DeviceStep:
    def __init__(self, runner: "GpuRunner", step: Step, began: "torch.cuda.Event | None") -> None:
        self.step = step
        self.seconds: float | None = None  # of the device; known once there is a result
        self._runner = runner
        self._count = len(step.sampled)
        self._tokens = runner.next_result(self._count)
        self._began, self._ended = began, runner.event()
        self._sampled: Sampled | None = None
        self.by_host: list[tuple[Place, Row]] = []  # what the host samples

    def settle(self) -> None:
        """Sample what the host must sample, before the next step reads it."""
        if self._sampled is not None:
            return
        if self._began is not None and self._ended is not None:
            self._ended.synchronize()
            self.seconds = self._began.elapsed_time(self._ended) / 1e3
        tokens = self._tokens.tolist()
        broken = {row: NOT_FINITE for row, token in enumerate(tokens) if token < 0}
        sampled = Sampled([max(token, 0) for token in tokens], [None] * self._count, broken)
        if self.by_host:
            self._runner.choose(self.by_host, sampled)
        self._sampled = sampled
        self._runner.note(self.step, sampled)

    def result(self) -> Sampled:
        """The tokens in the order of `step.sampled`. Waits for the device."""
        self.settle()
        assert self._sampled is not None
        return self._sampled


class GpuRunner(Sequences):
    depth = 2  # steps at a time: the next one is on its way while one runs
    computes = "on the GPU"

    def __init__(
        self,
        decoder: GpuDecoder,
        limits: EngineLimits,
        adapters: DeviceAdapters | None = None,
        *,
        has_graphs: bool = True,
    ) -> None:
        """`has_graphs`: False launches each kernel of a step by itself, for comparison."""
        super().__init__()
        shape, device = decoder.shape, decoder.device
        self.limits = limits
        self.vocabulary = decoder.vocabulary
        self._decoder = decoder
        self._limits = limits
        self._scale = shape.head_size**-0.5
        self._is_cuda = device == "cuda"  # else only Triton's interpreter runs its kernels
        self._processors = this_device().processors
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
        most = MixedSizes(limits.step_tokens, slots, slots)
        numbers = most.numbers + 3 * slots * columns
        self._buffers = _ring(numbers, is_pinned=self._is_cuda)
        self._results = _ring(slots, is_pinned=self._is_cuda)
        # Graphs find their inputs, and leave what they sampled, in the same places.
        self._given = torch.zeros(numbers, dtype=torch.int32, device=device)
        rows = slots + MOST_PROMPTS
        self._tokens = torch.empty(rows, dtype=torch.int32, device=device)
        self._logits = torch.empty((rows, self.vocabulary), dtype=decoder.dtype, device=device)
        self._adapters = adapters
        self._has_graphs = has_graphs and self._is_cuda
        self._mixed_sizes = MixedGraphSizes(limits.step_tokens, slots)
        # By rows of decodes or sizes with prompts, and whether some have adapters.
        self._graphs: dict[tuple[int | MixedSizes, bool], torch.cuda.CUDAGraph] = {}
        self._special: set[int] = set()  # sequences for which a step's graph does not draw
        self._unsettled: DeviceStep | None = None
        self._draw_cut = CutDraws(
            slots, self.vocabulary, in_flight=_IN_FLIGHT, is_pinned=self._is_cuda
        )

    # ---- sequences

    def add(
        self,
        sequence: int,
        prompt: tuple[int, ...],
        sampling: Sampling,
        *,
        generated: Iterable[int] = (),
    ) -> None:
        if sampling.scores_prompt:
            raise InvalidInput("echo: with logprobs needs an engine on a CPU; this one is on a GPU")
        super().add(sequence, prompt, sampling, generated=generated)
        if not _is_simple(sampling):
            self._special.add(sequence)

    def drop(self, sequence: int) -> None:
        super().drop(sequence)
        self._special.discard(sequence)

    # ---- graphs

    @property
    def adapters(self) -> DeviceAdapters:
        if self._adapters is None:
            raise InvalidInput(
                "adapters: this engine was started without adapters; set adapter_slots"
            )
        return self._adapters

    def warm_up(self, sizes: Sequence[int] = ()) -> None:
        """Compile the kernels, and capture a graph for every size (or for these batches)."""
        self._sizes = sorted(sizes or batch_sizes(self._limits.max_sequences))
        if self._adapters is not None:
            self._adapters.warm_up(self._limits.step_tokens)
        self._draw_cut.warm_up(self._logits)
        if not self._has_graphs:
            return
        shapes: list[int | MixedSizes] = list(self._mixed_sizes.all())
        shapes += reversed(self._sizes)
        self._given.zero_()
        capture = Capture()
        for shape in shapes:
            for is_adapted in (False, True) if self._adapters is not None else (False,):
                launch = functools.partial(self._launch, shape, is_adapted)
                self._graphs[shape, is_adapted] = capture(launch)
        torch.cuda.empty_cache()  # what the launches before captures took

    def _run(self, shape: int | MixedSizes, is_adapted: bool) -> None:
        graph = self._graphs.get((shape, is_adapted))
        if graph is None:
            self._launch(shape, is_adapted)
        else:
            graph.replay()

    def _launch(self, shape: int | MixedSizes, is_adapted: bool) -> None:
        if isinstance(shape, MixedSizes):
            self._mixed(shape, is_adapted)
        else:
            self._decode(shape, is_adapted)

    def _decode(self, rows: int, is_adapted: bool) -> None:
        decoder = self._decoder
        given = self._given[: 3 * rows].view(3, rows)
        slots, positions = given[0], given[1]
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
        logits = decoder.logits(states, self._logits[:rows])
        self._draw(logits, slots, lengths)

    def _mixed(self, sizes: MixedSizes, is_adapted: bool) -> None:
        decoder, given, decodes = self._decoder, inputs_at(self._given, sizes), sizes.decodes
        ids = torch.empty(sizes.tokens, dtype=torch.int64, device=decoder.device)
        places = torch.empty(sizes.tokens, dtype=torch.int32, device=decoder.device)
        tables, page, slots = self._tables, self._limits.block_size, given.slots
        mixed_inputs(given.given, slots, given.positions, self._last, tables, page, ids, places)
        splits = self._splits(1 << (decodes - 1).bit_length()) if decodes else 1

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(q)
            if decodes:
                first, into = q[:decodes], out[:decodes]
                single = (slots[:decodes], given.decode_lengths, self._scale)
                decode_attention(first, k, v, tables, *single, splits=splits, out=into)
            many = (given.prompt_slots, given.starts, given.lengths, self._scale)
            return prefill_attention(q, k, v, tables, *many, out=out)

        adapt = self.adapters.for_rows(slots) if is_adapted else None
        positions = given.positions.clamp(min=0)
        states = decoder.hidden(ids, positions, places, self._cache, attend, adapt)
        logits = decoder.logits(states[given.rows.long()], self._logits[: sizes.rows])
        self._draw(logits, given.row_slots, given.row_positions)

    def _splits(self, rows: int) -> int:
        heads = self._decoder.shape.kv_heads
        return splits_for(rows, heads, self._processors, self._limits.max_context)

    def _draw(self, logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> None:
        temperatures, tokens = self._temperatures, self._tokens
        sample_on_device(logits, slots, positions, temperatures, self._seeds, self._last, tokens)

    # ---- steps

    def start(self, step: Step) -> DeviceStep:
        """Hand the step to the device. Returns as soon as the step before needs nothing more."""
        with torch.inference_mode():
            before, self._unsettled = self._unsettled, None  # a step that fails, fails once
            if before is not None:
                before.settle()
            began = self.event()
            self._note_samplings(step)
            is_adapted = self._adapters is not None and self._adapters.begin(step)
            shape = self._hand_mixed(step) if step.prefill else self._hand_decode(step)
            self._run(shape, is_adapted)
            drawn, by_host = self._special_rows(step)
            if drawn:
                self._draw_cut(drawn, self._logits, self._tokens, self._last)
            running = DeviceStep(self, step, began)
            if by_host:
                # Grammars say what may come next while the device computes.
                running.by_host = [(place, known.row(place.position)) for place, known in by_host]
                self._unsettled = running
            return running

    def _special_rows(self, step: Step) -> tuple[list[Draw], list[tuple[Place, Known]]]:
        """The rows that the step's graph does not sample, but the device or the host does."""
        drawn: list[Draw] = []
        by_host: list[tuple[Place, Known]] = []
        if not self._special:
            return drawn, by_host
        for place in places_of(step):
            if place.sequence in self._special:
                known = self._known[place.sequence]
                if _is_for_host(known.sampling):
                    by_host.append((place, known))
                else:
                    drawn.append(Draw(place.row, place.slot, place.position, known.sampling))
        return drawn, by_host

    def event(self) -> "torch.cuda.Event | None":
        """An event after all work launched so far; None without a GPU."""
        if not self._is_cuda:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _note_samplings(self, step: Step) -> None:
        for part in step.prefill:
            known = self._known.get(part.sequence)
            if part.is_first and known is not None:
                sampling = known.sampling
                temperature = sampling.temperature if _is_simple(sampling) else 0.0
                # `t[slot] = number` would wait for the device: it copies from pageable memory.
                self._temperatures[part.slot].fill_(temperature)
                self._seeds[part.slot].fill_(_signed(sampling.seed))

    def _hand_decode(self, step: Step) -> int:
        decode = step.decode
        count = len(decode)
        rows = next(size for size in self._sizes if size >= count)
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
        self._given[: 3 * rows].view(3, rows).copy_(host, non_blocking=True)
        return rows

    def _hand_mixed(self, step: Step) -> MixedSizes:
        sizes = self._mixed_sizes.fitting(sizes_of(step))
        host = self._buffers[0]
        self._buffers.rotate(-1)
        inputs = MixedInputs(step, self._lengths, self._limits.max_sequences)
        numbers, entries = inputs.write(host, sizes)
        self._given[:numbers].copy_(host[:numbers], non_blocking=True)
        if entries:
            join_tables(self._given[sizes.numbers : numbers].view(3, entries), self._tables)
        return sizes

    # ---- what a running step asks for

    def next_result(self, count: int) -> torch.Tensor:
        """The next result, copied to the host once the device has computed it."""
        self._results.rotate(-1)
        result = self._results[-1][:count]
        return result.copy_(self._tokens[:count], non_blocking=True)

    def choose(self, rows: list[tuple[Place, Row]], into: Sampled) -> None:
        logits = self._logits
        indices = torch.tensor([place.row for place, _ in rows], device=logits.device)
        chosen = sample(logits[indices].cpu(), [row for _, row in rows])
        for (place, _), token, logprobs in zip(rows, chosen.tokens, chosen.logprobs, strict=True):
            into.tokens[place.row], into.logprobs[place.row] = token, logprobs
        into.broken.update({rows[index][0].row: why for index, why in chosen.broken.items()})
        slots = torch.tensor([place.slot for place, _ in rows], device=logits.device)
        self._last[slots] = torch.tensor(chosen.tokens, device=logits.device)


def _is_simple(sampling: Sampling) -> bool:
    """The likeliest token, which nothing cuts off, or any by its probability."""
    is_cut = sampling.top_p < 1.0 or sampling.top_k or sampling.min_p
    return (sampling.is_greedy or not is_cut) and not _is_for_host(sampling)


def _is_for_host(sampling: Sampling) -> bool:
    """Whether the host samples, so that the next step waits for it: the sampling needs the tokens
    so far, or the caller needs more than a token."""
    is_adjusted = sampling.has_penalties or sampling.logit_bias or sampling.grammar
    return bool(is_adjusted) or sampling.logprobs is not None


def _signed(seed: int) -> int:
    """The seed as a signed 64-bit integer, which is what the device has."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


def _ring(numbers: int, *, is_pinned: bool) -> "deque[torch.Tensor]":
    rows = (torch.empty(numbers, dtype=torch.int32) for _ in range(_IN_FLIGHT))
    return deque(each.pin_memory() if is_pinned else each for each in rows)
