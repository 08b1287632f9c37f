"""Drives one `BatchDecider` in real time: its lock, inbox, timer, event loop and end.

No task runs without an event. Arrivals, work that finishes and the timer each have the decider
asked what to do, under one lock, from whatever thread they are in: a worker's thread that comes
back starts the next batch itself, however busy the event loop is. Answers, refusals and events are
delivered in the event loop, and there only. Decides nothing.
"""

import asyncio
import functools
import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from headway.core.items import Item
from headway.errors import Closed, HeadwayError, NotReady
from headway.runtime.driving.calls import Answerable, DirectCall
from headway.runtime.driving.event_loop import EventLoop, FloatingLoop
from headway.runtime.driving.timer import Timer
from headway.runtime.events import Crashed, Event, Observers, Refused, Stopped

if TYPE_CHECKING:
    from headway.runtime.batching.decider import BatchDecider, BatchDecision

Arrival: TypeAlias = tuple[Item, Any]  # with its `Answerable`
_log = logging.getLogger(__name__)


class ShellState(Enum):
    """The state of a shell. The values end the sentence that a refused caller gets."""

    NEW = "has not been started: use `async with`"
    OPENING = "is still loading"
    OPEN = "is open"
    CLOSING = "is closing"
    CLOSED = "is closed"
    CRASHED = "has crashed"
    FORKED = (
        "was opened before this process was forked, and works in its parent only: open it in the "
        "child, after the fork (in a server's start-up hook), or use @headway.batched"
    )


_ALIVE = (ShellState.OPENING, ShellState.OPEN, ShellState.CLOSING)


