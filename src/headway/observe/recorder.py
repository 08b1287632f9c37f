"""What one version of a model has done so far: sums and histograms, added to once a batch.

Pure bookkeeping, cheap by design: a batch of any size costs a few microseconds and each item in it
about a tenth of one. Times come with the events; names and formats are others' business.
"""

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable

from headway.core.items import Batch, FireReason, Item, Priority
from headway.observe.histogram import Histogram, bounds
from headway.runtime.events import BatchFinished, Cancelled, Crashed, Event, Refused

SECONDS = bounds(
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
ROWS = bounds(*(2**power for power in range(11)))
SHARES = bounds(0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 0.9)

OTHER = "other"  # tenants that are not in the configuration: whoever calls must not make labels
# To be refused: there from the start, so that a first one shows as a rise from zero.
_REASONS = ("queue_full", "shed", "deadline_exceeded", "invalid_input", "closed")
_MOST_REASONS = 64  # there are about ten, and a model's own errors may add to them
_AGAINST_SLO = frozenset(["shed", "queue_full", "deadline_exceeded"])


class Times:
    """Where the time of one class of items went."""

    def __init__(self) -> None:
        self.queued = Histogram(SECONDS)
        self.lingered = Histogram(SECONDS)
        self.executed = Histogram(SECONDS)
        self.end_to_end = Histogram(SECONDS)

    def add(self, event: BatchFinished, arrivals: list[float]) -> None:
        """`arrivals`, sorted: when the items of this class in the batch came."""
        batch, count = event.batch, len(arrivals)
        # Who came before the worker was free was queued until then, and lingered from then on.
        queued = bisect_left(arrivals, batch.idle_since)
        if queued == count:
            self.queued.add_ages(arrivals, batch.idle_since)
            self.lingered.add(batch.fired_at - batch.idle_since, count)
        elif not queued:
            self.queued.add(0.0, count)
            self.lingered.add_ages(arrivals, batch.fired_at)
        else:
            self.queued.add_ages(arrivals[:queued], batch.idle_since)
            self.queued.add(0.0, count - queued)
            self.lingered.add(batch.fired_at - batch.idle_since, queued)
            self.lingered.add_ages(arrivals[queued:], batch.fired_at)
        self.executed.add(event.ran_s, count)
        self.end_to_end.add_ages(arrivals, event.finished_at)


class Recorder:
    """For `Batcher.observe`, of one batcher or of several that share a name and a version.

    Whoever reads holds `lock`.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()  # batchers of one name may live in different event loops
        self.slo_s: float | None = None
        self.times: list[Times | None] = [None] * len(Priority)  # by class; None: nobody yet
        self.times[Priority.NORMAL] = Times()
        self.batch_rows: dict[FireReason, Histogram] = defaultdict(lambda: Histogram(ROWS))
        self.padding = Histogram(SHARES)
        self.tenant_rows: dict[str, int] = {}
        self.refused = dict.fromkeys(_REASONS, 0)
        self.cancelled_queued = self.cancelled_started = 0
        self.failed = self.reruns = self.crashes = 0
        self.in_time = self.late = self.refused_by_slo = 0
        self.batch_cap_rows = 0
        self.linger_cap_s = 0.0

    def configure(self, *, slo_s: float | None, tenants: Iterable[str]) -> None:
        """As the batcher says that is watched from now on."""
        with self.lock:
            self.slo_s = slo_s
            before = self.tenant_rows
            named = [*tenants]
            self.tenant_rows = {name: before.get(name, 0) for name in (*named, OTHER) if named}

    def observe(self, event: Event) -> None:
        with self.lock:
            if type(event) is BatchFinished:
                self._finished(event)
            elif isinstance(event, Refused):
                self._refused(event)
            elif isinstance(event, Cancelled):
                if event.started:
                    self.cancelled_started += 1
                else:
                    self.cancelled_queued += 1
            elif isinstance(event, Crashed):
                self.crashes += 1

    def _finished(self, event: BatchFinished) -> None:
        batch = event.batch
        items = batch.items
        priorities = [item[4] for item in items]
        if priorities.count(priorities[0]) == len(items):
            self._add_times(priorities[0], event, items)
        else:
            for priority in set(priorities):
                self._add_times(priority, event, [item for item in items if item[4] is priority])
        self.batch_rows[batch.reason].add(batch.rows)
        self.padding.add(0.0 if _is_unpadded(batch) else batch.padding)
        self.failed += event.failed
        self.reruns += event.reruns
        self.batch_cap_rows = batch.batch_cap
        self.linger_cap_s = batch.linger_cap_s
        if self.tenant_rows:
            self._add_tenants(items)

    def _add_times(self, priority: Priority, event: BatchFinished, items: Iterable[Item]) -> None:
        arrivals = [item[1] for item in items]
        arrivals.sort()  # most often they are
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


def _is_unpadded(batch: Batch) -> bool:
    return not batch.size and batch.padded_rows == batch.rows
