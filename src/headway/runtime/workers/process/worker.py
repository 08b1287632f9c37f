"""Runs batches in a process of its own, and starts another when that is lost.

A thread runs the jobs, as a thread worker's does; only the model's own call goes to the process.
When that is lost, the job reports it, and the thread starts the next process.
"""

import dataclasses
import logging
import queue
import threading
import time
import weakref
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from headway.core.faults.supervision import Supervision, WorkerState
from headway.core.items import Wait
from headway.errors import NotReady
from headway.runtime.calling.faults import WorkerLost
from headway.runtime.calling.threads import awaitable, start_thread
from headway.runtime.jobs.jobs import Job, run_to_end
from headway.runtime.workers.process import current_model
from headway.runtime.workers.process.handle import LoadFailed, ModelProcess
from headway.runtime.workers.process.options import ProcessOptions
from headway.runtime.workers.process.protocol import WorkerSpec
from headway.runtime.workers.process.spawning import SPAWNER

_log = logging.getLogger(__name__)
_STOP_S = 5.0  # for a process to end by itself


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The state of one worker, as an operator sees it."""

    pid: int | None
    state: WorkerState
    restarts: int
    last_error: str


class Team(Protocol):
    """Hands out the jobs. Its methods are called in the worker's thread."""

    def worker_ready(self, worker: "ProcessWorker", status: WorkerStatus) -> None: ...

    def worker_lost(self, worker: "ProcessWorker", status: WorkerStatus) -> None:
        """The worker takes no jobs until it is ready again; never, if its state is `failed`."""


class ProcessWorker:
    """A `Worker`. Its thread ends with `stop`, or when it is no longer used."""

    is_lost = False  # a job always comes back: with its results, or as lost

    def __init__(
        self, spec: WorkerSpec, options: ProcessOptions, team: Team, *, is_awaited: bool
    ) -> None:
        """`is_awaited`: a caller waits for `started`, and stops the worker if that fails."""
        self._life = _Life(
            spec, options, weakref.ref(self), weakref.ref(team), is_awaited=is_awaited
        )
        weakref.finalize(self, self._life.stop).atexit = False
        self._life.start()

    @property
    def started(self) -> "Future[None]":
        """Done when the model is loaded for the first time. Raises the error of the load."""
        return self._life.started

    @property
    def status(self) -> WorkerStatus:
        return self._life.status

    @property
    def is_stopping(self) -> bool:
        return self._life.is_stopping

    def start(self, job: Job) -> None:
        self._life.inbox.put(job)

    def stop(self) -> None:
        """Stop now: a running job is cut short."""
        self._life.stop()

    def wait_stopped(self, timeout_s: float) -> None:
        if self._life.thread is not None:
            self._life.thread.join(timeout_s)


