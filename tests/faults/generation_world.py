"""Language models for a day of virtual time: engines are lost, clients leave, the cache runs out.

The production scheduler and recovery, and a model that reads its context through the blocks: a
token that is lost, repeated or another's changes the text.
"""

import gc
import itertools
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from fake_engine import FakeEngine, next_token
from headway.core.generation.limits import EngineLimits
from headway.core.generation.recovery import Recovery
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Finished, FinishReason, Sequence
from headway.core.generation.step import Step
from headway.core.items import Priority
from headway.errors import InputTooLarge

STEP_S = 1.0
STOPS = frozenset([0])
LIMITS = EngineLimits(
    blocks=40, block_size=4, max_context=64, max_sequences=8, step_tokens=24, max_queue=64
)


class Held(NamedTuple):
    """At one moment."""

    hours: float
    blocks: int  # of Python's memory
    objects: int
    waiting: int


@dataclass
class _Entry:
    sequence: Sequence
    tokens: list[int] = field(default_factory=list)
    number: int = 0
    was_sent: bool = False


class GenerationWorld:
    def __init__(self, seed: int, *, hours: float) -> None:
        self._rng = random.Random(seed)
        self._steps = int(hours * 3600 / STEP_S)
        self._ids = itertools.count(1)
        self._numbers = itertools.count(1)
        self._entries: dict[int, _Entry] = {}
        self._sent: dict[int, _Entry] = {}
        self._recovery = Recovery()
        self._now = 0.0
        self.outcomes: Counter[str] = Counter()
        self.held: list[Held] = []
        self._start_engine()

    def run(self) -> None:
        every = max(1, self._steps // 24)
        for number in range(self._steps):
            self._now = number * STEP_S
            self._disturb()
            self._step()
            if number % every == every - 1:
                self._look()
        while self._entries:
            self._now += STEP_S
            self._step()
        assert self._scheduler.blocks_used == 0
        assert not self._sent

    # ---- what happens

    def _disturb(self) -> None:
        rng = self._rng
        if rng.random() < 0.3:
            self._arrive(rng)
        if self._entries and rng.random() < 0.02:
            self._leave(rng.choice(list(self._entries)))
        if rng.random() < 0.002:
            self._lose_engine()

    def _arrive(self, rng: random.Random) -> None:
        is_long = rng.random() < 0.01
        length = 100 if is_long else rng.randint(1, 30)
        prompt = tuple(rng.randrange(1, 8) for _ in range(length))
        sequence = Sequence(
            id=next(self._ids),
            arrived_at=self._now,
            prompt=prompt,
            max_tokens=rng.randint(1, 30),
            stop_ids=STOPS,
            priority=rng.choice(list(Priority)),
            tenant=rng.choice("abc"),
            deadline=self._now + 60.0 if rng.random() < 0.05 else float("inf"),
        )
        entry = self._entries[sequence.id] = _Entry(sequence)
        if self._recovery.enter(sequence.id, self._now, sequence.priority):
            self._send(entry)

    def _send(self, entry: _Entry) -> None:
        entry.number = number = next(self._numbers)
        sequence = entry.sequence._replace(id=number)
        try:
            self._scheduler.submit(sequence, entry.tokens if entry.was_sent else None)
        except InputTooLarge:
            self._end(entry, "too long")
            return
        entry.was_sent = True
        self._sent[number] = entry
        self._engine.add(sequence)

    def _leave(self, sequence: int) -> None:
        entry = self._entries[sequence]
        self._scheduler.cancel(entry.number)
        self._end(entry, "left")

    def _start_engine(self) -> None:
        self._scheduler = GenerationScheduler(LIMITS)
        self._engine = FakeEngine(block_size=LIMITS.block_size)
        for sequence in self._recovery.started():
            self._send(self._entries[sequence])

    def _lose_engine(self) -> None:
        self._sent.clear()
        self.outcomes["engines lost"] += 1
        verdict = self._recovery.lost(out_of_memory=False)
        for sequence in (*verdict.blamed, *verdict.given_up):
            self._entries.pop(sequence)
            self.outcomes["given up"] += 1
        self._start_engine()

    # ---- steps

    def _step(self) -> None:
        step = self._scheduler.next_step(self._now)
        if not isinstance(step, Step):
            return
        for finished in step.finished:
            self._finish(finished)
        if not step.has_work:
            return
        tokens = self._engine.run(step)
        told = []
        for number, token in zip(step.sampled, tokens, strict=True):
            entry = self._sent.get(number)
            if entry is not None:
                entry.tokens.append(token)
                told.append(entry.sequence.id)
        self._apply_progress(told)
        for finished in self._scheduler.complete(step, tokens):
            self._finish(finished)

    def _apply_progress(self, told: list[int]) -> None:
        change = self._recovery.progress(told)
        for sequence in change.recall:
            entry = self._entries[sequence]
            self._sent.pop(entry.number)
            self._scheduler.cancel(entry.number)
        for sequence in change.send:
            self._send(self._entries[sequence])

    def _finish(self, finished: Finished) -> None:
        self._engine.drop(finished.sequence)
        entry = self._sent.get(finished.sequence)
        if entry is None:
            return
        if finished.reason is not FinishReason.DEADLINE:
            assert entry.tokens == _expected(entry), "a token is lost, repeated or another's"
        self._end(entry, finished.reason)

    def _end(self, entry: _Entry, how: str) -> None:
        self._sent.pop(entry.number, None)
        del self._entries[entry.sequence.id]
        self.outcomes[how] += 1
        change = self._recovery.end(entry.sequence.id)
        for sequence in change.send:
            self._send(self._entries[sequence])

    def _look(self) -> None:
        gc.collect()
        objects = len(gc.get_objects())
        blocks = sys.getallocatedblocks()
        self.held.append(Held(self._now / 3600, blocks, objects, len(self._entries)))


def _expected(entry: _Entry) -> list[int]:
    """What the model says alone."""
    tokens = list(entry.sequence.prompt)
    while len(tokens) - len(entry.sequence.prompt) < entry.sequence.max_tokens:
        tokens.append(next_token(tokens))
        if tokens[-1] in STOPS:
            break
    return tokens[len(entry.sequence.prompt) :]
