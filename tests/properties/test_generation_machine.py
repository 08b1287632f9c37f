"""Token-level batching under any arrivals, cancellations, crashes and delays: what always holds.

The machine drives the scheduler as an engine would, with up to three steps on their way at once.
Its model reads every context through the blocks, so a block in the wrong hands changes the text.
"""

import itertools
import math
from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fake_engine import FakeEngine, next_token
from headway.core.generation.limits import EngineLimits
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Finished, FinishReason, Sequence
from headway.core.generation.step import Step
from headway.core.items import Priority, Wait
from headway.errors import InputTooLarge, QueueFull

VOCABULARY = 64
STOP = frozenset([0, 1])


@st.composite
def limits(draw: st.DrawFn) -> EngineLimits:
    max_sequences = draw(st.sampled_from([1, 2, 4, 8]))
    return EngineLimits(
        blocks=draw(st.sampled_from([4, 8, 16, 64])),
        block_size=draw(st.sampled_from([1, 2, 4])),
        max_context=draw(st.sampled_from([24, 64])),
        max_sequences=max_sequences,
        step_tokens=max_sequences + draw(st.sampled_from([1, 3, 8, 40])),
        max_queue=draw(st.sampled_from([4, 50])),
        adapter_slots=draw(st.sampled_from([1, 2, 8])),
        chunking=draw(st.booleans()),
        tenant_weights=draw(st.sampled_from([{}, {"a": 3.0}])),
        ageing_s=draw(st.sampled_from([0.5, 10.0])),
    )


