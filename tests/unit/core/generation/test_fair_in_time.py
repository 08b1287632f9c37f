"""Shares and urgency, measured in virtual time: what a flood costs those who do not flood."""

from statistics import median

import pytest

from headway.core.generation.limits import EngineLimits
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Sequence
from headway.core.generation.step import Step
from headway.core.items import Priority

SLOTS = 16


class World:
    """Two tenants: one keeps so many sequences asked for, the other asks now and then."""

    def __init__(
        self, *, flood: int, priority: Priority = Priority.NORMAL, has_adapters: bool = False
    ) -> None:
        limits = EngineLimits(blocks=4000, max_sequences=SLOTS, step_tokens=256, max_queue=10_000)
        self.scheduler = GenerationScheduler(limits)
        self.now = 0.0
        self.owner: dict[int, str] = {}
        self.arrived: dict[int, float] = {}
        self.waits: list[float] = []  # for quiet's first tokens
        self.tokens = {"flood": 0, "quiet": 0}
        self._priority = priority
        self._has_adapters = has_adapters
        for _ in range(flood):
            self.submit("flood")

    def submit(self, tenant: str) -> None:
        number = len(self.owner)
        self.owner[number] = tenant
        kind = Priority.NORMAL
        if tenant == "quiet":
            self.arrived[number], kind = self.now, self._priority
        prompt = tuple(range(number << 20, (number << 20) + 64))
        count = 30 + number % 40
        adapter = f"{tenant}'s" if self._has_adapters else ""
        self.scheduler.submit(
            Sequence(number, self.now, prompt, count, tenant=tenant, priority=kind, adapter=adapter)
        )

    def step(self) -> None:
        step = self.scheduler.next_step(self.now)
        assert isinstance(step, Step)
        seconds = 0.010 + 0.0005 * step.tokens
        self.now += seconds
        ended = self.scheduler.complete(step, [7] * len(step.sampled), seconds)
        for sequence in step.sampled:
            self.tokens[self.owner[sequence]] += 1
            if sequence in self.arrived:
                self.waits.append(self.now - self.arrived.pop(sequence))
        for finished in ended:
            if self.owner[finished.sequence] == "flood":
                self.submit("flood")  # one goes, one comes

    def run(self, *, quiet_every_s: float = 1.0) -> None:
        next_at = 5.0
        while self.now < 40.0:
            if self.now >= next_at:
                if next_at == 5.0:
                    self.tokens = {"flood": 0, "quiet": 0}  # from here on both want some
                self.submit("quiet")
                next_at += quiet_every_s
            self.step()


@pytest.mark.parametrize("priority", [Priority.NORMAL, Priority.HIGH])
def test_a_flood_delays_others_first_tokens_little(priority: Priority) -> None:
    calm = World(flood=SLOTS - 2)  # as many running, and no queue
    calm.run()
    flooded = World(flood=20 * SLOTS, priority=priority)
    flooded.run()
    assert len(flooded.waits) == len(calm.waits)
    assert median(flooded.waits) <= 1.5 * median(calm.waits)
    assert max(flooded.waits) <= 1.5 * max(calm.waits)


def test_a_burst_on_one_tenants_adapter_delays_anothers_first_tokens_little() -> None:
    calm = World(flood=SLOTS - 2, has_adapters=True)
    calm.run()
    flooded = World(flood=20 * SLOTS, has_adapters=True)
    flooded.run()
    assert len(flooded.waits) == len(calm.waits)
    assert median(flooded.waits) <= 1.5 * median(calm.waits)
    assert max(flooded.waits) <= 1.5 * max(calm.waits)


def test_two_that_want_everything_get_half_each() -> None:
    world = World(flood=20 * SLOTS)
    world.run(quiet_every_s=0.02)
    assert world.tokens["quiet"] / sum(world.tokens.values()) == pytest.approx(0.5, abs=0.03)
