"""The last batches of every model, kept in memory so that "why was this slow?" has an answer.

A store of frozen events and nothing else: a batch costs one append. Bounded by batches and by
items, for each version of a model; its readers (`observe/stories.py`) interpret it.
"""

import heapq
import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias, TypeVar

from headway.core.generation.sequence import Finished, FinishReason
from headway.core.items import Item
from headway.observe.requests import (
    MOST_REQUESTS,
    DirectRequest,
    RequestLog,
    current,
    server_timing,
)
from headway.runtime.events import (
    BatchFinished,
    BatchLost,
    BatchStarted,
    Crashed,
    Event,
    ObservedBatcher,
    OutOfMemory,
    Refused,
    Stopped,
    WorkerChanged,
)

MOST_BATCHES = 4096  # of one version of a model
MOST_ITEMS = 16_384  # in them: about 3 MB
MOST_INCIDENTS = 512
MOST_ANSWERS = 4096
_JUST_NOW = 8  # batches that are looked through after an answer
_MOST_PAUSES = 256
_LONG_PAUSE_S = 0.005
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


Record = TypeVar("Record", BatchRecord, IncidentRecord, "AnswerRecord")


class Pause(NamedTuple):
    """A garbage collection: no code of the process ran meanwhile."""

    began_at: float
    ended_at: float


class AnswerRecord(NamedTuple):
    """An answer of a language model that has ended."""

    number: int
    sequence: int
    arrived_at: float
    admitted_at: float | None  # None: it never ran
    first_at: float | None  # its first token; None: there was none
    ended_at: float
    code: str  # `stop`, `length`, or the error's
    prompt_tokens: int
    tokens: int
    cached_tokens: int  # of the prompt
    awaited_tokens: int  # of those: it waited until others had computed them
    chunks: int  # steps that computed part of the prompt
    preemptions: int
    preempted_s: float
    choice: int  # 0, 1 …: of the answers to its prompt
    adapter: str  # of LoRA, by its name; empty: none

    @property
    def parts_ms(self) -> tuple[float, float, float]:
        """Until it began; until its first token; until its last one."""
        began_at = self.admitted_at or self.ended_at
        first_at = max(self.first_at or self.ended_at, began_at)
        parts_s = began_at - self.arrived_at, first_at - began_at, self.ended_at - first_at
        return parts_s[0] * 1e3, parts_s[1] * 1e3, parts_s[2] * 1e3


class ModelHistory:
    """What one batcher did lately."""

    def __init__(
        self,
        model: str,
        version: str,
        numbers: Iterator[int],
        clock: Callable[[], float],
        pauses: "deque[Pause]",
    ) -> None:
        """`pauses`: of the process."""
        self.model = model
        self.version = version
        self.batches: deque[BatchRecord] = deque()
        self.incidents: deque[IncidentRecord] = deque(maxlen=MOST_INCIDENTS)
        self.answers: deque[AnswerRecord] = deque(maxlen=MOST_ANSWERS)
        self.requests: deque[DirectRequest] = deque(maxlen=MOST_REQUESTS)  # that had no task
        self.forgotten = 0  # the number of the last batch or answer that had to make room
        self.pauses = pauses
        self.batcher: Callable[[], ObservedBatcher | None] = lambda: None
        self.is_over = False
        self._items = 0
        self._by_id: dict[int, dict[int, Item]] = {}  # the items of batches just now
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

    def ended(
        self,
        sequence: int,
        finished: Finished | None,
        *,
        arrived_at: float,
        first_at: float | None,
        prompt_tokens: int,
        tokens: int,
        code: str,
        choice: int = 0,
        adapter: str = "",
    ) -> None:
        """An answer has ended; `finished`: as the engine tells it, where it does."""
        told = finished or Finished(sequence, FinishReason.CANCELLED, 0, 0, 0, 0, None)
        found = (told.cached_tokens, told.awaited_tokens)
        spent = (*found, told.chunks, told.preemptions, told.preempted_s)
        moments = (arrived_at, told.admitted_at, first_at, self._clock())
        number = next(self._numbers)
        if len(self.answers) == MOST_ANSWERS:
            self.forgotten = max(self.forgotten, self.answers[0].number)
        self.answers.append(
            AnswerRecord(
                *(number, sequence, *moments, code, prompt_tokens, tokens, *spent, choice, adapter)
            )
        )

    def timing_of(self, item_id: int) -> bytes:
        """The `Server-Timing` of an item or a sequence that was answered just now; empty: too much
        has run since."""
        for answer in itertools.islice(reversed(self.answers), _JUST_NOW):
            if answer.sequence == item_id:
                return b"queue;dur=%.3f, prefill;dur=%.3f, decode;dur=%.3f" % answer.parts_ms
        for record in itertools.islice(reversed(self.batches), _JUST_NOW):
            batch, item = record.event.batch, self._items_of(record).get(item_id)
            if item is not None and isinstance(record.event, BatchFinished):
                waited = batch.queued_s(item), batch.lingered_s(item)
                return server_timing(*waited, record.event.ran_s)
        return b""

    def _items_of(self, record: BatchRecord) -> dict[int, Item]:
        """By their ids; each of a batch's callers asks."""
        found = self._by_id.get(record.number)
        if found is None:
            if len(self._by_id) == _JUST_NOW:
                del self._by_id[next(iter(self._by_id))]
            found = {item.id: item for item in record.event.batch.items}
            self._by_id[record.number] = found
        return found

    def _make_room(self) -> None:
        """The newest batch always stays, however many items it has."""
        batches = self.batches
        while len(batches) > MOST_BATCHES or (self._items > MOST_ITEMS and len(batches) > 1):
            number, _, event = batches.popleft()
            self.forgotten = max(self.forgotten, number)
            self._items -= len(event.batch.items)