class _Life:
    """The thread's state: everything but the worker itself, which may be collected first."""

    def __init__(
        self,
        spec: WorkerSpec,
        options: ProcessOptions,
        worker: "weakref.ref[ProcessWorker]",
        team: "weakref.ref[Team]",
        *,
        is_awaited: bool,
    ) -> None:
        self.inbox: queue.SimpleQueue[Job | None] = queue.SimpleQueue()  # None: check the process
        self.started: Future[None] = Future()
        self.thread: threading.Thread | None = None
        self._spec = spec
        self._options = options
        self._worker = worker
        self._team = team
        self._is_awaited = is_awaited
        self._supervision = Supervision(options.restarts)
        self._process: ModelProcess | None = None
        self._is_busy = False
        self._held: list[Job] = []  # jobs that arrived while there was no process
        self.is_stopping = False

    def start(self) -> None:
        SPAWNER.enter()
        try:
            self.thread = start_thread(self._run, name=f"headway-{self._spec.name}")
        except NotReady:
            SPAWNER.leave()
            raise

    def stop(self) -> None:
        self.is_stopping = True
        self.inbox.put(None)
        process = self._process
        if process is not None and self._is_busy:
            process.kill("was stopped")

    def process(self) -> ModelProcess:
        process = self._process
        if process is None:
            raise WorkerLost(self._supervision.last_error or "has not started")
        return process

    @property
    def status(self) -> WorkerStatus:
        process, supervision = self._process, self._supervision
        return WorkerStatus(
            pid=process.pid if process is not None and process.is_alive else None,
            state=supervision.state,
            restarts=supervision.restarts,
            last_error=supervision.last_error,
        )

    # ---- in the thread

    def _run(self) -> None:
        current_model.settle(self.process)
        try:
            while not self.is_stopping:
                action = self._supervision.next_action(time.monotonic())
                if not isinstance(action, Wait):
                    self._start_process()
                    continue
                if self._held and self._may_run():
                    self._do(self._held.pop(0))
                    continue
                item = self._next(action)
                if item is None:
                    self._look()
                elif self._may_run():
                    self._do(item)
                else:
                    self._held.append(item)
                    if self._supervision.state is WorkerState.FAILED:
                        self._give_back()  # no thread will come for it
        except BaseException as error:  # noqa: BLE001  a bug of ours; no caller may wait for ever
            _log.exception("%s: its worker failed", self._spec.name)
            self._supervision.fail(f"broke: {type(error).__name__}: {error}")
            self._tell_lost(None)
        finally:
            self._end()

    def _next(self, wait: Wait) -> Job | None:
        if wait.until == float("inf"):
            return self.inbox.get()
        try:
            return self.inbox.get(timeout=max(0.0, wait.until - time.monotonic()))
        except queue.Empty:
            return None

    def _may_run(self) -> bool:
        """Is the process alive? Else the batch would be suspected of killing it."""
        self._look()
        return self._supervision.state is WorkerState.READY

    def _do(self, job: Job) -> None:
        self._is_busy = True
        if self._process is not None:
            self._process.jobs += 1
            if self.is_stopping:  # a caller that stops it now finds it busy
                self._process.kill("was stopped")
        try:
            run_to_end(job.work())
        except BaseException:  # noqa: BLE001  a bug of ours; without its thread every later job would wait
            _log.exception("a job raised; its worker goes on")
        self._is_busy = False
        self._look()

    def _look(self) -> None:
        """Is the process still there?"""
        process = self._process
        if process is not None and not process.is_alive and not self.is_stopping:
            self._lost(process.reason, has_answered=process.has_answered)

    def _start_process(self) -> None:
        options = self._options
        try:
            self._process = process = ModelProcess(
                SPAWNER.take(),
                self._spec,
                execute_timeout_s=options.execute_timeout_s,
                heartbeat_timeout_s=options.heartbeat_timeout_s,
                on_end=lambda: self.inbox.put(None),
            )
            self._is_busy = True
            if self.is_stopping:  # a caller that stops it now finds it busy
                process.kill("was stopped")
            process.wait_ready(options.load_timeout_s)
        except (LoadFailed, OSError) as error:
            if not self.is_stopping:
                self._could_not_start(error)
            return
        finally:
            self._is_busy = False
        self._supervision.ready(time.monotonic())
        SPAWNER.refill(options.imports)
        self._tell_ready(process)

    def _could_not_start(self, error: Exception) -> None:
        if self._is_awaited and not self.started.done():
            self.is_stopping = True
            self.started.set_exception(awaitable(error.__cause__ or error))
            return
        self._lost(str(error), has_answered=False)

    def _tell_ready(self, process: ModelProcess) -> None:
        if not self.started.done():
            self.started.set_result(None)
        if not self._supervision.restarts:
            return  # it has not been missed
        _log.info("%s: worker %d is ready again", self._spec.name, process.pid)
        worker, team = self._worker(), self._team()
        if worker is not None and team is not None:
            team.worker_ready(worker, self.status)

    def _lost(self, reason: str, *, has_answered: bool) -> None:
        process, self._process = self._process, None
        pid = None
        if process is not None:
            pid = process.pid
            process.close()
        self._supervision.ended(time.monotonic(), reason, has_answered=has_answered)
        _log.error("%s: worker %s %s", self._spec.name, pid or "process", reason)
        self._tell_lost(pid)

    def _tell_lost(self, pid: int | None) -> None:
        if self._supervision.state is WorkerState.FAILED:
            self._give_back()  # first: items that are given up must be queued
        worker, team = self._worker(), self._team()
        if worker is not None and team is not None:
            team.worker_lost(worker, dataclasses.replace(self.status, pid=pid))

    def _give_back(self) -> None:
        """Without a process, every job is lost at once."""
        while not self.inbox.empty():
            item = self.inbox.get()
            if item is not None:
                self._held.append(item)
        process, self._process = self._process, None
        while self._held:
            run_to_end(self._held.pop(0).work())
        self._process = process

    def _end(self) -> None:
        self.is_stopping = True
        self._supervision.stop()
        process, self._process = self._process, None
        if process is not None:
            process.hang_up()
            if not process.wait_end(_STOP_S):
                process.kill("did not end when it was asked to")
                process.wait_end(_STOP_S)
        self._give_back()
        SPAWNER.leave()
