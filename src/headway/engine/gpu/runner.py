"""Runs steps on a GPU: tables, last tokens and sampling parameters live on the device, one row for
each slot. The host sends a few numbers a step and never waits for a token.

A step of decodes is one CUDA graph, captured for a few batch sizes; a step with prompts in it is
launched kernel by kernel, for its matrix products keep the device busy longer than that takes.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from headway.core.generation.step import Decode, Prefill, Step
from headway.engine.gpu.kernels.decode import decode_attention, splits_for
from headway.engine.gpu.kernels.inputs import decode_inputs, mixed_inputs
from headway.engine.gpu.kernels.prefill import prefill_attention
from headway.engine.gpu.kernels.sampling import sample
from headway.engine.gpu.decoder import Llama

_IN_FLIGHT = 4  # steps whose host buffers are kept


def buckets_up_to(most: int) -> list[int]:
    """Batch sizes with a graph of their own: few rows are wasted at any number."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, most, 32)]
    return [size for size in sizes if size < most] + [most]


@dataclass(slots=True)
class Running:
    """A step on the device. `tokens` waits for it."""

    step: Step
    _tokens: torch.Tensor
    _count: int
    _done: Any

    @property
    def is_done(self) -> bool:
        return bool(self._done.query())

    def tokens(self) -> list[int]:
        self._done.synchronize()
        found: list[int] = self._tokens[: self._count].tolist()
        return found


