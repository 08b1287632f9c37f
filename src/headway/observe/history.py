"""The last batches of every model, kept in memory so that "why was this slow?" has an answer.

A store of frozen events and nothing else: a batch costs one append. Bounded by batches and by
items, for each version of a model; whoever reads it makes sense of it.
"""

import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from headway.observe.requests import MOST_REQUESTS, DirectRequest, RequestLog, current
from headway.runtime.events import (
    BatchFinished,
    BatchLost,
    BatchStarted,
    Crashed,
    Event,
    Observer,
    OutOfMemory,
    Refused,
    Stopped,
    WorkerChanged,
)

MOST_BATCHES = 4096  # of one version of a model
MOST_ITEMS = 16_384  # in them: about 3 MB
MOST_INCIDENTS = 512
_MOST_RETIRED = 16  # versions that were unloaded; of more, the oldest is forgotten

BatchEvent: TypeAlias = BatchFinished | BatchLost
Incident: TypeAlias = Refused | OutOfMemory | WorkerChanged | Crashed | Stopped
_BATCHES = (BatchFinished, BatchLost)  # a union would be made anew for each event
_INCIDENTS = (Refused, OutOfMemory, WorkerChanged, Crashed, Stopped)


class BatchRecord(NamedTuple):
    """A batch that came back or was lost."""

    number: int  # of this record, over all models: 1, 2, 3 …
    seen_at: float  # once its callers had been answered, on the event loop's clock
    event: BatchEvent


class IncidentRecord(NamedTuple):
    number: int
    seen_at: float
    event: Incident


Record = TypeVar("Record", BatchRecord, IncidentRecord)


class Observable(Protocol):
    """A batcher, as far as its history goes."""

    name: str

    def observe(self, observer: Observer) -> None: ...

    def follow(
        self, follower: Callable[[tuple[int, ...]], None], *, is_optional: bool = False
    ) -> None: ...


class ModelHistory:
    """What one batcher did lately."""

    def __init__(
        self, model: str, version: str, numbers: Iterator[int], clock: Callable[[], float]
    ) -> None:
        self.model = model
        self.version = version
        self.batches: deque[BatchRecord] = deque()
        self.incidents: deque[IncidentRecord] = deque(maxlen=MOST_INCIDENTS)
        self.requests: deque[DirectRequest] = deque(maxlen=MOST_REQUESTS)  # that had no task
        self.forgotten = 0  # the number of the last batch that had to make room
        self.is_over = False
        self._items = 0
        self._numbers = numbers
        self._clock = clock

    def observe(self, event: Event) -> None:
        """Keep an event; to be passed to `Batcher.observe`."""
        if isinstance(event, BatchStarted):
            return
        if isinstance(event, _BATCHES):
            self.batches.append(BatchRecord(next(self._numbers), self._clock(), event))
            self._items += len(event.batch.items)
            if self._items > MOST_ITEMS or len(self.batches) > MOST_BATCHES:
                self._make_room()
        elif isinstance(event, _INCIDENTS):
            self.incidents.append(IncidentRecord(next(self._numbers), self._clock(), event))
            self.is_over = self.is_over or isinstance(event, Stopped)

    def queued(self, item_ids: tuple[int, ...]) -> None:
        """These items belong to the current request; to be passed to `Batcher.follow`."""
        note = current()
        if note is not None:
            note.add(self, item_ids)

    def answered(
        self, request_id: str, item_ids: tuple[int, ...], started_at: float, code: str = ""
    ) -> None:
        """A request that had no task is over."""
        [item] = item_ids
        self.requests.append(DirectRequest(request_id, item, started_at, self._clock(), code))

    def _make_room(self) -> None:
        """The newest batch always stays, however many items it has."""
        batches = self.batches
        while len(batches) > MOST_BATCHES or (self._items > MOST_ITEMS and len(batches) > 1):
            number, _, event = batches.popleft()
            self.forgotten = number
            self._items -= len(event.batch.items)


class Since(NamedTuple):
    """The records after a certain one, oldest first."""

    batches: list[tuple[ModelHistory, BatchRecord]]
    incidents: list[tuple[ModelHistory, IncidentRecord]]
    left_out: int  # batches that are older than these, and still kept
    has_gap: bool  # some are kept no longer
    next: int  # the number to ask with next time


class History:
    """The histories of all models of a server. Written and read in its event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.requests = RequestLog(clock)
        self._last = 0
        self._numbers = self._count()
        self._models: list[ModelHistory] = []

    def _count(self) -> Iterator[int]:
        for number in itertools.count(1):
            self._last = number
            yield number

    def watch(self, batcher: Observable, *, version: str) -> ModelHistory:
        """Keep what this batcher does from now on."""
        over = [each for each in self._models if each.is_over]
        for forgotten in over[:-_MOST_RETIRED]:
            self._models.remove(forgotten)
        history = ModelHistory(batcher.name, version, self._numbers, self.clock)
        self._models.append(history)
        batcher.observe(history.observe)
        batcher.follow(history.queued, is_optional=True)
        return history

    def models(self, is_visible: Callable[[str], bool] = lambda model: True) -> list[ModelHistory]:
        return [each for each in self._models if is_visible(each.model)]

    def since(
        self,
        number: int,
        limit: int,
        *,
        is_visible: Callable[[str], bool] = lambda model: True,
    ) -> Since:
        """The records after `number`: of more than `limit` batches, the newest."""
        shown = self.models(is_visible)
        batches = [(each, batch) for each in shown for batch in _after(number, each.batches)]
        incidents = [(each, found) for each in shown for found in _after(number, each.incidents)]
        newest = heapq.nlargest(limit, batches, key=_number)
        return Since(
            newest[::-1],
            sorted(incidents, key=_number),
            len(batches) - len(newest),
            any(each.forgotten > number for each in shown),
            self._last,
        )


def _after(number: int, records: Iterable[Record]) -> Iterator[Record]:
    kept = list(records)  # at once: another thread may add to them
    return itertools.takewhile(lambda each: each.number > number, reversed(kept))


def _number(found: "tuple[ModelHistory, BatchRecord | IncidentRecord]") -> int:
    return found[1].number
