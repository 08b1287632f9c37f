"""The event loop that drives a batcher: where its timers run and its answers are delivered.

A batcher opened with `async with` lives in the loop that opened it. One behind `@batched` has no
such owner; `FloatingLoop` finds it a loop (see its docstring).
"""

import asyncio
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

from headway.errors import NotReady
from headway.runtime.calling.threads import start_thread


class EventLoop:
    """One event loop, as seen from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.is_virtual: bool = getattr(loop, "is_virtual", False)
        # A real loop's clock may be coarse (uvloop: 1 ms); gaps of 0.1 ms matter here.
        self.clock: Callable[[], float] = loop.time if self.is_virtual else time.monotonic

    @property
    def is_here(self) -> bool:
        return asyncio._get_running_loop() is self.loop

    @property
    def is_closed(self) -> bool:
        return self.loop.is_closed()

    def post(self, callback: Callable[[], object]) -> None:
        """Run the callback in the loop soon. From any thread.

        Raises RuntimeError if the loop is closed.
        """
        if asyncio._get_running_loop() is self.loop:
            self.loop.call_soon(callback)
        else:
            self.loop.call_soon_threadsafe(callback)


class BackgroundLoop:
    """An event loop in a daemon thread, for callers of several loops and threads.

    The thread only references the loop, so it ends when its batcher is garbage collected.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        try:
            self._thread = start_thread(_run, self.loop, name=name)
        except NotReady:
            self.loop.close()
            raise
        # Only once: a second stop would interrupt `_finish_tasks`.
        self._stop_once = weakref.finalize(self, _stop, self.loop)
        self._stop_once.atexit = False

    def stop(self, timeout_s: float = 5.0) -> None:
        """End the thread. Harmless when called twice."""
        self._stop_once()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    with suppress(RuntimeError):  # it is closed already
        loop.call_soon_threadsafe(loop.stop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        _finish_tasks(loop)
    finally:
        loop.close()


def _finish_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Threads wait for these tasks (`call`), which have been answered and must run to their end."""
    left = asyncio.all_tasks(loop)
    if left:
        _, left = loop.run_until_complete(asyncio.wait(left, timeout=1.0))
    for task in left:  # not before: it would also cancel tasks that have their answer
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=1.0))
    loop.run_until_complete(asyncio.sleep(0))  # callbacks of tasks that ended


class FloatingLoop:
    """Chooses the loop for a batcher that was not opened.

    It is the caller's own loop while all callers share one: no thread is crossed. As soon as a
    second loop or a plain thread calls in while work is pending, it is a loop of our own, so that
    no caller depends on another caller's loop staying alive. With nothing pending, the next may
    take it over.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._background: BackgroundLoop | None = None

    def choose(self, current: EventLoop | None, *, idle: bool) -> EventLoop:
        """The loop of the batcher, now that this thread calls."""
        here = asyncio._get_running_loop()
        if current is not None and current.loop is here:
            return current
        if here is not None and (current is None or idle or current.is_closed):
            return EventLoop(here)
        if current is not None and self._is_background(current):
            return current
        return EventLoop(self._background_loop())

    def refuge(self) -> EventLoop:
        """A loop that is certain to run."""
        return EventLoop(self._background_loop())

    def close(self) -> None:
        if self._background is not None:
            self._background.stop()

    def _is_background(self, event_loop: EventLoop) -> bool:
        return self._background is not None and event_loop.loop is self._background.loop

    def _background_loop(self) -> asyncio.AbstractEventLoop:
        if self._background is None:
            self._background = BackgroundLoop(self._name)
        return self._background.loop
