"""Sequences as an engine knows them, and where a step samples for which."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch

from headway.core.generation.sampling import Logprobs, Sampling
from headway.core.generation.step import Step
from headway.engine.sampling import Row, Sampled

_log = logging.getLogger(__name__)


class GrammarMatcher(Protocol):
    """The state of one answer in its grammar."""

    def allowed(self, generated: Sequence[int]) -> Any:
        """Which tokens may follow, as an array of booleans; None: any."""


MatcherOf = Callable[[str], GrammarMatcher]


@dataclass(slots=True)
class Known:
    prompt: tuple[int, ...]
    sampling: Sampling
    generated: list[int] = field(default_factory=list)
    matcher: GrammarMatcher | None = None
    # Where the prompt is scored: by position, so that it does not matter in how many chunks, and
    # how often, it is computed.
    scores: dict[int, Logprobs] = field(default_factory=dict)

    def scored(self, logprobs: Logprobs) -> Logprobs:
        """The first token's, with those of the prompt."""
        prompt = tuple(self.scores[each] for each in range(1, len(self.prompt)))
        self.scores.clear()
        return replace(logprobs, prompt=prompt)

    def row(self, position: int) -> Row:
        """The row to sample from at `position`: the tokens before it are known."""
        found = None
        try:
            if self.matcher is not None:
                found = self.matcher.allowed(self.generated)
        except Exception as error:  # noqa: BLE001  the library's, about this answer only
            _log.exception("a grammar failed")
            why = f"the answer's grammar failed: {error}"
            return Row(self.sampling, position, self.prompt, self.generated, error=why)
        allowed = None if found is None else torch.from_numpy(found)
        return Row(self.sampling, position, self.prompt, self.generated, allowed)


class Sequences:
    """The sequences of an engine: the part of a runner that is given its steps."""

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}
        self.matcher_of: MatcherOf | None = None  # for answers of a given form

    def add(
        self,
        sequence: int,
        prompt: tuple[int, ...],
        sampling: Sampling,
        *,
        generated: Iterable[int] = (),
    ) -> None:
        """A sequence that a step will name; some of its tokens may come from an earlier engine."""
        matcher = None
        if sampling.grammar:
            assert self.matcher_of is not None, "the door lets no grammar in"
            matcher = self.matcher_of(sampling.grammar)
        self._known[sequence] = Known(prompt, sampling, list(generated), matcher)

    def drop(self, sequence: int) -> None:
        """Forget a sequence that has ended. An unknown one is ignored."""
        self._known.pop(sequence, None)

    def note(self, step: Step, sampled: Sampled) -> None:
        """Record a step's sampled tokens, for the sequences that have not ended meanwhile."""
        for index, sequence in enumerate(step.sampled):
            known = self._known.get(sequence)
            if known is not None:
                logprobs = sampled.logprobs[index]
                if known.sampling.scores_prompt and not known.generated and logprobs is not None:
                    sampled.logprobs[index] = known.scored(logprobs)
                known.generated.append(sampled.tokens[index])


class Place(NamedTuple):
    """A row of a step's logits."""

    row: int
    sequence: int
    slot: int
    position: int  # of the token that is sampled


def places_of(step: Step) -> list[Place]:
    """The places of a step, in the order of `step.sampled`."""
    rows = [(each.sequence, each.slot, each.position + 1) for each in step.decode]
    rows += [
        (each.sequence, each.slot, each.position + len(each.tokens))
        for each in step.prefill
        if each.is_last
    ]
    return [Place(index, *row) for index, row in enumerate(rows)]
