"""A batcher's state at one moment."""

from headway.runtime.batching.decider import BatchDecider
from headway.runtime.events import Statistics


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
