"""Feeds one request of many values or rows to the queue, as the queue has room.

The first value decides whether the request is accepted. From then on a full queue, or an SLO that
cannot be kept just now, only holds the next values back. One deadline holds for all of them.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from headway.errors import DeadlineExceeded, HeadwayError, QueueFull, Shed
from headway.runtime.batching.room import Room
from headway.runtime.driving.calls import Call, Ran
from headway.runtime.jobs.rerunning import unusable

In = TypeVar("In")
Out = TypeVar("Out")
_NEVER = -1


class TurnPace:
    """Limits the calls that begin in one turn of the event loop, so that others get turns."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most
        self._is_counting = False
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._is_counting:
            self._is_counting = True
            loop.call_soon(self._turn)
        if self._left:
            self._left -= 1
            return
        waiter = loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def _turn(self) -> None:
        self._left = self._most
        while self._left and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._left -= 1
        self._is_counting = bool(self._waiters)
        if self._is_counting:
            asyncio.get_running_loop().call_soon(self._turn)


class FanOut:
    """`width` is how many values are under way at a time, `a_turn` how many of them begin in one
    turn of the event loop."""

    def __init__(
        self, room: Room, *, width: int, a_turn: int, deadline_ms: float | None = None
    ) -> None:
        self._room = room
        self._pace = TurnPace(max(1, a_turn))
        self._width = max(1, width)
        # with a numpy float32, the clock would become one
        self._deadline_ms = None if deadline_ms is None else float(deadline_ms)
        self._ends_at: float | None = None
        self._is_begun = False
        self._is_accepted = False
        self._under_way = 0
        self._refused_at = _NEVER  # the number of batches started at the last refusal
        self._gate = asyncio.Lock()  # only one of the waiting tasks watches for room

    async def gather(
        self,
        call: Callable[[In, float | None], Awaitable[Out]],
        values: Sequence[In],
        *,
        keep_errors: bool = False,
    ) -> list[Out | HeadwayError]:
        """The results of `call(value, milliseconds left)`, in order.

        The first error withdraws the other values and is raised; with `keep_errors` it takes its
        value's place, unless it refuses the whole request.
        """
        late = DeadlineExceeded("the deadline passed before all of the request was answered")
        results: list[Out | HeadwayError] = [late] * len(values)
        todo = iter(enumerate(values))
        answer = self._answer_or_error if keep_errors else self._answer

        async def feed() -> None:
            for index, value in todo:
                results[index] = await answer(call, value)

        try:
            async with asyncio.timeout(self._limit_s()) as limit:
                self._ends_at = limit.when()
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(len(values), self._width)):
                        group.create_task(feed())
        except TimeoutError:
            if not keep_errors:
                raise late from None
        except BaseExceptionGroup as errors:
            error = errors.exceptions[0]
            raise error from error.__cause__
        return results

    async def _answer_or_error(
        self, call: Callable[[In, float | None], Awaitable[Out]], value: In
    ) -> Out | HeadwayError:
        try:
            return await self._answer(call, value)
        except HeadwayError as error:
            if isinstance(error, QueueFull | Shed) and not self._is_accepted:
                raise  # the whole request is refused
            # It is returned, not raised again: its traceback would be kept for each of many
            # thousands of values, and slow down every garbage collection.
            error.__traceback__ = error.__cause__ = error.__context__ = None
            return error

    async def _answer(self, call: Callable[[In, float | None], Awaitable[Out]], value: In) -> Out:
        while True:
            await self._pace.wait()
            await self._wait_turn()
            self._under_way += 1
            try:
                result = await call(value, self._left_ms())
            except (QueueFull, Shed):
                self._refused_at = self._room.starts
                if self._under_way == 1 and (not self._is_accepted or self._room.is_idle):
                    raise  # no event will come that could make room
            else:
                self._is_accepted = True
                return result
            finally:
                self._under_way -= 1

    async def _wait_turn(self) -> None:
        if not self._is_begun:
            self._is_begun = True
            return
        if self._room.has_some(self._refused_at):
            return
        async with self._gate:
            if not self._room.has_some(self._refused_at):
                await self._room.wait(self._refused_at)

    def _limit_s(self) -> float | None:
        deadline_ms = self._deadline_ms
        if deadline_ms is None or not math.isfinite(deadline_ms):
            return None
        return deadline_ms / 1e3

    def _left_ms(self) -> float | None:
        if self._ends_at is None:
            return self._deadline_ms
        return max(0.001, (self._ends_at - asyncio.get_running_loop().time()) * 1e3)


class LongCall:
    """The call of a value with more rows than a batch. Its pieces are queued as there is room, run
    separately, and their results are joined."""

    def __init__(
        self,
        pieces: Sequence[tuple[int, int]],  # rows from, and up to
        fan_out: FanOut,
        enqueue: Callable[[tuple[int, int], float | None], Call],
        withdraw: Callable[[Call], None],
        join: Callable[[list[Any]], Any],
        name: str,
    ) -> None:
        self.item_ids: tuple[int, ...] = ()  # its pieces have their own
        self.ran: tuple[Ran, ...] = ()
        self._answered_ids: list[int] = []
        self._pieces = pieces
        self._fan_out = fan_out
        self._enqueue = enqueue
        self._withdraw = withdraw
        self._join = join
        self._name = name

    async def answer(self) -> Any:
        results = await self._fan_out.gather(self._answer, self._pieces)
        self.item_ids = tuple(self._answered_ids)
        try:
            return self._join(results)
        except Exception as error:  # the model's results do not fit together
            raise unusable(self._name, error) from error

    async def _answer(self, piece: tuple[int, int], left_ms: float | None) -> Any:
        call = self._enqueue(piece, left_ms)
        try:
            result = await call.answer()
        except asyncio.CancelledError:
            self._withdraw(call)
            raise
        self.ran += call.ran
        self._answered_ids += call.item_ids
        return result


def pieces_of(rows: int, most: int) -> list[tuple[int, int]]:
    """The bounds of near-equal pieces of at most `most` rows: the first row, and the row after.

    Near-equal, because 65 rows as 33 + 32 finish earlier than as 64 + 1.
    """
    count = -(-rows // most)
    ends = [-(-rows * number // count) for number in range(1, count + 1)]
    return list(zip([0, *ends], ends, strict=False))
