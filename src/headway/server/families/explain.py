"""`GET /admin/explain`: the last batches, who was in them, why they left, what went wrong."""

import time
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from headway.core.items import Batch, Item
from headway.errors import InvalidInput
from headway.observe.history import (
    MOST_BATCHES,
    BatchRecord,
    History,
    Incident,
    IncidentRecord,
    ModelHistory,
)
from headway.runtime.events import BatchLost, Crashed, OutOfMemory, Refused, WorkerChanged
from headway.server.service.routes import Route
from headway.wire.messages import Request, Response

_USUAL_LIMIT = 200


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    """The query."""

    since: int = 0
    limit: int = _USUAL_LIMIT
    model: str = ""
    items: bool = True


class ExplainedItem(msgspec.Struct):
    id: int
    arrived_at: float
    rows: int
    size: int
    priority: str
    tenant: str
    deadline_at: float | None
    queued_ms: float
    lingered_ms: float


class ExplainedBatch(msgspec.Struct):
    number: int
    model: str
    version: str
    batch: int
    worker: int
    reason: str
    fired_at: float
    idle_since: float
    finished_at: float
    answered_at: float
    ran_ms: float
    predicted_ms: float | None
    rows: int
    size: int
    padded_rows: int
    padding: float
    batch_cap: int
    linger_cap_ms: float
    reruns: int
    failed: int
    lost: str | None
    count: int
    items: list[ExplainedItem] | None


class ExplainedIncident(msgspec.Struct):
    number: int
    model: str
    version: str
    at: float
    kind: str
    message: str


class ExplainPage(msgspec.Struct):
    now: float
    next: int
    left_out: int
    has_gap: bool
    batches: list[ExplainedBatch]
    incidents: list[ExplainedIncident]


class Explain:
    """The route and its handler."""

    def __init__(self, history: History) -> None:
        self._history = history

    def routes(self) -> list[Route]:
        return [
            Route(
                *("GET", "/admin/explain", self.page),
                may_compress=True,
                summary="The last batches: who was in them, why they left, where the time went",
            )
        ]

    async def page(self, request: Request) -> Response:
        asked, caller, history = _asked(request.query), request.caller, self._history

        def is_visible(model: str) -> bool:
            is_named = not asked.model or model == asked.model
            return is_named and (caller is None or caller.may_use(model))

        found = history.since(asked.since, asked.limit, is_visible=is_visible)
        now = history.clock()
        wall = _WallClock(time.time() - now)
        answer = ExplainPage(
            wall.at(now),
            found.next,
            found.left_out,
            found.has_gap,
            [_batch(*each, wall, has_items=asked.items) for each in found.batches],
            [_incident(*each, wall) for each in found.incidents],
        )
        return Response(msgspec.json.encode(answer))


class _WallClock:
    """Moments on the event loop's clock as seconds of Unix time."""

    def __init__(self, offset: float) -> None:
        self._offset = offset

    def at(self, moment: float) -> float:
        return round(moment + self._offset, 6)


def _asked(query: str) -> _Asked:
    given: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    try:
        asked = msgspec.convert(given, _Asked, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the query: {error}") from None
    if asked.since < 0 or not 0 <= asked.limit <= MOST_BATCHES:
        raise InvalidInput(f"`since` is 0 or more, `limit` is 0 to {MOST_BATCHES}")
    return asked


def _batch(
    model: ModelHistory, record: BatchRecord, wall: _WallClock, *, has_items: bool
) -> ExplainedBatch:
    event, batch = record.event, record.event.batch
    if isinstance(event, BatchLost):
        ended_at, ran_s, reruns, lost = (
            event.lost_at,
            event.lost_at - batch.fired_at,
            0,
            event.reason,
        )
    else:
        ended_at, ran_s, reruns, lost = event.finished_at, event.ran_s, event.reruns, None
    predicted_s = batch.predicted_s
    return ExplainedBatch(
        number=record.number,
        model=model.model,
        version=model.version,
        batch=batch.id,
        worker=batch.worker,
        reason=batch.reason.value,
        fired_at=wall.at(batch.fired_at),
        idle_since=wall.at(batch.idle_since),
        finished_at=wall.at(ended_at),
        answered_at=wall.at(record.seen_at),
        ran_ms=_ms(ran_s),
        predicted_ms=None if predicted_s is None else _ms(predicted_s),
        rows=batch.rows,
        size=batch.size,
        padded_rows=batch.padded_rows,
        padding=round(batch.padding, 4),
        batch_cap=batch.batch_cap,
        linger_cap_ms=_ms(batch.linger_cap_s),
        reruns=reruns,
        failed=event.failed,
        lost=lost,
        count=len(batch.items),
        items=[_item(batch, item, wall) for item in batch.items] if has_items else None,
    )


def _item(batch: Batch, item: Item, wall: _WallClock) -> ExplainedItem:
    return ExplainedItem(
        id=item.id,
        arrived_at=wall.at(item.arrived_at),
        rows=item.rows,
        size=item.size,
        priority=item.priority.name.lower(),
        tenant=item.tenant,
        deadline_at=None if item.deadline == float("inf") else wall.at(item.deadline),
        queued_ms=_ms(batch.queued_s(item)),
        lingered_ms=_ms(batch.lingered_s(item)),
    )


def _incident(model: ModelHistory, record: IncidentRecord, wall: _WallClock) -> ExplainedIncident:
    kind, message = _told(record.event)
    at = wall.at(record.seen_at)
    return ExplainedIncident(record.number, model.model, model.version, at, kind, message)


def _told(event: Incident) -> tuple[str, str]:
    """Its kind, and its story for people."""
    if isinstance(event, Refused):
        return event.reason, event.message
    if isinstance(event, OutOfMemory):
        return "out_of_memory", f"batch {event.batch.id}: at most {event.limit_rows} rows from now"
    if isinstance(event, WorkerChanged):
        return f"worker_{event.state.value}", f"process {event.pid}: {event.reason}"
    if isinstance(event, Crashed):
        return "crashed", f"{type(event.error).__name__}: {event.error}"
    return "stopped", f"{event.unanswered} callers were not answered"


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
