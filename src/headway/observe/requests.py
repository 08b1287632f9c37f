"""The last requests of a server: when each came and went, and which items it queued.

A request under way is current in its task, so that what it queues is known to be its own.
"""

import contextvars
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

MOST_REQUESTS = 8192
_TIMING = b"queue;dur=%.3f, linger;dur=%.3f, run;dur=%.3f"
_MOST_ITEMS = 64  # of one request, the last ones: its caller waited for those


def server_timing(queued_s: float, lingered_s: float, ran_s: float) -> bytes:
    """The value of the header `Server-Timing`, which browsers show."""
    queued_ms, lingered_ms = max(0.0, queued_s * 1e3), max(0.0, lingered_s * 1e3)
    return _TIMING % (queued_ms, lingered_ms, ran_s * 1e3)


class RequestNote:
    """A request that may have a task of its own."""

    __slots__ = (
        *("code", "count", "ended_at", "id", "is_stream", "items", "loaded_s", "started_at"),
        "what",
    )

    def __init__(self, request_id: str, what: str, started_at: float) -> None:
        self.id = request_id
        self.what = what  # its method and path
        self.started_at = started_at
        self.ended_at = 0.0  # its last byte left; 0: it is under way
        self.code = ""  # the error's word
        self.items: list[tuple[Any, int]] = []  # whose, and their ids
        self.count = 0
        self.is_stream = False  # its answer leaves in parts
        self.loaded_s = 0.0  # it waited for its model to be loaded

    def add(self, owner: object, item_ids: tuple[int, ...]) -> None:
        self.count += len(item_ids)
        self.items += [(owner, each) for each in item_ids]
        del self.items[:-_MOST_ITEMS]


class DirectRequest(NamedTuple):
    """A request of one item, answered without a task."""

    id: str
    item: int
    started_at: float
    ended_at: float
    code: str


_current: contextvars.ContextVar[RequestNote | None] = contextvars.ContextVar(
    "headway_request", default=None
)
current: Callable[[], RequestNote | None] = _current.get


class RequestLog:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.ended: deque[RequestNote] = deque(maxlen=MOST_REQUESTS)
        self._clock = clock

    def begin(self, request_id: str, what: str) -> RequestNote:
        """Everything that this task and its children queue from now on is this request's."""
        note = RequestNote(request_id, what, self._clock())
        _current.set(note)
        return note

    def end(self, note: RequestNote, code: str) -> None:
        """Keep it, unless it had nothing to do with a model."""
        if note.items or (code and code != "not_found"):
            note.ended_at, note.code = self._clock(), code
            self.ended.append(note)
