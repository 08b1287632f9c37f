"""The batcher's side of one model process: its calls, its output, its heart, its end.

Calls come from one thread. A second thread watches: it logs what the process prints, ends it when
its heart stops, and reaps it; it ends with the process.
"""

import functools
import logging
import os
import pickle
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from headway.errors import HeadwayError, ModelFailed, NotReady
from headway.model import CANCEL
from headway.runtime.calling.faults import WorkerLost, ended_out_of_memory, is_out_of_memory
from headway.runtime.calling.threads import start_thread
from headway.runtime.jobs.cancel_token import BatchCancel
from headway.runtime.workers.process.channel import Channel, ProcessMessage, Unreadable, Unsendable
from headway.runtime.workers.process.failures import Failure, error_of
from headway.runtime.workers.process.heartbeat import TICK_S, Heart, vitals_of
from headway.runtime.workers.process.output import ProcessOutput
from headway.runtime.workers.process.protocol import Kind, WorkerSpec
from headway.runtime.workers.process.spawning import Spawned

_log = logging.getLogger(__name__)
_REAP_S = 5.0  # from the end of the connection to the end of the process
_MOST_CALLS = 2**32 - 1  # their numbers have four bytes, and 0 is no call


class LoadFailed(Exception):
    """The process could not become the model. Its `__cause__` is the model's own error, if any."""


