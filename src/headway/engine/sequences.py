"""Sequences as an engine knows them, and where a step samples for which."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import torch

from headway.core.generation.sampling import Logprobs, Sampling
from headway.core.generation.step import Step
from headway.engine.sampling import Row


class Matcher(Protocol):
    """How far one answer has come in its grammar."""

    def allowed(self, generated: Sequence[int]) -> Any:
        """Which tokens may follow, as an array of booleans; None: any."""
        ...


MatcherOf = Callable[[str], Matcher]


@dataclass(slots=True)
class Known:
    prompt: tuple[int, ...]
    sampling: Sampling
    generated: list[int] = field(default_factory=list)
    matcher: Matcher | None = None
    # Where the prompt is scored: by position, so that it does not matter in how many chunks, and
    # how often, it is computed.
    scores: dict[int, Logprobs] = field(default_factory=dict)

    def scored(self, logprobs: Logprobs) -> Logprobs:
        """The first token's, with those of the prompt."""
        prompt = tuple(self.scores[each] for each in range(1, len(self.prompt)))
        self.scores.clear()
        return replace(logprobs, prompt=prompt)

    def row(self, position: int) -> Row:
        """As of now: the tokens before that position are known."""
        found = None if self.matcher is None else self.matcher.allowed(self.generated)
        allowed = None if found is None else torch.from_numpy(found)
        return Row(self.sampling, position, self.prompt, self.generated, allowed)


def known_of(
    prompt: tuple[int, ...],
    sampling: Sampling,
    generated: Iterable[int],
    matcher_of: MatcherOf | None,
) -> Known:
    matcher = None
    if sampling.grammar:
        assert matcher_of is not None, "the door lets no grammar in"
        matcher = matcher_of(sampling.grammar)
    return Known(prompt, sampling, list(generated), matcher)


class Place(NamedTuple):
    """A row of a step's logits."""

    row: int
    sequence: int
    slot: int
    position: int  # of the token that is sampled


def places_of(step: Step) -> list[Place]:
    """In the order of `step.sampled`."""
    rows = [(each.sequence, each.slot, each.position + 1) for each in step.decode]
    rows += [
        (each.sequence, each.slot, each.position + len(each.tokens))
        for each in step.prefill
        if each.is_last
    ]
    return [Place(index, *row) for index, row in enumerate(rows)]
