"""One worker's life: when to start it again after it was lost, and when to give up.

Pure: events come in with their times, `next_action` decides what to do. A worker that was lost
after it was ready starts again at once, a number of times: finding the item that crashes it takes
workers. A worker that cannot even start waits longer each time. The count starts again as soon as a
batch is answered, or after a while without a loss. What becomes of the lost batch: `suspects`.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from headway.core.items import Wait

MAX_RESTARTS = 16


class WorkerState(StrEnum):
    STARTING = "starting"  # the model is being loaded
    READY = "ready"
    WAITING = "waiting"  # to be started again
    FAILED = "failed"  # given up
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    max_restarts: int = MAX_RESTARTS  # in a row, without a batch answered in between
    patience: int = 12  # restarts at once, of a worker that was ready
    first_wait_s: float = 0.25  # doubles each time
    longest_wait_s: float = 30.0
    stable_s: float = 60.0  # ready for this long: earlier failures no longer count

    def wait_s(self, failures: int, *, was_ready: bool) -> float:
        """The pause before a restart, after this many failures in a row."""
        beyond = failures - (self.patience if was_ready else 1)
        if beyond <= 0:
            return 0.0
        return min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(beyond - 1, 32))


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start the worker now; then call `ready` or `ended`."""


WorkerAction: TypeAlias = StartWorker | Wait


class Supervision:
    """Call `next_action` after every event."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self.state = WorkerState.WAITING
        self.restarts = 0
        self.last_error = ""
        self._failures = 0  # in a row
        self._start_at = -math.inf
        self._ready_at = math.inf
        self._has_started = False

    def next_action(self, now: float) -> WorkerAction:
        if self.state is not WorkerState.WAITING:
            return Wait(math.inf)
        if now < self._start_at:
            return Wait(self._start_at)
        self.state = WorkerState.STARTING
        self.restarts += self._has_started
        self._has_started = True
        return StartWorker()

    def ready(self, now: float) -> None:
        assert self.state is WorkerState.STARTING, f"a worker that is {self.state} became ready"
        self.state = WorkerState.READY
        self._ready_at = now

    def ended(self, now: float, reason: str, *, has_answered: bool) -> None:
        """The worker is gone. `has_answered`: it answered a batch since it was ready."""
        if self.state in (WorkerState.STOPPED, WorkerState.FAILED):
            return
        was_ready = self.state is WorkerState.READY
        if has_answered or now - self._ready_at >= self._policy.stable_s:
            self._failures = 0
        self._failures += 1
        self._ready_at = math.inf
        self.last_error = reason
        if self._failures > self._policy.max_restarts:
            self.state = WorkerState.FAILED
            return
        self.state = WorkerState.WAITING
        self._start_at = now + self._policy.wait_s(self._failures, was_ready=was_ready)

    def fail(self, reason: str) -> None:
        """Give the worker up now, in any state."""
        self.state, self.last_error = WorkerState.FAILED, reason

    def stop(self) -> None:
        if self.state is not WorkerState.FAILED:
            self.state = WorkerState.STOPPED
