"""Callers enter the queue of a batcher here, and leave it early."""

import asyncio
import concurrent.futures
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from headway.core.items import Item, new_item
from headway.errors import Closed, DeadlineExceeded, HeadwayError, InvalidInput
from headway.runtime.batching.decider import BatchDecider
from headway.runtime.batching.fan_out import FanOut, LongCall, pieces_of
from headway.runtime.batching.making import ModelJobs
from headway.runtime.calling.inputs import CallOptions, Input, InputReader
from headway.runtime.calling.nesting import chain_here, check_not_within
from headway.runtime.driving.calls import Call, DirectCall, ThreadCall
from headway.runtime.driving.event_loop import EventLoop
from headway.runtime.driving.streams import StreamCall
from headway.runtime.events import Cancelled

_PLAIN_FIELDS = Item(0, 0.0)[2:]  # of an item whose caller set no option
_NO_BUCKET = Item(0, 0.0)[8:]  # the last field; the scheduler sets it
Follower = Callable[[tuple[int, ...]], None]


class Followers(list[Follower]):
    """Learn the ids of each call's items, in its caller's context."""

    need_context = False  # of each call: then none is direct


class Entrance:
    def __init__(
        self, decider: BatchDecider, inputs: InputReader, maker: ModelJobs, followers: Followers
    ) -> None:
        """`maker` cuts and joins values."""
        self._decider = decider
        self._shell = decider.shell
        self._queue = decider.queue
        self._inputs = inputs
        self._maker = maker
        self._followers = followers
        self._ids = decider.queue.ids

    # ---- calls without options

    def enqueue_plain(self, value: Any, loop: asyncio.AbstractEventLoop) -> Call | None:
        """The hot path: a value without options, from the batcher's own loop. None: use
        `ask`."""
        event_loop = self._shell.event_loop
        if event_loop is None or event_loop.loop is not loop or not self._decider.takes_plain:
            return None
        if chain_here():  # a model calls
            return None
        item_id = next(self._ids)
        call = Call(item_id, value, loop.create_future())
        self._shell.put((new_item((item_id, event_loop.clock(), *_PLAIN_FIELDS)), call), loop)
        if self._followers:
            self._tell_followers(call)
        return call

    def enqueue_direct(self, call: DirectCall) -> bool:
        """`enqueue_plain` for a call without a future, in a batcher with a loop of its own and
        without followers that need its context: it has none.

        False: use `ask`. (The caller guarantees that this is the batcher's loop: a check would
        cost a system call.)
        """
        shell = self._shell
        event_loop = shell.event_loop
        if event_loop is None or not self._decider.takes_plain:
            return False
        if shell.floating is not None or self._followers.need_context:
            return False
        item_id = next(self._ids)
        call.item_ids = (item_id,)
        item = new_item((item_id, event_loop.clock(), *_PLAIN_FIELDS))
        if call.tenant:
            item = item._replace(tenant=call.tenant)
        shell.put((item, call), event_loop.loop)
        return True

    # ---- calls with options

    async def ask(
        self, value: Any, loop: asyncio.AbstractEventLoop, options: CallOptions
    ) -> Call | LongCall:
        """Read one value, and queue it."""
        tenant, deadline_ms = options.tenant, options.deadline_ms
        entered_at = now_here() if self._inputs.are_prepared else None
        read = await self._read(value, entered_at, options)
        if read.rows > 1 and read.rows > self._most_rows(read.size):
            if deadline_ms is not None and entered_at is not None:
                deadline_ms -= (now_here() - entered_at) * 1e3
            return self._long_call(read, tenant, deadline_ms)
        call: Call = self._enqueue(read, loop, tenant, deadline_ms, entered_at)
        return call

    async def ask_stream(self, value: Any, entered_at: float, options: CallOptions) -> StreamCall:
        read = await self._read(value, entered_at, options, streams=True)
        tenant, deadline_ms = options.tenant, options.deadline_ms
        loop = asyncio.get_running_loop()
        call: StreamCall = self._enqueue(read, loop, tenant, deadline_ms, entered_at, streams=True)
        return call

    async def _read(
        self, value: Any, entered_at: float | None, options: CallOptions, *, streams: bool = False
    ) -> Input:
        try:  # (a `with` would cost more than the other steps together)
            if self._inputs.are_prepared:
                self._shell.check_open()
            deadline = None if entered_at is None else deadline_at(entered_at, options.deadline_ms)
            return await self._inputs.read(value, options, deadline, streams=streams)
        except HeadwayError as error:
            self._shell.report_refusal(error)
            raise

    @contextmanager
    def refusals_reported(self) -> Iterator[None]:
        """Report callers that are refused before they are queued."""
        try:
            yield
        except HeadwayError as error:
            self._shell.report_refusal(error)
            raise

    def _long_call(self, read: Input, tenant: str, deadline_ms: float | None) -> LongCall:
        maker, most = self._maker, self._most_rows(read.size)

        def enqueue(piece: tuple[int, int], left_ms: float | None) -> Any:
            value = maker.cut(read.value, *piece)
            part = read._replace(value=value, rows=piece[1] - piece[0])
            return self._enqueue(part, asyncio.get_running_loop(), tenant, left_ms, None)

        fan_out = self.fan_out(rows=most, deadline_ms=deadline_ms)
        pieces = pieces_of(read.rows, most)
        return LongCall(pieces, fan_out, enqueue, self.withdraw, maker.join, self._shell.name)

    def _most_rows(self, size: int) -> int:
        return min(self._queue.scheduler.part_rows(size), self._maker.policy.window_rows)

    def fan_out(self, *, rows: int, deadline_ms: float | None) -> FanOut:
        policy, rows = self._maker.policy, max(1, rows)
        width, a_turn = policy.window_rows // rows, policy.max_batch_size // rows
        return FanOut(self._decider.room, width=width, a_turn=a_turn, deadline_ms=deadline_ms)

    def _enqueue(
        self,
        read: Input,
        loop: asyncio.AbstractEventLoop,
        tenant: str,
        deadline_ms: float | None,
        entered_at: float | None,
        *,
        streams: bool = False,
    ) -> Any:
        """Queue one value, or raise the reason of a refusal. Returns its `Call` or `StreamCall`."""
        shell, losses = self._shell, self._decider.losses
        try:
            chain = check_not_within(self._maker, shell.name) if chain_here() else ()
            if losses.poison:
                losses.refuse_poison(read.value, read.partition)
            with shell.lock:
                event_loop = shell.choose_loop()
                now = event_loop.clock()
                item = self._item(read, now, tenant, deadline_ms, entered_at)
                call: Any
                if streams:
                    call = StreamCall(item.id, read.value, loop)
                elif event_loop.loop is loop:
                    call = Call(item.id, read.value, loop.create_future())
                else:
                    call = ThreadCall(item.id, read.value, concurrent.futures.Future())
                if chain:
                    call.chain = chain
                    self._maker.has_nested = True
                self._queue.submit(item, call)
                try:
                    shell.order_drive(event_loop)
                except Closed:
                    self._forget(call.item_ids)
                    raise
        except HeadwayError as error:
            shell.report_refusal(error)
            shell.drive_soon()  # a full queue may be a reason to start a batch that waits
            raise
        if self._followers:
            self._tell_followers(call)
        return call

    def _item(
        self,
        read: Input,
        now: float,
        tenant: str,
        deadline_ms: float | None,
        entered_at: float | None,
    ) -> Item:
        deadline = deadline_at(now if entered_at is None else entered_at, deadline_ms)
        if deadline is None:
            deadline = math.inf
        _, rows, size, priority, partition = read
        more = (rows, size, priority, tenant, deadline, partition, *_NO_BUCKET)
        return new_item((next(self._ids), now, *more))

    def _tell_followers(self, call: Call | StreamCall) -> None:
        for follower in self._followers:
            follower(call.item_ids)

    # ---- leaving early

    def withdraw(self, call: Call | DirectCall | LongCall | StreamCall) -> None:
        """The caller has left: take its items out of the queue; a running batch goes on."""
        if not call.item_ids:  # a LongCall, which withdraws its pieces itself
            return
        was_queued = self._forget(call.item_ids)
        if not was_queued:
            self._decider.tell_unwanted()
        self._shell.report(Cancelled(self._shell.name, started=not was_queued))
        self._shell.drive_soon()  # a timer or a drain may have waited for the item

    def expire(self, call: Call | StreamCall) -> None:
        """The deadline of a call has passed. In the caller's loop."""
        if call.is_done:
            return
        error = DeadlineExceeded(f"{self._shell.name} did not answer before the deadline")
        was_queued = self._forget(call.item_ids)
        call.fail(error)
        if not was_queued:
            self._decider.tell_unwanted()
        self._shell.report_refusal(error)
        self._shell.drive_soon()

    def _forget(self, item_ids: tuple[int, ...]) -> bool:
        """Take items out of the queue. Were all of them queued?"""
        with self._shell.lock:
            self._shell.take_in()
            return self._queue.cancel(item_ids)


def deadline_at(entered_at: float, deadline_ms: float | None) -> float | None:
    if deadline_ms is None:
        return None
    try:
        deadline_s = float(deadline_ms / 1e3)  # numpy's float32 would make the clock one
    except OverflowError:
        raise InvalidInput("deadline_ms is a whole number beyond every float") from None
    except (TypeError, ValueError):  # a text, a list, an array
        deadline_s = math.nan
    if math.isnan(deadline_s) or isinstance(deadline_ms, bool):
        kind = type(deadline_ms).__name__  # its repr may fail, or be very long
        raise InvalidInput(f"deadline_ms is not a number, but {kind}")
    return entered_at + deadline_s


def now_here() -> float:
    """The time on the clock of the running event loop."""
    return EventLoop(asyncio.get_running_loop()).clock()
