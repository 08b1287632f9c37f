"""Run the production scheduler in virtual time, event by event.

The simulator decides nothing: it submits, asks, starts and finishes as the runtime would, and
jumps from one event to the next. So it measures only what the scheduler does, free of the
cost of Python, threads and models.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headway.core.batching.scheduler import Scheduler
from headway.core.costs import CostTable
from headway.core.items import Batch, FireReason, Item, Priority, Run, Wait
from headway.core.policy import Compose, Firing, Order, Policy
from headway.errors import Unavailable
from headway.lab.profiles import (
    Noise,
    Profile,
    SizedProfile,
    batch_seconds,
    capacity_rps,
    packed_capacity_rps,
    probe,
    probe_sizes,
)
from headway.lab.replay import AT_ONCE, AnswerDelay, RunPace
from headway.lab.sources import source_of
from headway.lab.workload import ClosedLoop, Sizes, Times

DEFAULT_MAX_QUEUE = 4096
_PROGRESS_EVERY = 10_000  # items
_LONG = 90  # the percentile of lengths from which items are long
_SPINS_ALLOWED = 3  # answers "ask again right now" in a row; rounding makes one of them possible


@dataclass(frozen=True, slots=True, eq=False)
class Lengths:
    """The length of each item, its cost, and the limit of a batch."""

    sizes: Sizes  # by item, in the order of arrival
    profile: SizedProfile
    max_cost: int | None = None  # rows × longest

    @property
    def mean(self) -> float:
        return float(self.sizes.mean())


@dataclass(frozen=True, slots=True)
class Drift:
    """From `at` on, batch times are multiplied by a factor."""

    at: float
    factor: float

    def __call__(self, now: float) -> float:
        return 1.0 if now < self.at else self.factor


@dataclass(frozen=True, slots=True, eq=False)
class Callers:
    """The callers' options, by item in the order of arrival; None: all alike."""

    priorities: Sequence[Priority] | None = None
    tenants: Sequence[str] | None = None
    weights: tuple[tuple[str, float], ...] = ()  # of tenants; absent: 1
    deadlines_s: Times | None = None  # after the arrival; infinite: none
    order: Order = Order.FIFO

    def item(self, item: Item) -> Item:
        number = item.id
        if self.priorities is not None:
            item = item._replace(priority=self.priorities[number])
        if self.tenants is not None:
            item = item._replace(tenant=self.tenants[number])
        if self.deadlines_s is not None:
            item = item._replace(deadline=item.arrived_at + float(self.deadlines_s[number]))
        return item


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """One point to simulate. Every policy gets the same arrivals, noise and probes."""

    arrivals: Times | ClosedLoop
    seconds_by_rows: tuple[float, ...]  # the true time of a batch
    table: CostTable  # the result of the warm-up's probes
    factors: Times | None = None  # noise: the factor for the n-th batch's time
    workers: int = 1
    max_queue: int = DEFAULT_MAX_QUEUE
    slo_s: float | None = None
    on_progress: Callable[[int], object] | None = None  # called with the number of further arrivals
    lengths: Lengths | None = None  # None: all alike
    speeds: tuple[float, ...] = ()  # by worker: the factor for its batch times; empty: alike
    drift: Callable[[float], float] | None = None  # by time: a factor for all batches
    slo_percentile: float = 99.0
    callers: Callers | None = None
    delay: AnswerDelay = AT_ONCE  # of answers, after the end of their batch

    @classmethod
    def build(
        cls,
        arrivals: Times | ClosedLoop,
        profile: Profile,
        *,
        max_rows: int,
        seed: int = 0,
        noise_cv: float = 0.0,
        noise: Noise | None = None,
        workers: int = 1,
        max_queue: int = DEFAULT_MAX_QUEUE,
        slo_s: float | None = None,
        on_progress: Callable[[int], object] | None = None,
        lengths: Lengths | None = None,
        speeds: tuple[float, ...] = (),
        drift: Callable[[float], float] | None = None,
        slo_percentile: float = 99.0,
        callers: Callers | None = None,
        probed_rows: Sequence[int] | None = None,  # None: as a warm-up would
    ) -> "Scenario":
        noise = Noise(noise_cv) if noise is None else noise
        seconds_by_rows = batch_seconds(profile, max_rows)
        noise_rng, probe_rng = (np.random.default_rng([seed, stream]) for stream in (1, 2))
        requests = arrivals.requests if isinstance(arrivals, ClosedLoop) else len(arrivals)
        if lengths is None:
            table = probe(seconds_by_rows, noise, probe_rng, probed_rows)
        else:
            largest = int(lengths.sizes.max())
            sized = lengths.profile
            table = probe_sizes(sized, max_rows, largest, noise, probe_rng, probed_rows)
        return cls(
            arrivals=arrivals,
            seconds_by_rows=seconds_by_rows,
            table=table,
            factors=noise.factors(requests, noise_rng) if noise.varies else None,
            workers=len(speeds) or workers,  # speeds are given one for each worker
            max_queue=max_queue,
            slo_s=slo_s,
            on_progress=on_progress,
            lengths=lengths,
            speeds=speeds,
            drift=drift,
            slo_percentile=slo_percentile,
            callers=callers,
        )

    @property
    def pace(self) -> RunPace:
        return RunPace(self.speeds or (1.0,) * self.workers, self.factors, self.drift)

    @property
    def is_plain(self) -> bool:
        """Are all items alike, so that only their order of arrival matters?"""
        return self.lengths is None and self.callers is None

    @property
    def requests(self) -> int:
        arrivals = self.arrivals
        return arrivals.requests if isinstance(arrivals, ClosedLoop) else len(arrivals)

    @property
    def max_rows(self) -> int:
        return len(self.seconds_by_rows) - 1

    @property
    def capacity_rps(self) -> float:
        """The capacity of the workers; if lengths differ, of a model that needs no padding."""
        lengths, workers = self.lengths, sum(1.0 / speed for speed in self.pace.speeds)
        if lengths is None:
            return capacity_rps(self.seconds_by_rows, workers)
        max_cost = math.inf if lengths.max_cost is None else lengths.max_cost
        return packed_capacity_rps(lengths.profile, lengths.mean, self.max_rows, max_cost, workers)

    def policy(
        self,
        firing: Firing,
        *,
        max_wait_s: float | None = None,
        max_rows: int | None = None,
        compose: Compose = Compose.DP,
        buckets: tuple[int, ...] = (),
        quantiles: int = 0,
    ) -> Policy:
        """A policy for this scenario's model. Only `auto` gets the SLO: others have none."""
        callers = self.callers or Callers()
        return Policy(
            firing=firing,
            max_wait_s=max_wait_s,
            max_batch_cost=None if self.lengths is None else self.lengths.max_cost,
            compose=compose,
            buckets=buckets,
            quantiles=quantiles,
            max_batch_size=max_rows or self.max_rows,
            max_queue=self.max_queue,
            workers=self.workers,
            slo_s=self.slo_s if firing is Firing.AUTO else None,
            slo_percentile=self.slo_percentile,
            order=callers.order,
            tenant_weights=dict(callers.weights),
        )