class Shell:
    def __init__(
        self,
        name: str,
        decider: "BatchDecider",
        observers: Observers,
        floating: FloatingLoop | None = None,
    ) -> None:
        """`floating`: finds the event loop of a shell that was not opened."""
        self.name = name
        # Guards all below, and the decider; user code never runs under it. Reentrant: a
        # thread that finds the event loop closed moves to another at once.
        self.lock = threading.RLock()
        self.observers = observers
        self.floating = floating
        self.event_loop: EventLoop | None = None
        self.crash: BaseException | None = None
        self.suspended: NotReady | None = None  # callers get this error while no work completes
        self.is_over = False
        self.inbox: deque[Arrival] = deque()  # see `put`
        self._decider = decider
        self._state = ShellState.NEW
        self._is_closing = False
        self._is_released = False
        self._drained: list[asyncio.Future[None]] = []  # waiting for the last answer
        self._drive_is_due = False
        self._timer = Timer(self.drive)

    # ---- its state

    @property
    def state(self) -> ShellState:
        return self._state

    def _enter(self, state: ShellState) -> None:
        self._state = state
        self._is_closing = state is ShellState.CLOSING
        self.is_over = state in (ShellState.CLOSED, ShellState.CRASHED, ShellState.FORKED)
        self._decider.entry_changed()

    @property
    def takes_calls(self) -> bool:
        """Is it open, and is work completing?"""
        return self._state is ShellState.OPEN and self.suspended is None

    def suspend(self, error: NotReady) -> None:
        """Under the lock: no work completes. Callers get this error until `resume`."""
        self.suspended = error
        self._decider.entry_changed()

    def resume(self) -> None:
        """Work completes again. From any thread."""
        with self.lock:
            self.suspended = None
            self._decider.entry_changed()
        self.drive_soon()

    def check_open(self) -> None:
        """Raise Closed or NotReady where a call would be refused: before anything is prepared."""
        if self._state is not ShellState.OPEN and (
            self._state is not ShellState.NEW or not self.floating
        ):
            raise self.closed()
        if self.suspended is not None:
            raise same_error(self.suspended)

    def closed(self) -> Closed:
        error = Closed(f"{self.name} {self._state.value}")
        error.__cause__ = self.crash
        return error

    # ---- opening

    def begin_opening(self) -> None:
        """Call once, before the model is loaded. Raises Closed."""
        with self.lock:
            if self._state is not ShellState.NEW:
                raise Closed(f"{self.name} {self._state.value}: make a new one")
            self._enter(ShellState.OPENING)

    def finish_opening(self, event_loop: EventLoop) -> None:
        """The model is loaded. Raises Closed if the shell was closed meanwhile."""
        with self.lock:
            if self._state is not ShellState.OPENING:
                raise Closed(f"{self.name} was closed while it was loading")
            self._open(event_loop)

    def fail_opening(self) -> None:
        self._enter(ShellState.CLOSED)

    def _open(self, event_loop: EventLoop) -> None:
        """Raises NotReady if the decider cannot start; nothing has changed then."""
        self.event_loop = event_loop
        try:
            self._decider.start(event_loop)
        except BaseException:
            self.event_loop = None
            raise
        self._enter(ShellState.OPEN)

    def after_fork(self, parent: "Shell") -> None:
        """Take the parent shell's place in the child: one that opens itself starts over."""
        state = parent.state
        if state is ShellState.NEW or (self.floating is not None and state is ShellState.OPEN):
            return
        self._enter(ShellState.FORKED if state in _ALIVE else state)
        self.crash = parent.crash

    # ---- calls arrive

    def put(self, arrival: Arrival, loop: asyncio.AbstractEventLoop) -> None:
        """The hot path, in the shell's own loop: noted without a lock, and handed to the decider
        with its neighbours when the event loop comes to `drive`.

        (The append comes before the look at the flag, and `drive` clears the flag before it looks
        at the inbox: whatever thread it is in, nothing is overlooked.)
        """
        self.inbox.append(arrival)
        if not self._drive_is_due:
            self._drive_is_due = True
            loop.call_soon(self.drive)

    def take_in(self) -> None:
        """Under the lock: hand the inbox to the decider. Before anything else looks at it."""
        if not self.inbox or self.is_over:  # `drive` refuses these calls
            return
        try:
            self._decider.accept(self.inbox)
        except Exception as bug:
            # Our bug. Not every caller of this goes through `drive`, and these callers wait.
            self.post(self.current_loop(), functools.partial(self.crashed, bug))
            raise

    def order_drive(self, event_loop: EventLoop) -> None:
        """Under the lock: have `drive` called soon for queued items. Raises Closed."""
        if self._drive_is_due:
            return
        try:
            event_loop.post(self.drive)
        except RuntimeError:  # closed just now
            raise self._loop_ended() from None
        self._drive_is_due = (
            True  # after the post: if it failed, no later call would ask for `drive`
        )

    def drive_soon(self) -> None:
        """Have `drive` called soon, after a possible change. From any thread."""
        with self.lock:
            event_loop = self.event_loop
            if self._drive_is_due or event_loop is None or self.is_over:
                return
            self._drive_is_due = True
        self.post(event_loop, self.drive)

    # ---- driving

    def drive(self) -> None:
        """Let the decider decide, and carry it out. In the event loop, after every event."""
        try:
            with self.lock:
                self._drive_is_due = False
                decision = self._decide()
        except Exception as error:  # noqa: BLE001  a bug of ours must leave no caller waiting
            self.crashed(error)
            return
        if decision is not None:
            self._decider.act(decision)
        if self._is_closing:
            self.check_drained()
        elif self.is_over:
            self._turn_away()

    def step(
        self, note: Callable[[EventLoop], bool]
    ) -> "tuple[EventLoop, BatchDecision | None] | None":
        """Call `note` under the lock, and decide. From any thread; the caller acts on the decision.
        None: `note` returned False.

        Also returns the event loop of this moment: the callers of this step are answered there,
        even if another loop takes over meanwhile.
        """
        decision, crash = None, None
        with self.lock:
            event_loop = self.current_loop()
            try:
                if not note(event_loop):
                    return None
                decision = self._decide()
            except Exception as error:  # noqa: BLE001  a bug of ours must leave no caller waiting
                crash = error
        if crash is not None:
            self.crashed(crash)
        return event_loop, decision

    def _decide(self) -> "BatchDecision | None":
        """Decide, and set the timer for later. Under the lock."""
        if self.is_over:
            return None
        self.take_in()
        decision, until = self._decider.decide(self._timer.now(self.current_loop()))
        if self._timer.is_later(until):
            self.in_loop(lambda: self._timer.arm(self.current_loop(), until))
        return decision

    # ---- the event loop

    def now(self) -> float:
        return self.current_loop().clock()

    def current_loop(self) -> EventLoop:
        assert self.event_loop is not None, "the shell is not open"
        return self.event_loop

    def choose_loop(self) -> EventLoop:
        """Under the lock: the event loop for a caller in this thread. Raises Closed."""
        self.check_open()
        self.take_in()
        if self.floating is None:
            event_loop = self.current_loop()
            if event_loop.is_closed:
                raise self._loop_ended()
            return event_loop
        self._decider.drop_lost()
        event_loop = self.floating.choose(self.event_loop, idle=self._decider.is_idle)
        if event_loop is not self.event_loop:
            self._move(event_loop)
        return event_loop

    def _move(self, event_loop: EventLoop) -> None:
        old = self.event_loop
        if self._state is ShellState.NEW:
            self._open(event_loop)
        elif old is not None and old.is_virtual is not event_loop.is_virtual:
            self._decider.move(event_loop)
        self.event_loop = event_loop
        self._timer.leave()
        self._drive_is_due = not self._decider.is_idle
        if self._drive_is_due:
            for call in self._decider.unanswered():
                call.detach()
            event_loop.post(self.drive)

    def _loop_ended(self) -> Closed:
        return Closed(f"{self.name}: its event loop has ended")

    def in_loop(self, callback: Callable[[], None]) -> None:
        """Run it now if this is the event loop, else post it there."""
        event_loop = self.event_loop
        if event_loop is None:
            callback()
        else:
            self.run_in(event_loop, callback)

    def run_in(self, event_loop: EventLoop, callback: Callable[[], None]) -> None:
        if event_loop.is_here:
            callback()
        else:
            self.post(event_loop, callback)

    def post(self, event_loop: EventLoop, callback: Callable[[], None]) -> None:
        """Run it in that loop. If that loop is gone, callers in other loops still get answers."""
        try:
            event_loop.post(callback)
            return
        except RuntimeError:
            if self.floating is None or self._state is ShellState.CLOSED:
                callback()
                return
        try:
            with self.lock:
                if self.event_loop is event_loop:
                    self._move(self.floating.refuge())
                event_loop = self.current_loop()
        except NotReady:  # no thread can be started: run it in this one
            callback()
            return
        event_loop.post(callback)

    # ---- events

    def report(self, event: Event) -> None:
        """From any thread; does nothing without observers."""
        if self.observers:
            self.in_loop(functools.partial(self.observers.emit, event))

    def report_refusal(self, error: HeadwayError) -> None:
        if self.observers:
            self.report(Refused(self.name, error.code, str(error)))

    # ---- the end

    async def close(self, drain_s: float | None) -> None:
        """Refuse new calls, drain, answer the remaining ones with `Closed`, release the workers."""
        drained = asyncio.get_running_loop().create_future()
        with self.lock:
            if self._state is ShellState.FORKED:
                return  # it runs in the parent process only
            if self._state in (ShellState.NEW, ShellState.OPENING, ShellState.CLOSED):
                self._enter(ShellState.CLOSED)  # a thread that is loading will see this state
                return
            if self._state is ShellState.OPEN:
                self.take_in()
                self._enter(ShellState.CLOSING)
                self._decider.drain()
            if self._state is ShellState.CLOSING:
                self._drained.append(drained)
            else:  # crashed: all callers have been answered
                drained.set_result(None)
        self.in_loop(self.drive)
        try:
            async with asyncio.timeout(drain_s):
                await drained
        except TimeoutError:
            pass
        finally:  # also when closing itself is cancelled
            self._release()

    def check_drained(self) -> None:
        """After each answer: if it was the last one while closing, `close` goes on."""
        if not self._is_closing:
            return
        with self.lock:
            if not self._decider.is_drained:
                return
            drained, self._drained = self._drained, []
        _wake(drained)

    def _release(self) -> None:
        with self.lock:
            if self._is_released:
                return
            self._is_released = True
            if self._state is ShellState.CLOSING:
                self._enter(ShellState.CLOSED)
            left = self._take_unanswered()
            drained, self._drained = self._drained, []
        self._decider.stop()
        self.in_loop(functools.partial(self._tell_stopped, left))
        _wake(drained)  # other callers of close

    def _tell_stopped(self, left: list[Answerable]) -> None:
        self._timer.disarm()
        for call in left:
            call.fail(Closed(f"{self.name} stopped before this was answered"))
        self.observers.emit(Stopped(self.name, len(left)))
        if self.floating is not None:
            self.floating.close()

    def _take_unanswered(self) -> list[Answerable]:
        """Under the lock: all unanswered calls, in the inbox, queued or running."""
        left = [*self._empty_inbox(), *self._decider.unanswered()]
        self._decider.forget()
        return left

    def _empty_inbox(self) -> list[Answerable]:
        calls: list[Answerable] = []
        with suppress(IndexError):
            while True:  # one by one: others append meanwhile
                calls.append(self.inbox.popleft()[1])
        return calls

    def _turn_away(self) -> None:
        """Refuse calls that `put` appended just as the shell ended."""
        for call in self._empty_inbox():
            error = self.closed()
            if not isinstance(call, DirectCall):
                call.detach()  # answer in the caller's own loop; the shell's may have ended
            call.fail(error)
            self.report_refusal(error)

    def crashed(self, error: Exception) -> None:
        """A bug of ours: answer every caller with an error, and stay broken. From any thread."""
        with self.lock:
            if self._state is ShellState.CRASHED:
                return
            self.crash = error
            self._enter(ShellState.CRASHED)
            calls = self._take_unanswered()
            drained, self._drained = self._drained, []
        _log.critical("%s crashed; every caller is answered with Closed", self.name, exc_info=error)
        self.in_loop(functools.partial(self._tell_crashed, calls, error))
        _wake(drained)

    def _tell_crashed(self, calls: list[Answerable], error: Exception) -> None:
        for call in calls:
            failure = Closed(f"{self.name} crashed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            call.fail(failure)
        self.observers.emit(Crashed(self.name, error))


def same_error(error: NotReady) -> NotReady:
    """A copy for one caller: a shared exception would collect all tracebacks."""
    return NotReady(str(error), retry_after_s=error.retry_after_s)


def _wake(futures: "list[asyncio.Future[None]]") -> None:
    for future in futures:
        with suppress(RuntimeError):  # its loop is closed: no caller waits any more
            future.get_loop().call_soon_threadsafe(_set_done, future)


def _set_done(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
