"""The figures of one version of a model: sums and histograms, updated once a batch.

Pure bookkeeping, cheap by design: a batch of any size costs a few microseconds and each item in it
about a tenth of one. Times come with the events; names and formats are others' business.
"""

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable

from headway.core.faults.supervision import WorkerState
from headway.core.items import FireReason, Item, Priority
from headway.observe.histogram import Histogram, bounds
from headway.runtime.events import (
    BatchFinished,
    BatchLost,
    BatchStarted,
    Cancelled,
    Crashed,
    Event,
    OutOfMemory,
    Refused,
    WorkerChanged,
)

SECONDS = bounds(
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
ROWS = bounds(*(2**power for power in range(11)))
SHARES = bounds(0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 0.9)

OTHER = "other"  # tenants that are not in the configuration: callers must not make labels
# To be refused: there from the start, so that a first one shows as a rise from zero.
_REASONS = ("queue_full", "shed", "deadline_exceeded", "invalid_input", "closed")
_MOST_REASONS = 64  # there are about ten, and a model's own errors may add to them
_AGAINST_SLO = frozenset(["shed", "queue_full", "deadline_exceeded"])


class Times:
    """How the time of one class of items was spent."""

    def __init__(self) -> None:
        self.queued = Histogram(SECONDS)
        self.lingered = Histogram(SECONDS)
        self.executed = Histogram(SECONDS)
        self.end_to_end = Histogram(SECONDS)

    def add(self, event: BatchFinished, arrivals: list[float]) -> None:
        """`arrivals`: the sorted arrival times of the batch's items of this class."""
        batch, count, total = event.batch, len(arrivals), sum(arrivals)
        idle_since, fired_at = batch.idle_since, batch.fired_at
        # An item that came before the worker was free was queued until then, then lingered.
        if arrivals[-1] <= idle_since:
            self.queued.add_ages(arrivals, idle_since, total)
            if fired_at > idle_since:
                self.lingered.add(fired_at - idle_since, count)
            else:
                self.lingered.add_zeros(count)
        elif arrivals[0] >= idle_since:
            self.queued.add_zeros(count)
            self.lingered.add_ages(arrivals, fired_at, total)
        else:
            cut = bisect_left(arrivals, idle_since)
            early, late = arrivals[:cut], arrivals[cut:]
            self.queued.add_ages(early, idle_since, sum(early))
            self.queued.add_zeros(count - cut)
            self.lingered.add(fired_at - idle_since, cut)
            self.lingered.add_ages(late, fired_at, sum(late))
        self.executed.add(event.ran_s, count)
        self.end_to_end.add_ages(arrivals, event.finished_at, total)


class MetricsRecorder:
    """Records one batcher, or several of one name and version. A reader holds `lock`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # batchers of one name may live in different event loops
        self.slo_s: float | None = None
        self.times: list[Times | None] = [None] * len(Priority)  # by class; None: no item yet
        self.times[Priority.NORMAL] = Times()
        self.batch_rows: dict[FireReason, Histogram] = defaultdict(lambda: Histogram(ROWS))
        self.padding = Histogram(SHARES)
        self.tenant_rows: dict[str, int] = {}
        self.refused = dict.fromkeys(_REASONS, 0)
        self.cancelled_queued = self.cancelled_started = 0
        self.failed = self.reruns = self.crashes = 0
        self.lost = self.out_of_memory = 0  # batches
        self.restarts = 0
        self.in_time = self.late = self.refused_by_slo = 0
        self.batch_cap_rows = 0
        self.linger_cap_s = 0.0
        self.work_s = self.load_s = 0.0  # of all workers, and of each
        self._workers = 1

    def configure(self, *, slo_s: float | None, tenants: Iterable[str], workers: int) -> None:
        """Set from the policy of the batcher that is watched from now on."""
        with self.lock:
            self._workers = workers
            self.slo_s = slo_s
            before = self.tenant_rows
            named = [*tenants]
            self.tenant_rows = {name: before.get(name, 0) for name in (*named, OTHER) if named}

    def observe(self, event: Event) -> None:
        """Record an event; to be passed to `Batcher.observe`."""
        if isinstance(event, BatchStarted):  # half of all events, and nothing to note
            return
        with self.lock:
            if isinstance(event, BatchFinished):
                self._finished(event)
            elif isinstance(event, Refused):
                self._refused(event)
            elif isinstance(event, Cancelled):
                if event.started:
                    self.cancelled_started += 1
                else:
                    self.cancelled_queued += 1
            else:
                self._rarely(event)

    def _rarely(self, event: Event) -> None:
        if isinstance(event, BatchLost):
            self.lost += 1
            self.out_of_memory += event.out_of_memory
            self.failed += event.failed
        elif isinstance(event, OutOfMemory):
            self.out_of_memory += 1
        elif isinstance(event, WorkerChanged):
            self.restarts += event.state is WorkerState.READY
        elif isinstance(event, Crashed):
            self.crashes += 1

    def _finished(self, event: BatchFinished) -> None:
        batch = event.batch
        items = batch.items
        priority = items[0][4]
        if len(items) == 1:
            self._add_times(priority, event, [items[0][1]])
        elif [item[4] for item in items].count(priority) == len(items):
            self._add_times(priority, event, sorted([item[1] for item in items]))
        else:
            for each in Priority:
                arrivals = sorted(item[1] for item in items if item[4] is each)
                if arrivals:
                    self._add_times(each, event, arrivals)
        self.batch_rows[batch.reason].add(batch.rows)
        if batch.size or batch.padded_rows != batch.rows:
            self.padding.add(batch.padding)
        else:
            self.padding.add_zeros(1)
        self.work_s += event.work_s
        self.load_s += event.work_s / self._workers
        self.failed += event.failed
        self.reruns += event.reruns
        self.batch_cap_rows = batch.batch_cap
        self.linger_cap_s = batch.linger_cap_s
        if self.tenant_rows:
            self._add_tenants(items)

    def _add_times(self, priority: Priority, event: BatchFinished, arrivals: list[float]) -> None:
        times = self.times[priority]
        if times is None:
            times = self.times[priority] = Times()
        times.add(event, arrivals)
        if self.slo_s is not None:
            late = bisect_left(arrivals, event.finished_at - self.slo_s)
            self.late += late
            self.in_time += len(arrivals) - late

    def _add_tenants(self, items: Iterable[Item]) -> None:
        rows = self.tenant_rows
        for item in items:
            rows[item.tenant if item.tenant in rows else OTHER] += item.rows

    def _refused(self, event: Refused) -> None:
        reason = event.reason
        if reason not in self.refused and len(self.refused) >= _MOST_REASONS:
            reason = OTHER
        self.refused[reason] = self.refused.get(reason, 0) + 1
        if reason in _AGAINST_SLO:
            self.refused_by_slo += 1