class Fired(NamedTuple):
    """The record of one batch, to show how a policy adapts."""

    fired_at: float
    rows: int
    batch_cap: int
    linger_cap_s: float
    lingered_s: float
    queued_rows: int  # that stayed in the queue
    reason: FireReason


class Latencies:
    """Figures of a simulation. In `latencies_s`, NaN means an item without an answer."""

    __slots__ = ()
    latencies_s: Times
    batches: int
    span_s: float

    @property
    def answered_s(self) -> Times:
        """The latencies of answered items."""
        return self.latencies_s[~np.isnan(self.latencies_s)]

    @property
    def dropped(self) -> int:
        return int(np.isnan(self.latencies_s).sum())

    @property
    def mean_s(self) -> float:
        answered = self.answered_s
        return float(answered.mean()) if len(answered) else math.nan

    @property
    def mean_batch(self) -> float:
        return len(self.answered_s) / self.batches if self.batches else math.nan

    def percentile_s(self, percent: float) -> float:
        return percentile_s(self.answered_s, percent)

    def within(self, slo_s: float | None) -> int:
        """The number of items answered within `slo_s`; None: of all answered items."""
        limit = math.inf if slo_s is None else slo_s + 1e-9
        return int((self.answered_s <= limit).sum())


@dataclass(frozen=True, slots=True, eq=False)
class Outcome(Latencies):
    latencies_s: Times  # by item, in the order of arrival; NaN: refused, or stuck
    batches: int
    largest_batch: int  # rows
    span_s: float  # from the first arrival to the last answer
    fire_reasons: dict[FireReason, int]
    mean_batch_cap: float
    mean_linger_cap_s: float
    is_stuck: bool  # all clients of a closed loop wait, and still no batch is full
    arrived_at: Times
    fired: list[Fired] | None = None  # None: not recorded
    padding_waste: float = 0.0  # the share of the computation that was padding
    sizes: Sizes | None = None  # by item, if lengths differ

    @property
    def long_p99_s(self) -> float:
        """The p99 of the longest tenth of the items; NaN if all have one length."""
        if self.sizes is None or not len(self.sizes):
            return math.nan
        is_long = self.sizes >= np.percentile(self.sizes, _LONG)
        latencies_s = self.latencies_s[is_long]
        return percentile_s(latencies_s[~np.isnan(latencies_s)], 99)

    @property
    def throughput_rps(self) -> float:
        return len(self.answered_s) / self.span_s if self.span_s else 0.0

    def goodput_rps(self, slo_s: float | None) -> float:
        return self.within(slo_s) / self.span_s if self.span_s else 0.0


