"""Workers that are lost and return, batches that run again, and inputs that kill workers."""

import functools
import hashlib
import pickle
import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from headway.core.faults.poison_memory import PoisonMemory
from headway.core.items import RefusalReason
from headway.errors import NotReady, Poison
from headway.runtime.batching.call_queue import CallQueue, Refusals
from headway.runtime.batching.shell import Shell, same_error
from headway.runtime.batching.worker_pool import WorkerPool
from headway.runtime.calling.faults import WorkerLost
from headway.runtime.driving.calls import Answerable
from headway.runtime.events import BatchLost, Event
from headway.runtime.jobs.jobs import BatchJob, Worker


class Losses:
    """Supervisors of workers report here. `entry_changed` is called when calls begin to need
    checks, or no longer need them."""

    def __init__(
        self,
        shell: Shell,
        queue: CallQueue,
        pool: WorkerPool,
        jobs: Mapping[int, BatchJob],
        entry_changed: Callable[[], None],
    ) -> None:
        self.poison = PoisonWatch()
        self._shell = shell
        self._queue = queue
        self._pool = pool
        self._jobs = jobs
        self._entry_changed = entry_changed

    # ---- workers come and go

    def worker_left(self, worker: Worker) -> None:
        """The worker takes no batch until it is back. From any thread; harmless when repeated.

        (A worker that is lost with a batch need not report it: its job does.)
        """
        with self._shell.lock:
            self._take_out(worker)

    def _take_out(self, worker: Worker) -> None:
        if self._pool.take_out(worker):
            self._queue.scheduler.set_workers(self._pool.numbers_present)

    def worker_back(self, worker: Worker) -> None:
        """The worker takes batches again. Its lost batch has been requeued before."""
        with self._shell.lock:
            is_busy = any(job.worker is worker for job in self._jobs.values())
            if not self._pool.take_back(worker, is_busy=is_busy):
                return
            self._queue.scheduler.set_workers(self._pool.numbers_present)
        self.recover()

    def recover(self) -> None:
        """A worker completes work again: calls are accepted. From any thread."""
        self._shell.resume()

    def give_up(self, error: NotReady) -> None:
        """No worker will complete work soon: queued and new callers get this error until a worker
        is back. From any thread."""
        shell = self._shell
        with shell.lock:
            shell.take_in()
            shell.suspend(error)
            calls = self._queue.cancel_all()
        shell.in_loop(functools.partial(self._tell_given_up, calls, error))
        shell.drive_soon()

    def _tell_given_up(self, calls: list[Answerable], error: NotReady) -> None:
        for call in calls:
            call.fail(same_error(error))
            self._shell.report_refusal(error)

    def report(self, event: Event) -> None:
        self._shell.report(event)

    # ---- batches that are lost with them

    def requeue(self, job: BatchJob, lost: WorkerLost) -> None:
        """Under the lock: items with a waiting caller run again."""
        self._take_out(job.worker)
        waiting = {
            item: call
            for item, call in zip(job.batch.items, job.calls, strict=True)
            if not (self._shell.is_over or call.is_done)
        }
        self._queue.lost(
            job.batch,
            waiting,
            max_losses=job.max_reruns,
            reason=lost.reason,
            out_of_memory=lost.out_of_memory,
        )

    def report_lost(self, job: BatchJob, refusals: Refusals) -> None:
        """Report a lost batch to observers. In the event loop."""
        assert job.lost is not None
        reason, memory = job.lost.reason, job.lost.out_of_memory
        failed = sum(refusal.reason is RefusalReason.WORKER_LOST for refusal, _ in refusals)
        name = self._shell.name
        self.report(BatchLost(name, job.batch, job.finished_at, reason, memory, failed))
        if self.poison:
            self._refuse_queued_poison()

    # ---- inputs that crash workers

    def refuse_poison(self, value: Any, partition: Hashable) -> None:
        """Raise Poison if this input has killed workers. If the last such input was forgotten just
        now, the hot path is open again."""
        if self.poison.is_known(value, partition, self._shell.now()):
            raise Poison(f"{self._shell.name}: this input has taken workers down before")
        if not self.poison:
            with self._shell.lock:
                self._entry_changed()

    def remember_poison(self, call: Answerable, partition: Hashable) -> None:
        self.poison.remember(call.value, partition, self._shell.now())
        with self._shell.lock:
            self._entry_changed()
        self._refuse_queued_poison()

    def _refuse_queued_poison(self) -> None:
        """In the event loop: refuse queued inputs that would kill further workers."""
        shell, now = self._shell, self._shell.now()
        with shell.lock:
            waiting = self._queue.waiting()
        for item, call in waiting:
            if not self.poison.is_known(call.value, item.partition, now):
                continue
            with shell.lock:
                shell.take_in()
                was_queued = self._queue.cancel((item.id,))
            if was_queued:
                error = Poison(f"{shell.name}: an equal input has taken workers down")
                shell.report_refusal(error)
                call.fail(error)


class PoisonWatch:
    """Recognises inputs that have killed workers, among new and waiting calls. Used from any
    thread. False while no such input is known: then calls need no check."""

    def __init__(self) -> None:
        self._memory = PoisonMemory()
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._memory)

    def remember(self, value: Any, partition: Hashable, now: float) -> None:
        digest = digest_of(value, partition)
        if digest is not None:
            with self._lock:
                self._memory.remember(digest, now)

    def is_known(self, value: Any, partition: Hashable, now: float) -> bool:
        digest = digest_of(value, partition)
        with self._lock:
            return self._memory.is_known(digest or b"", now)


def digest_of(value: Any, partition: Hashable) -> bytes | None:
    """The same for equal contents; not for secrets. None: they cannot be recognised."""
    try:
        content = pickle.dumps((value, partition), protocol=5)
    except BaseException:  # noqa: BLE001  user code: what pickle asks of a value
        return None
    return hashlib.blake2b(content, digest_size=16).digest()
