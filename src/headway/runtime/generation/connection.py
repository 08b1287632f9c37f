"""The front's end of the connection to an engine, and a watch on it. In the event loop; nothing
waits."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from headway.runtime.generation.loop import Command
from headway.runtime.workers.process.channel import Channel, Unreadable
from headway.runtime.workers.process.handle import ModelProcess
from headway.runtime.workers.process.protocol import Kind

_log = logging.getLogger(__name__)
_STOPPED_S = 5.0  # a timer is this late only if this process was stopped


class EngineConnection:
    """The connection to one engine. Messages that cannot be sent now are sent later."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        process: ModelProcess,
        channel: Channel,
        hear: Callable[[Any], None],
    ) -> None:
        self.process = process
        self.is_welcome = False
        self._loop = loop
        self._channel = channel
        self._hear = hear
        self._outbox: deque[Command] = deque()
        self._is_reading = True
        loop.add_reader(channel.fileno(), self._read)

    def say(self, command: Command) -> None:
        self._outbox.append(command)
        if len(self._outbox) == 1:
            self._flush()

    def drain(self) -> None:
        """The process has ended: read its last messages."""
        while self._read():
            pass

    def close(self) -> None:
        self._stop_reading()
        self._loop.remove_writer(self._channel.fileno())
        self._outbox.clear()
        self._channel.close()

    def _read(self) -> bool:
        """Read one message, if there is one: the event loop calls again for the next."""
        try:
            word = self._channel.receive().value
        except BlockingIOError:
            return False
        except (EOFError, OSError):  # its worker tells why
            self._stop_reading()
            return False
        except Unreadable as error:
            _log.error(
                "%s: a message of the engine cannot be decoded", self.process.name, exc_info=error
            )
            self.process.kill("sent a message that cannot be decoded")
            self._stop_reading()
            return False
        self._hear(word)
        return True

    def _stop_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._channel.fileno())

    def _flush(self) -> None:
        try:
            while self._outbox:
                self._channel.send(Kind.WORD, 0, self._outbox[0])
                self._outbox.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._channel.fileno(), self._flush)
            return
        except OSError:  # it is gone: its sequences are resumed elsewhere
            self._outbox.clear()
        self._loop.remove_writer(self._channel.fileno())


class SilenceWatch:
    """Ends an engine that sends nothing for too long."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limit_s: float | None,
        is_late: Callable[[float], bool],
    ) -> None:
        self._loop = loop
        self._limit_s = limit_s
        self._is_late = is_late
        self._heard_at = 0.0
        self._due_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """From now on a message of the engine is expected."""
        if self._timer is None and self._limit_s is not None:
            self._heard_at = time.monotonic()
            self._look_in(self._limit_s)

    def heard(self) -> None:
        self._heard_at = time.monotonic()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_in(self, seconds: float) -> None:
        self._due_at = time.monotonic() + seconds
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        assert self._limit_s is not None
        self._timer = None
        now = time.monotonic()
        if now > self._due_at + _STOPPED_S:  # this process was stopped; perhaps the engine, too
            self._heard_at = now
        left = self._heard_at + self._limit_s - now
        if left > 0:
            self._look_in(left)
        else:
            self._is_late(self._limit_s)
