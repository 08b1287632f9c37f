"""Starts the processes that models will run in, and keeps one more ready.

An interpreter with numpy and headway takes a third of a second to start. A worker that was lost is
replaced by the spare one at once; the next spare is started when things have calmed down.

All are started by one thread that never ends: the kernel's promise to end a child with its parent
is given for the thread that started it.
"""

import functools
import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from headway.runtime.calling.threads import start_thread
from headway.runtime.forking import left_behind, tell_when_forked
from headway.runtime.workers.process import control
from headway.runtime.workers.process.channel import Channel, pair
from headway.runtime.workers.process.control import ControlPage
from headway.runtime.workers.process.protocol import Kind

_log = logging.getLogger(__name__)

_ROOT = str(Path(__file__).parents[4])
_PROGRAM = (
    f"import sys; sys.path.insert(0, {_ROOT!r}); "
    "from headway.runtime.workers.process.child import main; main(sys.argv[1:])"
)


class Spawned(NamedTuple):
    """A process that waits for its spec."""

    process: "subprocess.Popen[bytes]"
    channel: Channel
    page: ControlPage

    @property
    def outputs(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        return self.process.stdout, self.process.stderr

    def discard(self) -> None:
        """End a process that has no model yet."""
        self.channel.close()
        self.process.kill()
        self.process.wait()
        for output in self.outputs:
            output.close()


class Spawner:
    """The spare process for all models. `enter` and `leave` count the workers that may need it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._spare: Spawned | None = None
        self._imported: set[str] = set()  # by the spare one
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def after_fork(self) -> None:
        """In the child: thread, spare process and users are the parent's."""
        left_behind.append((self._thread, self._spare, self._tasks))
        self.__init__()  # type: ignore[misc]

    def enter(self) -> None:
        """Count one more user. Raises NotReady if no thread can be started."""
        with self._lock:
            if self._thread is None:
                self._thread = start_thread(self._run, name="headway-spawner")
            self._users += 1

    def leave(self) -> None:
        """Count one user less. After the last one, the spare process ends."""
        with self._lock:
            self._users -= 1
            spare, self._spare = (None, self._spare) if self._users else (self._spare, None)
        if spare is not None:
            spare.discard()

    def take(self) -> Spawned:
        """The spare process, or a new one. Raises OSError if none can be started."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            if spare.process.poll() is None:
                return spare
            spare.discard()
        return self._in_thread(_spawn)

    def refill(self, imports: Sequence[str] = ()) -> None:
        """Start another spare process soon, with these modules imported."""
        self._tasks.put(functools.partial(self._start_spare, imports))

    def _start_spare(self, imports: Sequence[str]) -> None:
        with self._lock:
            is_wanted = self._spare is None and self._users
        with suppress(OSError):  # no memory, or too many processes: go on without a spare
            spare = _spawn() if is_wanted else None
            with self._lock:
                if spare is not None and self._users:
                    self._spare, spare = spare, None
                    self._imported = set()
                self._have_imported(imports)
            if spare is not None:
                spare.discard()

    def _have_imported(self, imports: Sequence[str]) -> None:
        """Under the lock: the user that takes it has not yet sent it its model."""
        missing = [name for name in imports if name not in self._imported]
        if missing and self._spare is not None:
            self._spare.channel.send(Kind.IMPORT, 0, missing)
            self._imported.update(missing)

    def _in_thread(self, function: Callable[[], Spawned]) -> Spawned:
        future: Future[Spawned] = Future()

        def task() -> None:
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001  waiting threads must hear of it
                future.set_exception(error)

        self._tasks.put(task)
        return future.result()

    def _run(self) -> None:
        while True:
            try:
                self._tasks.get()()
            except Exception:  # noqa: BLE001  every lost worker of every model waits for this thread
                _log.exception("the spare process could not be started")


def _spawn() -> Spawned:
    ours, theirs = pair()
    page, page_fd = control.create()
    arguments = theirs.fileno(), page_fd, os.getpid()
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            pass_fds=(theirs.fileno(), page_fd),
            start_new_session=True,  # a group of its own: what it starts ends with it
        )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
        os.close(page_fd)
    return Spawned(process, Channel(ours), page)


SPAWNER = Spawner()
tell_when_forked(SPAWNER)
