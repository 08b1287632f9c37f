"""Events of the runtime: frozen values that observers receive.

An observer that raises is logged once and detached: it never touches a request.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from headway.core.faults.supervision import WorkerState
from headway.core.items import Batch, FireReason
from headway.core.policy import Policy
from headway.core.routing import Pace

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ItemTimes:
    """Where one item's time went, in seconds."""

    id: int
    queued_s: float  # every worker was busy
    lingered_s: float  # a free worker waited for more items on purpose
    ran_s: float


@dataclass(frozen=True, slots=True)
class BatchStarted:
    model: str
    batch: Batch


@dataclass(frozen=True, slots=True)
class BatchFinished:
    """A batch came back. `batch` says why it left, with which caps in force."""

    model: str
    batch: Batch
    finished_at: float
    ran_s: float  # of the model, reruns included
    reruns: int
    failed: int  # items answered with an error
    work_s: float = 0.0  # the least time that its rows can take, in full batches of their size

    @property
    def reason(self) -> FireReason:
        return self.batch.reason

    @property
    def items(self) -> tuple[ItemTimes, ...]:
        """Each item's split of its time."""
        batch = self.batch
        return tuple(
            ItemTimes(item.id, batch.queued_s(item), batch.lingered_s(item), self.ran_s)
            for item in batch.items
        )


@dataclass(frozen=True, slots=True)
class BatchLost:
    """A batch's worker ended under it. Its waiting items run again, in batches of their own."""

    model: str
    batch: Batch
    lost_at: float
    reason: str  # why the worker was lost, for people
    out_of_memory: bool
    failed: int  # items answered with an error: they may not run again


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A batch ran out of memory; it was cut and run again. `BatchFinished` follows."""

    model: str
    batch: Batch
    limit_rows: int  # of batches of this size from now on, for a while


@dataclass(frozen=True, slots=True)
class WorkerChanged:
    """A worker process was lost (`waiting` to be started again), is `ready`, or is given up
    (`failed`)."""

    model: str
    pid: int | None  # of the process that was lost, or is ready
    state: WorkerState
    restarts: int  # so far
    reason: str  # why the last one ended, for people


@dataclass(frozen=True, slots=True)
class Refused:
    """A call was refused; `reason` is the error's code word."""

    model: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A caller left before the answer; `started`: its item ran all the same."""

    model: str
    started: bool


@dataclass(frozen=True, slots=True)
class Crashed:
    """The batcher itself failed. Every caller has been answered with an error."""

    model: str
    error: BaseException


@dataclass(frozen=True, slots=True)
class Stopped:
    model: str
    unanswered: int  # callers that got `Closed` because the drain ran out of time


Event: TypeAlias = (
    BatchStarted
    | BatchFinished
    | BatchLost
    | OutOfMemory
    | WorkerChanged
    | Refused
    | Cancelled
    | Crashed
    | Stopped
)
Observer: TypeAlias = Callable[[Event], None]


class Observers:
    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = list(observers)

    def __bool__(self) -> bool:
        return bool(self._observers)

    def add(self, observer: Observer) -> None:
        self._observers = [*self._observers, observer]

    def remove(self, observer: Observer) -> None:
        self._observers = [each for each in self._observers if each is not observer]

    def emit(self, event: Event) -> None:
        for observer in self._observers:
            try:
                observer(event)
            except BaseException:  # noqa: BLE001  an observer is user code, and none of the callers' business
                _log.exception("observer %r raised and is detached", observer)
                self._observers = [each for each in self._observers if each is not observer]


@dataclass(frozen=True, slots=True)
class Statistics:
    """A batcher's state at one moment."""

    is_open: bool
    crashed: BaseException | None
    queued_items: int
    queued_rows: int
    queued_s: float  # the seconds of work in the queue
    running_batches: int
    running_items: int
    oldest_batch_s: float  # how long the longest running batch has been running
    pace: Pace | None = None  # how long batches take; None: unknown
    away_workers: int = 0  # processes that are being started again, or given up


class ObservedBatcher(Protocol):
    """A batcher, as those see it that watch it."""

    name: str

    @property
    def policy(self) -> Policy: ...

    def observe(self, observer: Observer) -> None: ...

    def follow(
        self, follower: Callable[[tuple[int, ...]], None], *, is_optional: bool = False
    ) -> None: ...

    def statistics(self) -> Statistics: ...
