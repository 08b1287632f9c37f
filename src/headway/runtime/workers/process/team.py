"""All worker processes of one model, as its batcher sees them."""

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headway.core.faults.supervision import WorkerState
from headway.errors import NotReady
from headway.runtime.calling.threads import run_in_thread
from headway.runtime.events import WorkerChanged
from headway.runtime.workers.process.options import ProcessOptions
from headway.runtime.workers.process.recipe import check_main, recipe_of
from headway.runtime.workers.process.worker import ProcessWorker, WorkerStatus

if TYPE_CHECKING:
    from headway.runtime.batching.losses import Losses

_STOP_S = 15.0  # longer than a worker gives its process
_RETRY_S = 60.0  # callers are asked to retry after this, when all are given up


class ProcessTeam:
    """`start` once; the attached listener is notified of workers that come and go."""

    def __init__(
        self,
        name: str,
        model: Any,
        make: Callable[[], Any] | None,
        *,
        workers: int,
        options: ProcessOptions,
    ) -> None:
        self._name = name
        self._recipe = recipe_of(model, make)
        self._count = workers
        self._options = options
        self._workers: list[ProcessWorker] = []
        self._listener: Losses | None = None
        self._failed: set[ProcessWorker] = set()
        self._lock = threading.Lock()

    def attach(self, listener: "Losses") -> None:
        self._listener = listener

    def start(self, *, is_awaited: bool = False) -> list[ProcessWorker]:
        """All workers, started if they are not running; they load the model now."""
        if all(worker.is_stopping for worker in self._workers):
            check_main()
            self._failed.clear()
            self._workers = [
                ProcessWorker(
                    self._options.spec(self._name, self._recipe, number),
                    self._options,
                    self,
                    is_awaited=is_awaited,
                )
                for number in range(self._count)
            ]
        return self._workers

    async def wait_started(self) -> None:
        """Wait until every worker has loaded the model. Raises the first error."""
        try:
            workers = self.start(is_awaited=True)
            await asyncio.gather(*(asyncio.wrap_future(worker.started) for worker in workers))
        except BaseException:
            await self.wait_stopped()
            raise

    async def wait_stopped(self) -> None:
        """No process is left afterwards."""
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            await run_in_thread(worker.wait_stopped, _STOP_S)

    @property
    def statuses(self) -> list[WorkerStatus]:
        return [worker.status for worker in self._workers]

    # ---- reports of workers, each in its thread

    def worker_ready(self, worker: ProcessWorker, status: WorkerStatus) -> None:
        if self._listener is not None:
            self._listener.worker_back(worker)
            self._tell(self._listener, status)

    def worker_lost(self, worker: ProcessWorker, status: WorkerStatus) -> None:
        """If the last worker is given up, callers get an error."""
        if self._listener is None:
            return
        self._listener.worker_left(worker)
        if status.state is WorkerState.FAILED and self._is_last(worker):
            reason = f"{self._name} has no worker left; the last one {status.last_error}"
            self._listener.give_up(NotReady(reason, retry_after_s=_RETRY_S))
        self._tell(self._listener, status)

    def _is_last(self, worker: ProcessWorker) -> bool:
        with self._lock:
            self._failed.add(worker)
            return len(self._failed) == self._count

    def _tell(self, listener: "Losses", status: WorkerStatus) -> None:
        listener.report(
            WorkerChanged(self._name, status.pid, status.state, status.restarts, status.last_error)
        )
