"""Workers that are lost and come back, what runs again for it, and contents that take them down.

A part of the driver: it acts on the driver's queue and calls, under the driver's lock.
"""

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from headway.core import Refusal, RefusalReason
from headway.errors import NotReady, Poison
from headway.runtime.calling.faults import WorkerLost
from headway.runtime.driving.calls import Answerable, content_of
from headway.runtime.events import BatchLost
from headway.runtime.jobs.jobs import BatchJob, Worker

if TYPE_CHECKING:
    from headway.runtime.driving.driver import Driver


class Losses:
    def __init__(self, driver: "Driver") -> None:
        self._driver = driver

    # ---- workers come and go

    def worker_left(self, worker: Worker) -> None:
        """It takes no batch until it is back. From any thread; harmless when repeated.

        (A worker that is lost with a batch need not say so: the driver's `finished` sees it.)
        """
        with self._driver.lock:
            self._take_out(worker)

    def _take_out(self, worker: Worker) -> None:
        driver = self._driver
        if driver.crew.take_out(worker):
            driver.scheduler.set_workers(driver.crew.numbers_here)

    def worker_back(self, worker: Worker) -> None:
        """It takes batches again. What it was lost with has come back (`finished`) before."""
        driver = self._driver
        with driver.lock:
            is_busy = any(job.worker is worker for job in driver.jobs.values())
            if not driver.crew.take_back(worker, is_busy=is_busy):
                return
            driver.scheduler.set_workers(driver.crew.numbers_here)
        self.recover()

    def recover(self) -> None:
        """A worker completes work again: calls are taken. From any thread."""
        driver = self._driver
        with driver.lock:
            driver.given_up = None
            driver.open_doors()
        driver.drive_soon()

    def give_up(self, error: NotReady) -> None:
        """No worker completes anything soon: queued callers get this error, and so do new ones,
        until a worker is back after all. From any thread."""
        driver = self._driver
        with driver.lock:
            driver.take_in()
            driver.given_up = error
            driver.open_doors()
            # Those who are refused already are told so when the scheduler is asked next.
            cancelled = [item_id for item_id in driver.calls if driver.scheduler.cancel(item_id)]
            calls = [driver.calls.pop(item_id) for item_id in cancelled]
        driver.in_home(lambda: self._tell_given_up(calls, error))
        driver.drive_soon()

    def _tell_given_up(self, calls: list[Answerable], error: NotReady) -> None:
        for call in calls:
            call.fail(same_error(error))
            self._driver.report_refusal(error)

    # ---- batches that are lost with them

    def requeue(self, job: BatchJob, lost: WorkerLost, *, is_over: bool) -> None:
        """Under the lock: whoever still waits runs again."""
        driver = self._driver
        self._take_out(job.worker)
        waiting = {
            item: call
            for item, call in zip(job.batch.items, job.calls, strict=True)
            if not (is_over or call.is_done)
        }
        driver.calls.update((item.id, call) for item, call in waiting.items())
        driver.scheduler.lost(
            job.batch,
            tuple(waiting),
            max_losses=job.max_reruns,
            reason=lost.reason,
            out_of_memory=lost.out_of_memory,
        )

    def report(self, job: BatchJob, refusals: list[tuple[Refusal, Answerable]]) -> None:
        driver = self._driver
        assert job.lost is not None
        if driver.observers:
            reason, memory = job.lost.reason, job.lost.out_of_memory
            failed = sum(refusal.reason is RefusalReason.WORKER_LOST for refusal, _ in refusals)
            driver.observers.emit(
                BatchLost(driver.name, job.batch, job.finished_at, reason, memory, failed)
            )
        if driver.poisons:
            self._refuse_queued_poison()

    # ---- contents that take workers down

    def refuse_poison(self, value: Any, partition: Hashable) -> None:
        """Raise Poison where this is one. Where the last of them was forgotten just now, the hot
        path is open again."""
        driver = self._driver
        if driver.poisons.is_known(value, partition, driver.current_home().clock()):
            raise Poison(f"{driver.name}: this input has taken workers down before")
        if not driver.poisons:
            with driver.lock:
                driver.open_doors()

    def remember_poison(self, call: Answerable, partition: Hashable) -> None:
        driver = self._driver
        driver.poisons.remember(content_of(call), partition, driver.current_home().clock())
        with driver.lock:
            driver.open_doors()
        self._refuse_queued_poison()

    def _refuse_queued_poison(self) -> None:
        """In the home loop: its equals that wait already take no further worker down."""
        driver = self._driver
        now = driver.current_home().clock()
        with driver.lock:
            waiting = [
                (item, driver.calls[item.id])
                for item in driver.scheduler.waiting_items()
                if item.id in driver.calls
            ]
        for item, call in waiting:
            is_poison = driver.poisons.is_known(content_of(call), item.partition, now)
            if is_poison and driver.forget((item.id,)):
                error = Poison(f"{driver.name}: an equal input has taken workers down")
                driver.report_refusal(error)
                call.fail(error)


def same_error(error: NotReady) -> NotReady:
    """One caller's own exception."""
    return NotReady(str(error), retry_after_s=error.retry_after_s)