class Since(NamedTuple):
    """The records after a certain one, oldest first."""

    batches: list[tuple[ModelHistory, BatchRecord]]
    answers: list[tuple[ModelHistory, AnswerRecord]]
    incidents: list[tuple[ModelHistory, IncidentRecord]]
    left_out: int  # batches and answers that are older than these, and still kept
    has_gap: bool  # some are kept no longer
    next: int  # the number to ask with next time


class History:
    """The histories of all models of a server. Written in its event loop, pauses in any thread;
    read in any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.requests = RequestLog(clock)
        self._last = 0
        self._numbers = self._count()
        self._models: list[ModelHistory] = []
        self._pauses: deque[Pause] = deque(maxlen=_MOST_PAUSES)

    def _count(self) -> Iterator[int]:
        for number in itertools.count(1):
            self._last = number
            yield number

    def watch(self, batcher: ObservedBatcher, *, version: str) -> ModelHistory:
        """Keep what this batcher does from now on."""
        history = self.add(batcher.name, version)
        batcher.observe(history.observe)
        batcher.follow(history.queued, is_optional=True)
        history.batcher = weakref.ref(batcher)
        return history

    def add(self, model: str, version: str) -> ModelHistory:
        """A history that its model fills itself."""
        over = [each for each in self._models if each.is_over]
        for forgotten in over[:-_MOST_RETIRED]:
            self._models.remove(forgotten)
        history = ModelHistory(model, version, self._numbers, self.clock, self._pauses)
        self._models.append(history)
        return history

    def paused(self, began_at: float, ended_at: float) -> None:
        """The process collected garbage; in any thread."""
        if ended_at - began_at >= _LONG_PAUSE_S:
            self._pauses.append(Pause(began_at, ended_at))

    def models(self, is_visible: Callable[[str], bool] = lambda model: True) -> list[ModelHistory]:
        return [each for each in self._models if is_visible(each.model)]

    def since(
        self, number: int, limit: int, *, is_visible: Callable[[str], bool] = lambda model: True
    ) -> Since:
        """The records after `number`: of more than `limit` batches, the newest."""
        shown = self.models(is_visible)
        batches = [(each, batch) for each in shown for batch in _after(number, each.batches)]
        incidents = [(each, found) for each in shown for found in _after(number, each.incidents)]
        answers = [(each, answer) for each in shown for answer in _after(number, each.answers)]
        newest = heapq.nlargest(limit, batches, key=_number)
        last = heapq.nlargest(limit, answers, key=_number)
        return Since(
            newest[::-1],
            last[::-1],
            sorted(incidents, key=_number),
            len(batches) + len(answers) - len(newest) - len(last),
            any(each.forgotten > number for each in shown),
            self._last,
        )


def _after(number: int, records: "deque[Record]") -> Iterator[Record]:
    if not records or records[-1].number <= number:
        return iter(())
    kept = list(records)  # at once: the event loop adds to them meanwhile
    return itertools.takewhile(lambda each: each.number > number, reversed(kept))


def _number(found: "tuple[ModelHistory, BatchRecord | IncidentRecord | AnswerRecord]") -> int:
    return found[1].number