def percentile_s(latencies_s: NDArray[np.float64], percent: float) -> float:
    return float(np.percentile(latencies_s, percent)) if len(latencies_s) else math.nan


def simulate(scenario: Scenario, policy: Policy, *, record: bool = False) -> Outcome:
    """Run the scenario under the policy. `record`: keep a record of every batch."""
    world = _World(scenario, policy, record=record)
    world.play()
    return world.outcome()


class _FreeWorkers:
    """Free workers by number. A batch runs on its `worker` if that is free, else on the fastest."""

    def __init__(self, speeds: Sequence[float]) -> None:
        self._speeds = speeds
        self._free = set(range(len(speeds)))

    def take(self, batch: Batch) -> int:
        worker = getattr(batch, "worker", None)
        if worker not in self._free:
            worker = min(self._free, key=lambda each: (self._speeds[each], each))
        self._free.remove(worker)
        return worker

    def give_back(self, worker: int) -> None:
        self._free.add(worker)


class _World:
    """One run: the clock, the workers and the results."""

    def __init__(self, scenario: Scenario, policy: Policy, *, record: bool) -> None:
        self._source = source_of(scenario.arrivals)
        self._scheduler = Scheduler(policy, scenario.table)
        self._seconds = scenario.seconds_by_rows
        lengths = scenario.lengths
        self._sized = None if lengths is None else lengths.profile
        self._sizes: list[int] | None = None if lengths is None else lengths.sizes.tolist()
        self._tokens = self._run_tokens = 0.0
        self._pace = pace = scenario.pace
        self._stray = pace.stray()
        self._free = _FreeWorkers(pace.speeds)
        self._callers = scenario.callers
        # A partial batch of `static` leaves only for a deadline; an SLO gives its items one.
        has_deadline = policy.firing is Firing.STATIC and scenario.slo_s is not None
        self._deadline_s = scenario.slo_s if has_deadline else None
        self._running: list[tuple[float, int, Batch, float, int]] = []  # a heap, by the end
        self._arrived: list[float] = []
        self._latencies = [math.nan] * scenario.requests
        self._delay = scenario.delay
        self._last_answer = 0.0
        self._batches = 0
        self._largest_batch = 0
        self._reasons: Counter[FireReason] = Counter()
        self._batch_caps = 0
        self._linger_caps_s = 0.0
        self._is_stuck = False
        self._fired: list[Fired] | None = [] if record else None
        self._on_progress = scenario.on_progress
        self._reported = 0

    def play(self) -> None:
        source, running = self._source, self._running
        now, wake = 0.0, math.inf
        while True:
            previous, now = now, min(source.next_at, wake)
            if running and running[0][0] <= now:
                now = running[0][0]
                self._finish_due(now)
            elif now == math.inf:
                if not self._drain():
                    return
                now = previous
            if source.next_at <= now:
                self._submit_due(now)
                if len(self._arrived) - self._reported >= _PROGRESS_EVERY:
                    self._report_progress()
            wake = self._act(now)

    def _report_progress(self) -> None:
        if self._on_progress is not None:
            self._on_progress(len(self._arrived) - self._reported)
        self._reported = len(self._arrived)

    def _finish_due(self, now: float) -> None:
        running, latencies, delay = self._running, self._latencies, self._delay
        while running and running[0][0] <= now:
            _, _, batch, ran_s, worker = heapq.heappop(running)
            self._free.give_back(worker)
            self._scheduler.finish(batch, now, ran_s=ran_s)
            for place, item in enumerate(batch.items):
                self._last_answer = now + delay.of(place)
                latencies[item.id] = self._last_answer - item.arrived_at
                self._source.left((item.id,), self._last_answer)

    def _submit_due(self, now: float) -> None:
        """Submit all items that arrive by this moment, before any decision."""
        source, submit, arrived = self._source, self._scheduler.submit, self._arrived
        deadline_s = self._deadline_s
        while source.next_at <= now:
            at = source.take()
            item = Item(len(arrived), at)
            if self._sizes is not None:
                item = item._replace(size=self._sizes[item.id])
            if self._callers is not None:
                item = self._callers.item(item)
            if deadline_s is not None:
                item = item._replace(deadline=at + deadline_s)
            arrived.append(at)
            try:
                submit(item)
            except Unavailable:
                source.left((item.id,), now)

    def _act(self, now: float) -> float:
        """Obey the scheduler until it waits. Returns when to ask again."""
        next_action = self._scheduler.next_action
        spins = 0
        while True:
            action = next_action(now)
            if isinstance(action, Wait):
                if action.until > now:
                    return action.until
                spins += 1
                assert spins <= _SPINS_ALLOWED, f"{action} at {now}: a driver would spin"
            elif isinstance(action, Run):
                self._start(action.batch, now)
            else:
                self._source.left([each.item.id for each in action.refusals], now)
                if self._source.next_at <= now:  # a client that does not think is back at once
                    self._submit_due(now)

    def _start(self, batch: Batch, now: float) -> None:
        worker = self._free.take(batch)
        ran_s = self._batch_s(batch) * next(self._stray) * self._pace.speeds[worker]
        ran_s *= self._pace.at(now)
        heapq.heappush(self._running, (now + ran_s, batch.id, batch, ran_s, worker))
        self._batches += 1
        if batch.rows > self._largest_batch:
            self._largest_batch = batch.rows
        self._reasons[batch.reason] += 1
        self._batch_caps += batch.batch_cap
        self._linger_caps_s += batch.linger_cap_s
        if self._fired is not None:
            self._fired.append(
                Fired(
                    fired_at=now,
                    rows=batch.rows,
                    batch_cap=batch.batch_cap,
                    linger_cap_s=batch.linger_cap_s,
                    lingered_s=now - batch.idle_since,
                    queued_rows=self._scheduler.queued_rows,
                    reason=batch.reason,
                )
            )

    def _batch_s(self, batch: Batch) -> float:
        if self._sized is None:
            return self._seconds[batch.padded_rows]
        tokens = sum(item.rows * item.size for item in batch.items)
        size = tokens / batch.rows if batch.is_packed else batch.size
        self._tokens += tokens
        self._run_tokens += batch.padded_rows * size
        return self._sized.seconds_at(batch.padded_rows, size)

    def _drain(self) -> bool:
        """No event is left. True: a partial batch of `static` waits, and may leave now."""
        if not self._scheduler.queued_items:
            return False
        self._is_stuck = self._source.has_more
        if not self._is_stuck:
            self._scheduler.drain()
        return not self._is_stuck

    def outcome(self) -> Outcome:
        self._report_progress()
        arrived = np.array(self._arrived)
        batches = max(1, self._batches)
        return Outcome(
            latencies_s=np.array(self._latencies[: len(arrived)]),
            batches=self._batches,
            largest_batch=self._largest_batch,
            span_s=max(0.0, self._last_answer - float(arrived[0])) if len(arrived) else 0.0,
            fire_reasons=dict(self._reasons.most_common()),
            mean_batch_cap=self._batch_caps / batches,
            mean_linger_cap_s=self._linger_caps_s / batches,
            is_stuck=self._is_stuck,
            arrived_at=arrived,
            fired=self._fired,
            padding_waste=max(0.0, 1.0 - self._tokens / (self._run_tokens or 1.0))
            if self._sized
            else 0.0,
            sizes=None if self._sizes is None else np.array(self._sizes[: len(arrived)]),
        )
