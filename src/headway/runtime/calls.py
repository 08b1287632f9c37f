"""One caller and its answer. A call is answered in one place, once, whatever happens meanwhile."""

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, cast

from headway.core.items import Batch, Item
from headway.errors import Shed
from headway.model import END

MAX_BACKLOG = 4096  # chunks a stream's reader may leave unread before it is cut off


class Answerable(Protocol):
    """What a batch needs of the callers in it."""

    value: Any
    batch: Batch | None

    @property
    def is_done(self) -> bool: ...

    def succeed(self, result: Any) -> None: ...

    def fail(self, error: BaseException) -> None: ...


class Call:
    """One value and the future of its result, for a caller in the batcher's own event loop."""

    __slots__ = ("batch", "future", "item_ids", "value")

    def __init__(self, item_id: int, value: Any, future: Any) -> None:
        self.item_ids: tuple[int, ...] = (item_id,)  # several once it has been split
        self.value = value
        self.future = future
        self.batch: Batch | None = None  # once it has run: to explain the wait

    @property
    def is_done(self) -> bool:
        return bool(self.future.done())

    def answer(self) -> Awaitable[Any]:
        return cast(Awaitable[Any], self.future)

    def succeed(self, result: Any) -> None:
        future = self.future
        if not future.done():
            future.set_result(result)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class ThreadCall(Call):
    """The same for a caller in another event loop: its future may be cancelled at any moment."""

    __slots__ = ()

    def answer(self) -> Awaitable[Any]:
        return asyncio.wrap_future(self.future)

    def succeed(self, result: Any) -> None:
        with suppress(concurrent.futures.InvalidStateError):
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        with suppress(concurrent.futures.InvalidStateError):
            self.future.set_exception(error)


class SplitCall:
    """A request of more rows than a batch: its parts run separately and are joined again."""

    def __init__(
        self,
        whole: Call,
        parts: Sequence[Item],
        join: Callable[[list[Any]], Any],
        forget: Callable[[tuple[int, ...]], object],
    ) -> None:
        self._whole = whole
        self._parts = tuple(part.id for part in parts)
        self._join = join
        self._forget = forget
        self._results: list[Any] = [None] * len(parts)
        self._missing = len(parts)

    @property
    def is_done(self) -> bool:
        return self._whole.is_done

    def part_succeeded(self, number: int, result: Any, batch: Batch | None) -> None:
        self._results[number] = result
        self._missing -= 1
        if self._missing == 0:
            self._whole.batch = batch
            self._whole.succeed(self._join(self._results))

    def part_failed(self, error: BaseException) -> None:
        """The request fails with its first part; those that have not run never will."""
        if not self.is_done:
            self._whole.fail(error)
            self._forget(self._parts)


class PartCall:
    """One part of a split request, as its batch sees it."""

    __slots__ = ("_number", "_request", "batch", "value")

    def __init__(self, request: SplitCall, number: int, value: Any) -> None:
        self._request = request
        self._number = number
        self.value = value
        self.batch: Batch | None = None

    @property
    def is_done(self) -> bool:
        return self._request.is_done

    def succeed(self, result: Any) -> None:
        self._request.part_succeeded(self._number, result, self.batch)

    def fail(self, error: BaseException) -> None:
        self._request.part_failed(error)


class StreamCall:
    """One value and the chunks of its answer, read by one caller in that caller's event loop."""

    def __init__(self, item_id: int, value: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.item_ids = (item_id,)
        self.value = value
        self.batch: Batch | None = None
        self.is_abandoned = False  # the reader left
        self._loop = loop
        self._chunks: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._ended = False

    @property
    def is_done(self) -> bool:
        return self._ended or self.is_abandoned

    # From any thread.

    def push(self, entry: Any) -> None:
        """One entry of a step: a chunk, None for nothing, END, or this item's own error."""
        if entry is not None and not self.is_done:
            self._in_loop(lambda: self._take(entry))

    def succeed(self, result: Any) -> None:
        self._in_loop(lambda: self._end(None))

    def fail(self, error: BaseException) -> None:
        self._in_loop(lambda: self._end(error))

    # In the reader's loop.

    async def wait_chunk(self) -> Any:
        """The next chunk; END when there is none; raises what went wrong."""
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self._ended:
                return END
            self._waiter = self._loop.create_future()
            await self._waiter
        return self._chunks.popleft()

    def _take(self, entry: Any) -> None:
        if self.is_done:
            return
        if entry is END:
            self._end(None)
        elif isinstance(entry, Exception):
            self._end(entry)
        elif len(self._chunks) >= MAX_BACKLOG:
            self._chunks.clear()
            self._end(Shed(f"the reader fell {MAX_BACKLOG} chunks behind its stream"))
        else:
            self._chunks.append(entry)
            self._wake()

    def _end(self, error: BaseException | None) -> None:
        if not self.is_done:
            self._ended, self._error = True, error
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _in_loop(self, callback: Callable[[], None]) -> None:
        if asyncio._get_running_loop() is self._loop:
            callback()
            return
        with suppress(RuntimeError):  # the reader's loop is closed: nobody reads any more
            self._loop.call_soon_threadsafe(callback)
