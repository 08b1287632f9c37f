"""The loop that owns an engine, with a clock and an engine of the test's own."""

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest

from headway.core.generation.limits import EngineLimits
from headway.core.generation.sampling import Sampling
from headway.core.generation.sequence import Sequence
from headway.core.generation.step import Step
from headway.runtime.generation import loop as engine_loop
from headway.runtime.generation.loop import Command, EngineLoop, Report, SubmitSequence

STEP_S = 0.01
LIMITS = EngineLimits(blocks=100, max_sequences=8, step_tokens=64, max_stretch=50.0)


class Device:
    """Two steps deep; each takes 10 ms, one after the other."""

    depth = 2
    limits = LIMITS
    vocabulary = 10
    computes = "by hand"
    adapters: Any = None

    def __init__(self, clock: "Clock") -> None:
        self._clock = clock
        self._free_at = 0.0
        self.handed: list[tuple[float, float, Step]] = []  # when, when it begins, what
        self.fails_at = -1  # the step of this number, when its result is asked for
        self.fails_with = "the numbers do not fit"

    def add(self, *_: Any, **__: Any) -> None: ...
    def drop(self, sequence: int) -> None: ...

    def start(self, step: Step) -> "Device._Running":
        begins = max(self._clock.now, self._free_at)
        self._free_at = begins + STEP_S
        self.handed.append((self._clock.now, begins, step))
        return Device._Running(self, step, self._free_at, len(self.handed))

    class _Running:
        def __init__(self, device: "Device", step: Step, ends: float, number: int) -> None:
            self._device, self._step, self._ends, self._number = device, step, ends, number
            self.seconds: float | None = None

        def result(self) -> Any:
            clock = self._device._clock
            clock.now = max(clock.now, self._ends)
            if self._number == self._device.fails_at:
                raise RuntimeError(self._device.fails_with)
            self.seconds = STEP_S
            count = len(self._step.sampled)
            return SimpleNamespace(tokens=[1] * count, logprobs=[None] * count, broken={})


class Clock:
    """Also the inbox: commands come at their times, and waiting takes no time."""

    def __init__(self, commands: list[tuple[float, Command]]) -> None:
        self.now = 0.0
        self.ends_at = 1.0
        self._coming = sorted(commands, key=lambda each: each[0])

    def monotonic(self) -> float:
        return self.now

    def post(self, command: Command) -> None:
        raise AssertionError("nobody posts")

    def wait_commands(self, until: float) -> list[Command] | None:
        due = self._due()
        if not due and until > self.now:
            coming = self._coming[0][0] if self._coming else math.inf
            self.now = min(until, coming, self.ends_at)
            due = self._due()
        return None if self.now >= self.ends_at else due

    def _due(self) -> list[Command]:
        due = [command for at, command in self._coming if at <= self.now]
        self._coming = self._coming[len(due) :]
        return due


def submit(number: int, at: float, tokens: int = 50) -> tuple[float, Command]:
    return at, SubmitSequence(Sequence(number, at, (1, 2, 3), tokens), Sampling(temperature=0.0))


def run(
    monkeypatch: pytest.MonkeyPatch, *commands: tuple[float, Command], fails_at: int = -1
) -> tuple[Device, list[Report]]:
    clock = Clock(list(commands))
    monkeypatch.setattr(engine_loop, "time", clock)
    device, reports = Device(clock), list[Report]()
    device.fails_at = fails_at
    EngineLoop(device, clock, reports.append).run()
    return device, reports


def test_the_device_never_waits_and_whoever_comes_is_in_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, _ = run(monkeypatch, submit(1, 0.0, tokens=100), submit(2, 0.205), submit(3, 0.406))
    steps = device.handed
    for (_, begins, _), (_, later, _) in itertools.pairwise(steps[5:70]):
        assert later == pytest.approx(begins + STEP_S)
    for number, came in ((2, 0.205), (3, 0.406)):
        begins = next(
            at for _, at, step in steps if any(each.sequence == number for each in step.prefill)
        )
        # The step that ran when it came has ended, and no other was before it.
        assert came < begins <= came + STEP_S


def test_a_step_is_handed_over_shortly_before_it_can_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, _ = run(monkeypatch, submit(1, 0.0, tokens=40))
    ahead = [begins - handed for handed, begins, _ in device.handed[10:35]]
    assert max(ahead) < STEP_S / 2
    assert min(ahead) > 0.0


def test_a_step_that_fails_fails_its_sequences_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, reports = run(monkeypatch, submit(1, 0.0, tokens=20), submit(2, 0.5, tokens=3), fails_at=5)
    ends = {each.sequence: each.error for told in reports for each in told.outputs if each.error}
    assert "do not fit" in str(ends.pop(1))
    assert not ends
    tokens = [each for told in reports for each in told.outputs if each.sequence == 2]
    assert len(tokens) == 3


def test_an_error_of_the_device_ends_the_loop_and_fails_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock([submit(1, 0.0, tokens=20), submit(2, 0.0)])
    monkeypatch.setattr(engine_loop, "time", clock)
    device, reports = Device(clock), list[Report]()
    device.fails_at, device.fails_with = 5, "CUDA error: device-side assert triggered"
    loop = EngineLoop(device, clock, reports.append)
    with pytest.raises(RuntimeError, match="device-side assert"):
        loop.run()
    loop.close()
    assert not [each for told in reports for each in told.outputs if each.error or each.finished]
    assert loop.unfinished == {1, 2}  # the parent process resubmits them to another engine
