"""A batcher's state at one moment."""

from dataclasses import dataclass

from headway.core.routing import Pace
from headway.runtime.batching.decider import BatchDecider


@dataclass(frozen=True, slots=True)
class Statistics:
    is_open: bool
    crashed: BaseException | None
    queued_items: int
    queued_rows: int
    queued_s: float  # the seconds of work in the queue
    running_batches: int
    running_items: int
    oldest_batch_s: float  # how long the longest running batch has been running
    pace: Pace | None = None  # how long batches take; None: unknown
    away_workers: int = 0  # processes that are being started again, or given up


def statistics_of(decider: BatchDecider) -> Statistics:
    shell = decider.shell
    with shell.lock:
        shell.take_in()
        scheduler = decider.queue.scheduler
        now = shell.event_loop.clock() if shell.event_loop is not None else 0.0
        ages = (now - job.batch.fired_at for job in decider.jobs.values())
        return Statistics(
            is_open=shell.takes_calls,
            crashed=shell.crash,
            queued_items=scheduler.queued_items,
            queued_rows=scheduler.queued_rows,
            queued_s=scheduler.queued_s,
            running_batches=scheduler.running_batches,
            running_items=scheduler.running_items,
            oldest_batch_s=max(ages, default=0.0),
            pace=scheduler.pace,
            away_workers=len(decider.pool.away),
        )