class DeviceRunner:
    def __init__(
        self,
        model: Llama,
        *,
        blocks: int,
        block_size: int,
        max_sequences: int,
        max_context: int,
        step_tokens: int,
    ) -> None:
        shape, device = model.shape, model.device
        self._model = model
        self._page = block_size
        self._scale = shape.dim**-0.5
        self._slots = max_sequences
        self._multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
        size = (blocks, shape.key_heads, block_size, shape.dim)
        self.caches = [
            (
                torch.zeros(size, dtype=model.dtype, device=device),
                torch.zeros(size, dtype=model.dtype, device=device),
            )
            for _ in range(shape.layers)
        ]
        pages = -(-max_context // block_size)
        # One slot more than there are: of the rows that only fill a graph's batch.
        self._tables = torch.zeros((max_sequences + 1, pages), dtype=torch.int32, device=device)
        self._lengths = [0] * (max_sequences + 1)  # of the tables, as the host knows them
        self._last = torch.zeros(max_sequences + 1, dtype=torch.int64, device=device)
        self._temperatures = torch.zeros(max_sequences + 1, device=device)
        self._seeds = torch.zeros(max_sequences + 1, dtype=torch.int64, device=device)
        numbers = max(3 * max_sequences, 3 * step_tokens + 6 * max_sequences + 2 * pages * 64)
        self._buffers = deque(
            torch.empty(numbers, dtype=torch.int32).pin_memory() for _ in range(_IN_FLIGHT)
        )
        self._results = deque(
            torch.empty(max_sequences, dtype=torch.int32).pin_memory() for _ in range(_IN_FLIGHT)
        )
        self._longest = max_context
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]] = {}

    def set_sampling(self, slot: int, *, temperature: float, seed: int) -> None:
        self._temperatures[slot] = temperature
        self._seeds[slot] = seed

    # ---- graphs

    def capture(self) -> None:
        """Before traffic: kernels are compiled, and every batch size has its graph."""
        pool = None
        for rows in reversed(buckets_up_to(self._slots)):
            given = torch.empty((3, rows), dtype=torch.int32, device=self._model.device)
            given[0], given[1], given[2] = self._slots, -1, -1
            tokens = torch.empty(rows, dtype=torch.int32, device=self._model.device)
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self._decode(given, tokens)
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self._decode(given, tokens)
            pool = pool or graph.pool()
            self._graphs[rows] = graph, given, tokens

    def _decode(self, given: torch.Tensor, tokens: torch.Tensor) -> None:
        model, rows = self._model, given.shape[1]
        slots, positions = given[0], given[1]
        ids = torch.empty(rows, dtype=torch.int64, device=model.device)
        places = torch.empty(rows, dtype=torch.int32, device=model.device)
        lengths = torch.empty(rows, dtype=torch.int32, device=model.device)
        decode_inputs(given, self._last, self._tables, self._page, ids, places, lengths)
        splits = splits_for(rows, model.shape.key_heads, self._multiprocessors, self._longest)

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return decode_attention(
                q, k, v, self._tables, slots, lengths, self._scale, splits=splits
            )

        states = model.hidden(ids, positions.clamp(min=0), places, self.caches, attend)
        logits = model.logits(states)
        sample(
            logits, slots, lengths, self._temperatures, self._seeds, self._last, tokens
        )

    # ---- steps

    def run(self, step: Step) -> Running:
        """Hand the step to the device. Returns at once."""
        if step.prefill:
            tokens, count = self._run_mixed(step.decode, step.prefill)
        else:
            tokens, count = self._run_decode(step.decode)
        result = self._results[0]
        self._results.rotate(-1)
        result[:count].copy_(tokens[:count], non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        return Running(step, result, count, done)

    def _run_decode(self, decode: tuple[Decode, ...]) -> tuple[torch.Tensor, int]:
        count = len(decode)
        rows = next(size for size in self._graphs_sizes() if size >= count)
        graph, given, tokens = self._graphs[rows]
        host = self._buffers[0][: 3 * rows].numpy().reshape(3, rows)
        self._buffers.rotate(-1)
        host[0], host[1], host[2] = self._slots, -1, -1
        host[0, :count] = [each.slot for each in decode]
        host[1, :count] = [each.position for each in decode]
        for index, each in enumerate(decode):
            if each.blocks:
                host[2, index] = each.blocks[0]
                self._lengths[each.slot] += 1
        given.copy_(torch.from_numpy(host), non_blocking=True)
        graph.replay()
        return tokens, count

    def _graphs_sizes(self) -> list[int]:
        return sorted(self._graphs)

    def _run_mixed(
        self, decode: tuple[Decode, ...], prefill: tuple[Prefill, ...]
    ) -> tuple[torch.Tensor, int]:
        inputs = _Mixed(decode, prefill, self._lengths)
        host = self._buffers[0]
        self._buffers.rotate(-1)
        device = inputs.to(host, self._model.device)
        if len(inputs.entries):
            rows, columns = device["entry_slots"].long(), device["entry_columns"].long()
            self._tables[rows, columns] = device["entry_blocks"]
        model, decodes = self._model, len(decode)
        count = inputs.tokens
        ids = torch.empty(count, dtype=torch.int64, device=model.device)
        places = torch.empty(count, dtype=torch.int32, device=model.device)
        mixed_inputs(
            device["given"],
            device["slots"],
            device["positions"],
            self._last,
            self._tables,
            self._page,
            ids,
            places,
        )
        splits = splits_for(
            decodes, model.shape.key_heads, self._multiprocessors, self._longest
        )
        row_slots = device["slots"][:decodes]
        row_lengths = device["positions"][:decodes] + 1

        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(q)
            if decodes:
                decode_attention(
                    q[:decodes],
                    k,
                    v,
                    self._tables,
                    row_slots,
                    row_lengths,
                    self._scale,
                    splits=splits,
                    out=out[:decodes],
                )
            prefill_attention(
                q[decodes:],
                k,
                v,
                self._tables,
                device["sequence_slots"],
                device["starts"],
                device["lengths"],
                self._scale,
                out=out[decodes:],
            )
            return out

        states = model.hidden(ids, device["positions"], places, self.caches, attend)
        sampled = inputs.sampled
        tokens = torch.empty(sampled, dtype=torch.int32, device=model.device)
        if sampled:
            rows = device["rows"].long()
            logits = model.logits(states[rows])
            drawn_at = device["positions"][rows] + 1
            sample(
                logits,
                device["slots"][rows],
                drawn_at,
                self._temperatures,
                self._seeds,
                self._last,
                tokens,
            )
        return tokens, sampled


class _Mixed:
    """The numbers of a step with prompts, for one copy to the device: decodes first."""

    def __init__(
        self, decode: tuple[Decode, ...], prefill: tuple[Prefill, ...], lengths: list[int]
    ) -> None:
        given: list[int] = [-1] * len(decode)
        slots = [each.slot for each in decode]
        positions = [each.position for each in decode]
        self.entries: list[tuple[int, int, int]] = []
        rows = list(range(len(decode)))
        starts = [0]
        for each in decode:
            self._note(each.slot, each.blocks, lengths)
        for part in prefill:
            if part.is_first:
                lengths[part.slot] = 0
            self._note(part.slot, part.blocks, lengths)
            count = len(part.tokens)
            given += part.tokens
            slots += [part.slot] * count
            positions += range(part.position, part.position + count)
            starts.append(starts[-1] + count)
            if part.is_last:
                rows.append(len(given) - 1)
        self.tokens = len(given)
        self.sampled = len(rows)
        self._arrays = {
            "given": given,
            "slots": slots,
            "positions": positions,
            "sequence_slots": [part.slot for part in prefill],
            "starts": starts,
            "lengths": [part.position + len(part.tokens) for part in prefill],
            "rows": rows,
            "entry_slots": [slot for slot, _, _ in self.entries],
            "entry_columns": [column for _, column, _ in self.entries],
            "entry_blocks": [block for _, _, block in self.entries],
        }

    def _note(self, slot: int, blocks: tuple[int, ...], lengths: list[int]) -> None:
        for block in blocks:
            self.entries.append((slot, lengths[slot], block))
            lengths[slot] += 1

    def to(self, host: torch.Tensor, device: str) -> dict[str, torch.Tensor]:
        view = host.numpy()
        at, places = 0, {}
        for name, numbers in self._arrays.items():
            stop = at + len(numbers)
            view[at:stop] = numbers
            places[name] = slice(at, stop)
            at = -(-stop // 4) * 4  # 16 bytes: what kernels like to load
        there = host[:at].to(device, non_blocking=True)
        return {name: there[place] for name, place in places.items()}