class GenerationMachine(RuleBasedStateMachine):
    @initialize(limits=limits())
    def start(self, limits: EngineLimits) -> None:
        self.now = 0.0
        self.ids = itertools.count()
        self.limits = limits
        self.scheduler = GenerationScheduler(limits)
        self.engine = FakeEngine(block_size=limits.block_size, vocabulary=VOCABULARY)
        self.asked: dict[int, Sequence] = {}
        self.streams: dict[int, list[int]] = {}
        self.ended: dict[int, Finished] = {}
        self.left: set[int] = set()  # nobody reads what still comes
        self.in_flight: list[tuple[Step, list[int]]] = []
        self.waits_until = math.inf

    # ---- what happens

    @rule(
        family=st.integers(0, 2),
        prefix=st.integers(1, 12),
        tail=st.integers(0, 6),
        max_tokens=st.integers(1, 20),
        priority=st.sampled_from(Priority),
        tenant=st.sampled_from(["", "a", "b"]),
        lasts=st.sampled_from([None, None, None, 0.1, 3.0]),
        adapter=st.sampled_from(["", "", "x", "y", "z"]),
        salt=st.sampled_from(["", "", "s"]),
        count=st.sampled_from([1, 1, 2, 3]),
    )
    def submit(
        self,
        family: int,
        prefix: int,
        tail: int,
        max_tokens: int,
        priority: Priority,
        tenant: str,
        lasts: float | None,
        adapter: str,
        salt: str,
        count: int,
    ) -> None:
        prompt = tuple(range(family * 10, family * 10 + prefix))
        prompt += tuple((next(self.ids) * 7 + each) % VOCABULARY for each in range(tail))
        for _ in range(count):
            sequence = Sequence(
                id=next(self.ids),
                arrived_at=self.now,
                prompt=prompt,
                max_tokens=max_tokens,
                stop_ids=STOP,
                priority=priority,
                tenant=tenant,
                deadline=self.now + lasts if lasts else float("inf"),
                adapter=adapter,
                salt=salt,
            )
            try:
                self.scheduler.submit(sequence)
            except (InputTooLarge, QueueFull):
                continue
            self.engine.add(sequence)
            self.asked[sequence.id] = sequence
            self.streams[sequence.id] = []

    @rule(place=st.integers(0, 1000))
    def cancel(self, place: int) -> None:
        waiting = [each for each in self.asked if each not in self.ended]
        if waiting:
            left = waiting[place % len(waiting)]
            self.left.add(left)
            self.scheduler.cancel(left)

    @rule(seconds=st.sampled_from([0.01, 0.3, 2.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: len(self.in_flight) < 3)
    @rule()
    def issue(self) -> None:
        action = self.scheduler.next_step(self.now)
        if isinstance(action, Wait):
            assert action.until > self.now
            self.waits_until = action.until
            return
        for finished in action.finished:
            self.end(finished)
        self.check(action)
        if action.has_work:
            self.in_flight.append((action, self.engine.run(action)))

    @precondition(lambda self: self.in_flight)
    @rule()
    def complete(self) -> None:
        step, tokens = self.in_flight.pop(0)
        for sequence_id, token in zip(step.sampled, tokens, strict=True):
            if sequence_id not in self.ended and sequence_id not in self.left:
                self.streams[sequence_id].append(token)
        seconds = 0.01 + 0.001 * step.tokens
        self.now += seconds
        for finished in self.scheduler.complete(step, tokens, seconds):
            self.end(finished)
        # What comes after the end of a sequence, from a step that was on its way, is not its own.
        for sequence_id, finished in self.ended.items():
            del self.streams[sequence_id][finished.tokens :]

    @rule()
    def crash(self) -> None:
        self.in_flight.clear()
        self.engine.lose()
        self.scheduler.reset()

    @rule(adapter=st.sampled_from(["x", "y", "z"]))
    def unload(self, adapter: str) -> None:
        """As a reload under the same name does. Running sequences go on."""
        self.scheduler.forget_adapter(adapter)

    # ---- what holds

    def check(self, step: Step) -> None:
        assert all(0 <= each.slot < self.limits.adapter_slots for each in step.placed)
        if self.limits.chunking:
            assert step.tokens <= self.limits.step_tokens
        assert len(step.decode) + len(step.prefill) <= self.limits.max_sequences
        named = Counter(each.sequence for each in (*step.decode, *step.prefill))
        assert all(count == 1 for count in named.values())
        slots = [each.slot for each in (*step.decode, *step.prefill)]
        assert len(set(slots)) == len(slots)

    def end(self, finished: Finished) -> None:
        assert finished.sequence not in self.ended, "a sequence ends once"
        self.ended[finished.sequence] = finished

    @invariant()
    def blocks_free_and_used_are_all(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        assert self.scheduler.blocks_used + self.scheduler.blocks_free == self.limits.blocks
        assert self.scheduler.blocks_used == len(self.scheduler.blocks_in_tables())

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(10_000):
            if len(self.ended) == len(self.asked):
                break
            before, self.waits_until = len(self.ended), math.inf
            self.issue()
            if self.in_flight:
                self.complete()
            elif self.waits_until < math.inf:  # for the rest of a burst
                self.now = self.waits_until
            else:
                assert len(self.ended) > before, "somebody waits for nothing"
        assert set(self.ended) == set(self.asked), "nobody starves"
        assert self.scheduler.blocks_used == 0
        for sequence_id, finished in self.ended.items():
            sequence = self.asked[sequence_id]
            expected = alone(sequence)
            stream = self.streams[sequence_id]
            assert stream == expected[: len(stream)], "the same text in any company"
            if finished.reason in {FinishReason.STOP, FinishReason.LENGTH}:
                assert stream == expected


def alone(sequence: Sequence) -> list[int]:
    """What the model says to a sequence that nobody is beside."""
    tokens = list(sequence.prompt)
    while len(tokens) < len(sequence.prompt) + sequence.max_tokens:
        tokens.append(
            next_token(tokens, adapter=sequence.adapter, salt=sequence.salt, vocabulary=VOCABULARY)
        )
        if tokens[-1] in STOP:
            break
    return tokens[len(sequence.prompt) :]


def test_the_scheduler_of_steps_keeps_its_promises() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        GenerationMachine,
        settings=settings(
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )
