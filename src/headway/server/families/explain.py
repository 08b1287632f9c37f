"""`/admin/explain`: the last batches and what went wrong; and why a request was slow."""

import asyncio
import heapq
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from headway.core.items import Batch, Item
from headway.core.policy import Policy, buckets_text
from headway.errors import InvalidInput, NotFound
from headway.observe.history import (
    MOST_BATCHES,
    AnswerRecord,
    BatchRecord,
    History,
    Incident,
    IncidentRecord,
    ModelHistory,
)
from headway.observe.stories import (
    RequestSeen,
    RequestStory,
    batch_line,
    lines_of,
    requests_of,
    runs_of,
    tell,
)
from headway.runtime.events import BatchLost, Crashed, OutOfMemory, Refused, WorkerChanged
from headway.server.service.routes import Route
from headway.wire.messages import Request, Response

MOST_STORIES = 50
Asked = TypeVar("Asked", "_AskedPage", "_AskedRequests")


class _AskedPage(msgspec.Struct, forbid_unknown_fields=True):
    """The query of the batches."""

    since: int = 0
    limit: int = 200
    model: str = ""
    batch: int = 0  # this one only; 0: all
    items: bool = True


class _AskedRequests(msgspec.Struct, forbid_unknown_fields=True):
    """The query of the requests: the one of this id, or the slowest."""

    id: str = ""
    slowest: int = 10
    model: str = ""


class Explain:
    """The routes and their handlers."""

    def __init__(self, history: History) -> None:
        self._history = history

    def routes(self) -> list[Route]:
        return [
            Route(
                *("GET", "/admin/explain", self.batches),
                may_compress=True,
                summary="The last batches: who was in them, why they left, where the time went",
            ),
            Route(
                *("GET", "/admin/explain/requests", self.requests),
                may_compress=True,
                summary="Why a request, or each of the slowest, took as long as it did",
            ),
        ]

    async def batches(self, request: Request) -> Response:
        asked = _asked(request.query, _AskedPage)
        if asked.since < 0 or not 0 <= asked.limit <= MOST_BATCHES:
            raise InvalidInput(f"`since` is 0 or more, `limit` is 0 to {MOST_BATCHES}")
        # In a thread: thousands of batches take a while, and requests must not.
        return await asyncio.to_thread(self._batches, asked, _is_visible(request, asked.model))

    def _batches(self, asked: _AskedPage, is_visible: Callable[[str], bool]) -> Response:
        limit = MOST_BATCHES if asked.batch else asked.limit
        found = self._history.since(asked.since, limit, is_visible=is_visible)
        chosen = [
            (model, record)
            for model, record in found.batches
            if not asked.batch or record.event.batch.id == asked.batch
        ]
        at = self._wall_clock()
        ids = _request_ids(self._history, chosen) if asked.items else None
        told = bool(asked.batch)
        return _json(
            {
                "now": at(self._history.clock()),
                "next": found.next,
                "left_out": found.left_out,
                "has_gap": found.has_gap,
                "models": [
                    {"model": each.model, "version": each.version, "settings": _settings(policy)}
                    for each in self._history.models(is_visible)
                    if (batcher := each.batcher()) is not None and (policy := batcher.policy)
                ],
                "batches": [_batch(*each, at, ids, is_told=told) for each in chosen],
                "answers": [] if told else [_answer(*each, at) for each in found.answers],
                "incidents": [] if told else [_incident(*each, at) for each in found.incidents],
            }
        )

    async def requests(self, request: Request) -> Response:
        asked = _asked(request.query, _AskedRequests)
        if not 1 <= asked.slowest <= MOST_STORIES:
            raise InvalidInput(f"`slowest` is 1 to {MOST_STORIES}")
        caller = request.caller
        sees_all = not asked.model and (caller is None or not caller.key.models)
        models = self._history.models(_is_visible(request, asked.model))
        return await asyncio.to_thread(self._requests, asked, models, sees_all=sees_all)

    def _requests(
        self, asked: _AskedRequests, models: Sequence[ModelHistory], *, sees_all: bool
    ) -> Response:
        """`sees_all`: requests that came to no model, too."""
        known = [each for each in requests_of(self._history, models) if each.items or sees_all]
        if asked.id:
            chosen = [each for each in known if each.id == asked.id]
            if not chosen:
                raise NotFound(f"request {asked.id!r} is not among the last {len(known)}")
        else:
            chosen = heapq.nlargest(asked.slowest, known, key=lambda each: each.total_s)
        at, runs = self._wall_clock(), runs_of(chosen)
        return _json(
            {
                "now": at(self._history.clock()),
                "known": len(known),
                "requests": [_story(tell(each, runs), known, at) for each in chosen],
            }
        )

    def _wall_clock(self) -> Callable[[float], float]:
        """Converts moments on the event loop's clock to seconds of Unix time."""
        offset = time.time() - self._history.clock()
        return lambda moment: round(moment + offset, 6)


def last_batches(model: ModelHistory, most_items: int, most_rows: int) -> list[dict[str, Any]]:
    """The newest batches with at most that many items and rows, oldest first, as the route gives
    them; their moments are the event loop's."""
    found: list[dict[str, Any]] = []
    for record in reversed(list(model.batches)):
        most_items -= len(record.event.batch.items)
        most_rows -= record.event.batch.rows
        if most_items < 0 or most_rows < 0:
            break
        found.append(_batch(model, record, lambda moment: moment, {}, is_told=False))
    return found[::-1]


