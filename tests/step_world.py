"""The scheduler of steps with a model that answers at once: no clock, no threads."""

from typing import Any

from fake_engine import FakeEngine
from headway.core.generation.limits import EngineLimits
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Finished, Sequence
from headway.core.generation.step import Step


class World:
    """A scheduler with a model that answers at once."""

    def __init__(self, **limits: Any) -> None:
        self.scheduler = GenerationScheduler(
            EngineLimits(**{"blocks": 64, "block_size": 4, **limits})
        )
        self.engine = FakeEngine(block_size=self.scheduler.limits.block_size)
        self.now = 0.0
        self.finished: dict[int, Finished] = {}
        self.first_token: dict[int, int] = {}  # the step that brought it
        self.steps = 0

    def submit(self, number: int, prompt: int | tuple[int, ...], **fields: Any) -> None:
        """A prompt of so many tokens, or of these."""
        if isinstance(prompt, int):
            prompt = tuple(range(1000 * number, 1000 * number + prompt))
        sequence = Sequence(number, self.now, prompt, **{"max_tokens": 8, **fields})
        self.scheduler.submit(sequence)
        self.engine.add(sequence)

    def step(self) -> Step:
        step = self.scheduler.next_step(self.now)
        assert isinstance(step, Step), "there was nothing to do"
        self.steps += 1
        for each in step.sampled:
            self.first_token.setdefault(each, self.steps)
        tokens = self.engine.run(step)
        for each in (*step.finished, *self.scheduler.complete(step, tokens)):
            self.finished[each.sequence] = each
        return step

    def run(self) -> int:
        """Until all have ended. Returns the number of steps."""
        before = self.steps
        while self.scheduler.running or self.scheduler.waiting:
            self.step()
        return self.steps - before


def counts(step: Step) -> tuple[list[int], dict[int, int]]:
    return (
        [each.sequence for each in step.decode],
        {each.sequence: len(each.tokens) for each in step.prefill},
    )