class ModelProcess:
    """One process and its model. `wait_ready` first; then calls, one at a time."""

    def __init__(
        self,
        spawned: Spawned,
        spec: WorkerSpec,
        *,
        execute_timeout_s: float | None,
        heartbeat_timeout_s: float,
        on_end: Callable[[], None],  # called once, in the watching thread
    ) -> None:
        self.pid = spawned.process.pid
        self.name = spec.name
        self._process = spawned.process
        self._channel = spawned.channel
        self._page = spawned.page
        self._limit_s = execute_timeout_s
        self._heart = Heart(heartbeat_timeout_s)
        self.has_answered = False  # a call
        self.jobs = 0  # given to it, this one included
        self._is_ready = False
        self._call = 0
        self._kill_reason: str | None = None
        self._stderr_lines: list[str] = []
        self._oom_kills = _oom_kills()
        self._has_ended = threading.Event()
        self._on_end = on_end
        self._pidfd = os.pidfd_open(self.pid)
        self._lock = threading.Lock()  # of the pidfd, which is closed at the end
        try:
            start_thread(self._watch, name=f"headway-watch-{self.pid}")
        except NotReady as error:
            os.close(self._pidfd)
            spawned.discard()
            spawned.page.close()
            raise LoadFailed(f"cannot be watched: {error}") from error
        with suppress(OSError):  # gone already: `wait_ready` raises
            self._channel.send(Kind.SPEC, 0, spec)

    # ---- calls

    def wait_ready(self, timeout_s: float | None) -> None:
        """Raises LoadFailed; the process is ended then."""
        self._channel.set_timeout(timeout_s)
        try:
            message = self._channel.receive()
        except TimeoutError:
            self.kill(f"load() took longer than {timeout_s:g} s")
            raise LoadFailed(self.reason) from None
        except (EOFError, OSError):
            raise LoadFailed(self.reason) from None
        if message.kind != Kind.READY:
            self.kill("load() failed")
            error = error_of(message.value)
            raise LoadFailed(f"{type(error).__name__}: {error}") from error
        self._channel.set_timeout(self._limit_s)
        self._is_ready = True

    def predict(self, value: Any, /, **keywords: Any) -> Any:
        """The model's answer. Raises the model's error, or WorkerLost."""
        call = self._begin(Kind.PREDICT, value, keywords)
        message = self._receive(call)
        self.has_answered = True
        if message.kind == Kind.RESULT:
            return message.value
        if message.kind == Kind.RESULT_WITH_FAILURES:
            return _restored(message.value)
        error = error_of(message.value)
        if self.jobs > 1 and is_out_of_memory(error) and _rows(value) == 1:
            # Earlier jobs may have leaked memory: try again in a new process.
            self.kill(f"ran out of memory on one row ({type(error).__name__}: {error})")
            self.wait_end(_REAP_S)
            raise WorkerLost(self.reason, out_of_memory=True)
        raise error

    def stream(self, value: Any, /, **keywords: Any) -> Iterator[Any]:
        """The model's steps, as they come. If it is closed early, the model is stopped."""
        call = self._begin(Kind.STREAM, value, keywords)
        is_over = False
        try:
            while True:
                message = self._receive(call)  # the limit is each step's
                is_over = message.kind != Kind.STEP
                if message.kind == Kind.END:
                    self.has_answered = True
                    return
                if message.kind == Kind.FAILURE:
                    raise error_of(message.value)
                has_failures, entries = message.value
                yield _restored(entries) if has_failures else entries
        finally:
            if not is_over and not self._has_ended.is_set():
                self._page.cancel(call)
                self._skip_rest(call)
                self._channel.set_timeout(self._limit_s)

    def give_line(self) -> Channel:
        """Hand the connection to the model, and this end of it to the caller, who closes it: from
        now on there are no calls. It ends (EOFError) with the process."""
        with suppress(OSError):  # gone already: the connection ends, too
            self._channel.send(Kind.SERVE, 0, None)
        return self._channel.both_ways()

    def _begin(self, kind: Kind, value: Any, keywords: dict[str, Any]) -> int:
        self._call = call = self._call % _MOST_CALLS + 1
        token: BatchCancel | None = keywords.get(CANCEL)
        if token is not None:
            keywords[CANCEL] = token.deadline  # it makes its own there
        try:
            beside = pickle.dumps(keywords, 5) if keywords else b""
            self._channel.send(kind, call, value, beside)
        except Unsendable as error:
            raise error.__cause__ or error from None
        except OSError:
            raise self._lost() from None
        if token is not None:
            token.watch(lambda: self._page.cancel(call))
        return call

    def _receive(self, call: int, end_at: float | None = None) -> ProcessMessage:
        if end_at is not None:
            self._channel.set_timeout(max(0.001, end_at - time.monotonic()))
        try:
            message = self._channel.receive()
        except TimeoutError:
            self.kill(f"did not answer within {self._limit_s:g} s")
            raise self._lost() from None
        except (EOFError, OSError):
            raise self._lost() from None
        except Unreadable as error:
            if error.call == call:
                raise error.__cause__ or error from None
            message = None
        if message is None or message.call != call:  # never another call's answer
            self.kill("answered a call that was not made")
            raise self._lost()
        return message

    def _skip_rest(self, call: int) -> None:
        """No reader is left: drop the model's remaining steps, within one time limit in all."""
        end_at = None if self._limit_s is None else time.monotonic() + self._limit_s
        with suppress(WorkerLost):  # the next call will find that out
            while True:
                with suppress(Exception):  # a step that cannot be read
                    if self._receive(call, end_at).kind != Kind.STEP:
                        return
                if self._has_ended.is_set():
                    return

    def _lost(self) -> WorkerLost:
        return WorkerLost(self.reason, out_of_memory=self.ran_out_of_memory)

    # ---- the end

    @property
    def is_alive(self) -> bool:
        return not self._has_ended.is_set()

    def kill(self, reason: str) -> None:
        """Kill the process at once. `reason`: why it ended."""
        with self._lock:
            if self._pidfd < 0:
                return
            self._kill_reason = self._kill_reason or reason
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def hang_up(self) -> None:
        """Between calls: the process ends by itself, as any program does."""
        self._kill_reason = self._kill_reason or "was stopped"
        self._channel.close()

    def close(self) -> None:
        """Once it has ended: nothing of it is left."""
        self._channel.close()
        self._page.close()

    def wait_end(self, timeout_s: float | None) -> bool:
        return self._has_ended.wait(timeout_s)

    @property
    def reason(self) -> str:
        """Why it ended. Waits for the end: the line has ended, or it was killed."""
        if not self.wait_end(_REAP_S):
            self.kill("hung up without ending")
            self.wait_end(_REAP_S)
        if self._kill_reason is not None:
            return self._kill_reason
        code = self._process.returncode
        fact = f"exited with status {code}"
        if code is None:
            fact = "cannot be reached"
        elif code < 0:
            fact = f"was killed by {signal.Signals(-code).name}"
        last = self._stderr_lines[-1:]
        return f"{fact}: {last[0]}" if last and code != -signal.SIGKILL else fact

    @property
    def ran_out_of_memory(self) -> bool:
        """Did the ended process run out of memory: killed by the kernel, or with a failed
        allocation?"""
        if self._kill_reason is not None:
            return False
        if self._process.returncode == -signal.SIGKILL:
            return _oom_kills() > self._oom_kills
        return ended_out_of_memory("\n".join(self._stderr_lines))

    # ---- watching

    def _watch(self) -> None:
        """In a thread: log what the process writes until it ends, then release what it had."""
        log = logging.getLogger("headway.worker")
        stdout, stderr = self._process.stdout, self._process.stderr
        assert stdout is not None
        assert stderr is not None
        name = f"{self.name}[{self.pid}]"
        outputs = {
            stdout.fileno(): ProcessOutput(stdout.fileno(), log, logging.INFO, name),
            stderr.fileno(): ProcessOutput(stderr.fileno(), log, logging.WARNING, name),
        }
        last_lines = outputs[stderr.fileno()].last
        poller = select.poll()
        for fd in (self._pidfd, *outputs):
            poller.register(fd, select.POLLIN)
        try:
            has_ended = False
            while not has_ended:
                has_ended = self._attend(poller, outputs)
            for output in outputs.values():
                output.finish()
        except Exception:  # noqa: BLE001  logging runs code of the user's; the end must be seen
            _log.exception("%s cannot be watched any more", name)
            self.kill("could not be watched any more")
        self._stderr_lines = list(last_lines)
        # Its children end with it: killed before `wait`, after which its number may be another's.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        with self._lock:  # `kill` uses the descriptor under it
            os.close(self._pidfd)
            self._pidfd = -1
        stdout.close()
        stderr.close()
        self._has_ended.set()
        self._channel.shut_down()
        self._on_end()

    def _attend(self, poller: Any, outputs: dict[int, ProcessOutput]) -> bool:
        """Look after the process for one tick. Returns whether it has ended."""
        for fd, _ in poller.poll(TICK_S * 1e3):
            if fd == self._pidfd:
                return True
            if not outputs[fd].read():
                poller.unregister(fd)
        if self._is_ready:
            look = functools.partial(vitals_of, self.pid)
            reason = self._heart.listen(time.monotonic(), self._page.beats, look)
            if reason is not None:
                self.kill(reason)
        return False


def _oom_kills() -> int:
    """How many processes the kernel has killed for lack of memory since boot."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _rows(value: Any) -> int:
    """The rows of a batch: a list, or named arrays with rows first."""
    if isinstance(value, dict):
        rows: int = next(iter(value.values())).shape[0]
        return rows
    return len(value)


def _restored(results: list[Any]) -> list[Any]:
    return [_result(each) for each in results]


def _result(result: Any) -> Any:
    if type(result) is not Failure:
        return result
    error = error_of(result)
    if isinstance(error, Exception):
        return error
    failure: HeadwayError = ModelFailed(f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
