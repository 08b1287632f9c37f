"""Runs steps, in order, on the CPU. Decides nothing: the step says what to compute."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from headway.core.generation.limits import EngineLimits
from headway.core.generation.sampling import Sampling
from headway.core.generation.step import Step
from headway.engine.adapters.peft import Sizes, Weights
from headway.engine.adapters.products import Adapting, Products
from headway.engine.adapters.table import AdapterTable
from headway.engine.attention.base import Attention
from headway.engine.attention.plain import PlainAttention
from headway.engine.cache import CacheShape, KvCache, Tables
from headway.engine.cpu.kernels import Kernels
from headway.engine.cpu.paged import PagedAttention
from headway.engine.inputs import Inputs, inputs_of
from headway.engine.sampling import Row, Sampled, logprobs_of, sample
from headway.engine.sequences import Known, Sequences, places_of


class DecoderInputs(NamedTuple):
    """The inputs of one step for a decoder: the tokens of all its sequences in one row."""

    ids: torch.Tensor
    positions: torch.Tensor
    attention: Attention
    rows: torch.Tensor  # after which logits are asked for
    adapting: Adapting | None = None


class Decoder(Protocol):
    shape: CacheShape
    dtype: torch.dtype
    vocabulary: int
    longest: int  # context: up to there it is exact
    kernels: Kernels | None  # ours for this CPU and dtype; None: torch computes

    @property
    def adaptable(self) -> Sizes: ...

    def packed(self, weights: Weights) -> Products:
        """An adapter's weights in the form in which this decoder multiplies."""

    def __call__(self, inputs: DecoderInputs) -> torch.Tensor:
        """The logits."""


class _Scored(NamedTuple):
    """A token of a prompt, and the row of the step that predicts it."""

    known: Known
    row: int
    position: int
    token: int


@dataclass(frozen=True, slots=True)
class _Done:
    sampled: Sampled
    seconds: None = None

    def result(self) -> Sampled:
        return self.sampled


class CpuRunner(Sequences):
    depth = 1  # steps at a time
    computes = "on the CPU"

    def __init__(
        self,
        decoder: Decoder,
        limits: EngineLimits,
        *,
        device: str = "cpu",
        max_adapter_rank: int = 64,
    ) -> None:
        super().__init__()
        self._decoder = decoder
        self.limits = limits
        self.vocabulary = decoder.vocabulary
        self._cache = KvCache(decoder.shape, limits, dtype=decoder.dtype, device=device)
        kernels = decoder.kernels
        has_kernels = kernels is not None and kernels.attends(self._cache.keys[0])
        self._kernels = kernels if has_kernels else None  # for attention
        self._tables = Tables(limits, device=device)
        self.adapters = AdapterTable(
            decoder,
            slots=limits.adapter_slots,
            sequences=limits.max_sequences,
            max_rank=max_adapter_rank,
        )

    def start(self, step: Step) -> "_Done":
        """The CPU computes it at once: there is nothing to run beside."""
        return _Done(self.run(step))

    def run(self, step: Step) -> Sampled:
        """The tokens in the order of `step.sampled`."""
        with torch.inference_mode():
            inputs = inputs_of(
                step, self._tables, self.limits.block_size, gathers=self._kernels is None
            )
            adapting = self.adapters.begin(step)
            attention = self._attention(inputs)
            scored = self._scored(step, inputs)
            count = len(inputs.sampled)
            rows = torch.cat([inputs.sampled, torch.tensor([each.row for each in scored]).long()])
            given = DecoderInputs(inputs.ids, inputs.positions, attention, rows, adapting)
            logits = self._decoder(given)
            for score, line in zip(scored, logits[count:], strict=True):
                top = score.known.sampling.logprobs or 0
                score.known.scores[score.position] = logprobs_of(line.float(), score.token, top)
            if not count:
                return Sampled([], [])
            sampled = sample(logits[:count], self._rows(step))
            self._tables.last[inputs.slots] = torch.tensor(sampled.tokens)
        self.note(step, sampled)
        return sampled

    def _scored(self, step: Step, inputs: Inputs) -> "list[_Scored]":
        """The tokens of prompts that this step's chunks predict, where they are asked for."""
        found = []
        for prefill, chunk in zip(step.prefill, inputs.chunks, strict=True):
            known = self._known.get(prefill.sequence)
            if known is None or not known.sampling.scores_prompt:
                continue
            last = min(prefill.position + len(prefill.tokens), len(known.prompt) - 1)
            for position in range(prefill.position + 1, last + 1):
                row = chunk.start + position - 1 - prefill.position
                found.append(_Scored(known, row, position, known.prompt[position]))
        return found

    def _attention(self, inputs: Inputs) -> Attention:
        if self._kernels is None:
            return PlainAttention(self._cache, inputs)
        return PagedAttention(self._cache, inputs, self._tables, self._kernels)

    def _rows(self, step: Step) -> list[Row]:
        rows = []
        for place in places_of(step):
            known = self._known.get(place.sequence)
            if known is None:  # it ended while this step was on its way
                rows.append(Row(Sampling(temperature=0.0), place.position, (), ()))
            else:
                rows.append(known.row(place.position))
        return rows
