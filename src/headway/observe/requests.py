"""The last requests of a server: when each came and went, and which items it queued.

A request under way is current in its task, so that what it queues is known to be its own.
"""

import contextvars
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

MOST_REQUESTS = 8192
_MOST_ITEMS = 64  # of one request, the last ones: its caller waited for those


class RequestNote:
    """A request that may have a task of its own."""

    __slots__ = ("code", "count", "ended_at", "id", "items", "loaded_s", "started_at", "what")

    def __init__(self, request_id: str, what: str, started_at: float) -> None:
        self.id = request_id
        self.what = what  # its method and path
        self.started_at = started_at
        self.ended_at = 0.0  # its last byte left; 0: it is under way
        self.code = ""  # the error's word
        self.items: list[tuple[Any, int]] = []  # whose, and their ids
        self.count = 0
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
    """The requests that have ended."""

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
