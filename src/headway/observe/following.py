"""Which request an item came from. Only where it is needed (access logs, traces): following calls
costs a little for each of them.

A request is held by the code that serves it. What is noted of it here goes when it goes, however it
ends; so nothing has to be cleaned up. While one of its items runs it is held here, too: the reader
of a stream may have all of it before its batch is over.
"""

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

from headway.core.items import Item
from headway.runtime.events import BatchFinished, BatchLost, BatchStarted, Event, ObservedBatcher

Request = TypeVar("Request")
Follower: TypeAlias = Callable[[tuple[int, ...]], None]


class Following(Generic[Request]):
    """The requests whose items are queued or running in one batcher."""

    def __init__(
        self,
        current: Callable[[], Request | None],
        finished: Callable[[BatchFinished, list[tuple[Item, Request]], Any], None],
        started: Callable[[BatchStarted, list[tuple[Item, Request]]], Any] = lambda event, found: (
            None
        ),
    ) -> None:
        """`current`: the request that is being served just here; `started` and `finished`: called
        with each batch and those of its items that belong to a request. What the first returns, the
        second is given."""
        self._current = current
        self._finished = finished
        self._started = started
        self._requests: weakref.WeakValueDictionary[int, Request] = weakref.WeakValueDictionary()
        self._running: dict[int, tuple[list[tuple[Item, Request]], Any]] = {}  # by batch

    def follow(self, batcher: ObservedBatcher) -> None:
        batcher.follow(self._queued)
        batcher.observe(self._observe)

    def _queued(self, item_ids: tuple[int, ...]) -> None:
        request = self._current()
        if request is not None:
            for item_id in item_ids:
                self._requests[item_id] = request

    def _observe(self, event: Event) -> None:
        if isinstance(event, BatchStarted):
            self._start(event)
        elif isinstance(event, BatchFinished):
            found, about = self._running.pop(event.batch.id, ([], None))
            if found:
                self._finished(event, found, about)
        elif isinstance(event, BatchLost):  # its items run again
            found, _ = self._running.pop(event.batch.id, ([], None))
            self._requests.update({item.id: request for item, request in found})

    def _start(self, event: BatchStarted) -> None:
        requests = self._requests
        found = [
            (item, request)
            for item in event.batch.items
            if (request := requests.pop(item.id, None)) is not None
        ]
        if found:
            self._running[event.batch.id] = found, self._started(event, found)