def _is_visible(request: Request, named: str) -> Callable[[str], bool]:
    caller = request.caller
    return lambda model: named in ("", model) and (caller is None or bool(caller.may_use(model)))


def _asked(query: str, kind: type[Asked]) -> Asked:
    given: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the query: {error}") from None


def _request_ids(
    history: History, chosen: Sequence[tuple[ModelHistory, BatchRecord]]
) -> dict[tuple[int, int], str]:
    """The request of each item, by its model and its id."""
    models = list({id(model): model for model, _ in chosen}.values())
    return {
        (id(model), item): request.id
        for request in requests_of(history, models)
        for model, item in request.items
    }


def _settings(policy: Policy) -> dict[str, Any]:
    """The settings in force, as headway.toml has them."""
    return {
        "policy": policy.firing.value,
        "max_batch_size": policy.max_batch_size,
        "max_batch_cost": policy.max_batch_cost,
        "max_wait_ms": None if policy.max_wait_s is None else _ms(policy.max_wait_s),
        "max_queue": policy.max_queue,
        "slo_ms": None if policy.slo_s is None else _ms(policy.slo_s),
        "slo_percentile": policy.slo_percentile,
        "order": policy.order.value,
        "compose": policy.compose.value,
        "buckets": buckets_text(policy),
        "pad_sizes": policy.pad_sizes,
        "batch_sizes": policy.batch_sizes,
        "workers": policy.workers,
        "tenants": dict(policy.tenant_weights),
    }


def _batch(
    model: ModelHistory,
    record: BatchRecord,
    at: Callable[[float], float],
    ids: dict[tuple[int, int], str] | None,
    *,
    is_told: bool,
) -> dict[str, Any]:
    event, batch = record.event, record.event.batch
    if isinstance(event, BatchLost):
        ended_at, reruns, lost = event.lost_at, 0, event.reason
        ran_s = ended_at - batch.fired_at
    else:
        ended_at, ran_s, reruns, lost = event.finished_at, event.ran_s, event.reruns, None
    predicted_s = batch.predicted_s
    found = {
        "number": record.number,
        "model": model.model,
        "version": model.version,
        "batch": batch.id,
        "worker": batch.worker,
        "reason": batch.reason.value,
        "fired_at": at(batch.fired_at),
        "idle_since": at(batch.idle_since),
        "finished_at": at(ended_at),
        "answered_at": at(record.seen_at),
        "ran_ms": _ms(ran_s),
        "predicted_ms": None if predicted_s is None else _ms(predicted_s),
        "rows": batch.rows,
        "size": batch.size,
        "padded_rows": batch.padded_rows,
        "padding": round(batch.padding, 4),
        "batch_cap": batch.batch_cap,
        "linger_cap_ms": _ms(batch.linger_cap_s),
        "reruns": reruns,
        "failed": event.failed,
        "lost": lost,
        "count": len(batch.items),
        "items": None
        if ids is None
        else [_item(batch, item, at, ids.get((id(model), item.id))) for item in batch.items],
    }
    return {**found, "text": batch_line(record)} if is_told else found


def _item(
    batch: Batch, item: Item, at: Callable[[float], float], request_id: str | None
) -> dict[str, Any]:
    return {
        "id": item.id,
        "request": request_id,
        "arrived_at": at(item.arrived_at),
        "rows": item.rows,
        "size": item.size,
        "priority": item.priority.name.lower(),
        "tenant": item.tenant,
        "deadline_at": None if item.deadline == math.inf else at(item.deadline),
        "queued_ms": _ms(batch.queued_s(item)),
        "lingered_ms": _ms(batch.lingered_s(item)),
    }


def _answer(
    model: ModelHistory, record: AnswerRecord, at: Callable[[float], float]
) -> dict[str, Any]:
    fields = record._asdict()
    for name in ("arrived_at", "admitted_at", "first_at", "ended_at"):
        fields[name] = None if fields[name] is None else at(fields[name])
    preempted_ms = _ms(fields.pop("preempted_s"))
    return {"model": model.model, "version": model.version, **fields, "preempted_ms": preempted_ms}


def _incident(
    model: ModelHistory, record: IncidentRecord, at: Callable[[float], float]
) -> dict[str, Any]:
    kind, message = _told(record.event)
    return {
        "number": record.number,
        "model": model.model,
        "version": model.version,
        "at": at(record.seen_at),
        "kind": kind,
        "message": message,
    }


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


def _story(
    story: RequestStory, known: Sequence[RequestSeen], at: Callable[[float], float]
) -> dict[str, Any]:
    request, record = story.request, story.record
    faster = sum(each.total_s < request.total_s for each in known)
    return {
        "request": request.id,
        "what": request.what,
        "model": None if story.model is None else story.model.model,
        "version": None if story.model is None else story.model.version,
        "started_at": at(request.started_at),
        "took_ms": _ms(request.total_s),
        "code": request.code or None,
        "faster": faster,
        "batch": None if record is None else record.event.batch.id,
        "items": request.item_count,
        "parts_ms": {name: _ms(part_s) for name, part_s in story.parts.items()},
        "cause": story.cause.word,
        "why": story.cause.why,
        "advice": story.cause.advice or None,
        "text": lines_of(story),
    }


def _json(answer: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(answer))


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
