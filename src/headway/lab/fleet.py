"""Several replicas behind a router in virtual time: each is a production scheduler with its queue.

As in `simulate.py`, nothing is decided here: the router is `core/routing.py`, the number of
replicas is `core/lifecycle/scaling.py`. Replicas may be slow, be lost with all that they hold
(their requests are sent again, to others), and take a while to start.
"""

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headway.core.batching.scheduler import Scheduler
from headway.core.costs.full_batches import pace_of
from headway.core.items import Batch, Item, Run, Wait
from headway.core.lifecycle.scaling import LOADING_WORK, SCALED_S, WorkRate, replicas_for
from headway.core.policy import Policy
from headway.core.routing import ReplicaView, Router, RoutingRule
from headway.errors import ConfigError, Unavailable
from headway.lab.profiles import probe, probe_sizes
from headway.lab.simulate import Latencies, Scenario
from headway.lab.workload import ClosedLoop, Times

_SCRAPE_S = 15.0  # between two looks of the autoscaler, as Kubernetes has it
_TOLERANCE = 0.1  # it leaves the number alone within this


@dataclass(frozen=True, slots=True)
class Autoscale:
    """As Kubernetes' HorizontalPodAutoscaler acts on `replicas_for`."""

    least: int
    most: int
    target_wait_s: float
    hold_s: float = 120.0  # no fewer than were wanted at any time in this span


@dataclass(frozen=True, slots=True)
class Fleet:
    speeds: tuple[float, ...]  # by replica: the factor for its batch times
    route: RoutingRule
    cold_start_s: float = 30.0
    autoscale: Autoscale | None = None
    lost_at: float | None = None  # when the first replica is lost; it is back after a cold start


@dataclass(frozen=True, slots=True, eq=False)
class FleetOutcome(Latencies):
    arrived_at: Times
    latencies_s: Times  # NaN: refused; else since an item was first sent
    shares: list[float]  # of the requests, by replica in the order of starting
    batches: int
    retried: int
    replicas: list[tuple[float, int]]  # since when, how many: serving or starting
    span_s: float

    @property
    def replica_seconds(self) -> float:
        ends = [*(at for at, _ in self.replicas[1:]), self.span_s]
        return sum(n * (end - at) for (at, n), end in zip(self.replicas, ends, strict=True))

    @property
    def turns(self) -> int:
        """How often the number of replicas went from rising to falling or back."""
        counts = [count for _, count in self.replicas]
        steps = [b > a for a, b in itertools.pairwise(counts) if a != b]
        return sum(one != two for one, two in itertools.pairwise(steps))


def simulate_fleet(
    scenario: Scenario, policy: Policy, fleet: Fleet, *, seed: int = 0
) -> FleetOutcome:
    if isinstance(scenario.arrivals, ClosedLoop):
        raise ConfigError("replicas are simulated with open arrivals only", field="--arrivals")
    return _FleetWorld(scenario, policy, fleet, seed).play()


@dataclass(slots=True, eq=False)
class _Replica:
    number: int
    speed: float
    scheduler: Scheduler
    view: ReplicaView
    wake_at: float = math.inf
    running: dict[int, Batch] = field(default_factory=dict)
    held: dict[int, Item] = field(default_factory=dict)  # queued or running
    work_s: float = 0.0
    requests: int = 0
    is_leaving: bool = False


class _FleetWorld:
    def __init__(self, scenario: Scenario, policy: Policy, fleet: Fleet, seed: int) -> None:
        assert not isinstance(scenario.arrivals, ClosedLoop)
        self._scenario, self._policy, self._fleet = scenario, policy, fleet
        self._arrivals = scenario.arrivals
        self._rng = np.random.default_rng([seed, 7])
        draws = np.random.default_rng([seed, 8])
        self._router = Router(fleet.route, lambda below: int(draws.integers(below)))
        self._stray = scenario.pace.stray()
        lengths = scenario.lengths
        self._sizes: list[int] | None = None if lengths is None else lengths.sizes.tolist()
        self._mean_size = 1.0 if lengths is None else lengths.mean
        self._latencies = np.full(len(self._arrivals), math.nan)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self._started = itertools.count()
        self._serving: list[_Replica] = []
        self._ended: list[_Replica] = []
        self._starting = 0
        self._load = WorkRate(SCALED_S)
        self._wanted = [(0.0, len(fleet.speeds))]
        self._counts: list[tuple[float, int]] = []
        self._homeless: list[Item] = []  # of lost replicas, while there is no other
        self._batches = self._retried = 0

    def play(self) -> FleetOutcome:
        for speed in self._fleet.speeds:
            self._serve(speed)
        self._note(0.0)
        if self._fleet.lost_at is not None:
            self._at(self._fleet.lost_at, self._lose)
        if self._fleet.autoscale is not None:
            self._load.read(0.0, 0.0)
            self._at(_SCRAPE_S, self._scale)
        last = 0.0
        for number, at in enumerate(self._arrivals.tolist()):
            self._run_until(at)
            self._send(self._item(number, at), at)
            last = at
        for replica in list(self._serving):
            replica.scheduler.drain()  # a partial batch of `static` would wait for ever
            self._drive(replica, last)
        self._run_until(math.inf, after=last)
        everyone = sorted([*self._serving, *self._ended], key=lambda each: each.number)
        total = max(1, sum(each.requests for each in everyone))
        return FleetOutcome(
            arrived_at=self._arrivals,
            latencies_s=self._latencies,
            shares=[each.requests / total for each in everyone],
            batches=self._batches,
            retried=self._retried,
            replicas=self._counts,
            span_s=last,
        )

    def _item(self, number: int, at: float) -> Item:
        size = 0 if self._sizes is None else self._sizes[number]
        item = Item(number, at, size=size)
        callers = self._scenario.callers
        return item if callers is None else callers.item(item)

    # ---- events

    def _at(self, when: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), act))

    def _run_until(self, until: float, *, after: float | None = None) -> None:
        """All events up to that moment; once arrivals have ended (`after`), until all is
        answered."""
        while self._events and self._events[0][0] <= until:
            if after is not None and self._is_done:
                return
            now, _, act = heapq.heappop(self._events)
            act(now)

    @property
    def _is_done(self) -> bool:
        return not self._homeless and not any(each.held for each in self._serving)

    def _serve(self, speed: float) -> None:
        scenario, lengths = self._scenario, self._scenario.lengths
        if lengths is None:
            seconds = [each * speed for each in scenario.seconds_by_rows]
            table = probe(seconds, 0.0, self._rng)
        else:
            profile = _Slower(lengths.profile, speed)
            largest = int(lengths.sizes.max())
            table = probe_sizes(profile, scenario.max_rows, largest, 0.0, self._rng)
        scheduler = Scheduler(self._policy, table)
        size = 0 if lengths is None else int(self._mean_size)
        view = ReplicaView(pace_of(scheduler.costs, size, scheduler.cap_rows))
        self._serving.append(_Replica(next(self._started), speed, scheduler, view))

    def _send(self, item: Item, now: float) -> None:
        open_ = [each for each in self._serving if not each.is_leaving]
        if not open_:
            self._homeless.append(item)
            return
        weight = item.size / self._mean_size if item.size else 1.0
        replica = open_[self._router.choose([each.view for each in open_], now, weight)]
        replica.requests += 1
        try:
            replica.scheduler.submit(item._replace(arrived_at=now))
        except Unavailable:
            return
        replica.held[item.id] = item
        replica.view.sent(item.id, now, weight)
        self._drive(replica, now)

    def _drive(self, replica: _Replica, now: float) -> None:
        while True:
            action = replica.scheduler.next_action(now)
            if isinstance(action, Wait):
                if action.until < math.inf and action.until != replica.wake_at:
                    replica.wake_at = action.until
                    self._at(action.until, lambda at: self._woken(replica, at))
                return
            if isinstance(action, Run):
                self._start(replica, action.batch, now)
            else:
                for refusal in action.refusals:
                    del replica.held[refusal.item.id]
                    replica.view.failed(refusal.item.id)

    def _woken(self, replica: _Replica, now: float) -> None:
        if replica.wake_at == now:
            replica.wake_at = math.inf
            self._drive(replica, now)

    def _start(self, replica: _Replica, batch: Batch, now: float) -> None:
        lengths = self._scenario.lengths
        if lengths is None:
            ran_s = self._scenario.seconds_by_rows[batch.padded_rows]
        else:
            sizes = sum(item.rows * item.size for item in batch.items)
            size = sizes / batch.rows if batch.is_packed else batch.size
            ran_s = lengths.profile.seconds_at(batch.padded_rows, size)
        ran_s *= replica.speed * next(self._stray, 1.0) * self._scenario.pace.at(now)
        self._batches += 1
        replica.running[batch.id] = batch
        self._at(now + ran_s, lambda at: self._finish(replica, batch, ran_s, at))

    def _finish(self, replica: _Replica, batch: Batch, ran_s: float, now: float) -> None:
        if replica.running.pop(batch.id, None) is None:
            return  # it was lost
        replica.work_s += replica.scheduler.finish(batch, now, ran_s=ran_s)
        for item in batch.items:
            first = replica.held.pop(item.id)
            self._latencies[item.id] = now - first.arrived_at
            replica.view.answered(item.id, now)
        self._drive(replica, now)
        if replica.is_leaving and not replica.held:
            self._end(replica)

    # ---- replicas come and go

    def _lose(self, now: float) -> None:
        replica = self._serving[0]
        held = list(replica.held.values())
        replica.running.clear()
        replica.held.clear()
        replica.wake_at = math.nan
        self._end(replica)
        self._retried += len(held)
        for item in held:
            self._send(item, now)
        self._begin(replica.speed, now)
        self._note(now)

    def _end(self, replica: _Replica) -> None:
        self._serving.remove(replica)
        self._ended.append(replica)

    def _begin(self, speed: float, now: float) -> None:
        self._starting += 1
        self._at(now + self._fleet.cold_start_s, lambda at: self._begun(speed, at))

    def _begun(self, speed: float, now: float) -> None:
        self._starting -= 1
        self._serve(speed)
        waiting, self._homeless = self._homeless, []
        for item in waiting:
            self._send(item, now)

    def _note(self, now: float) -> None:
        self._counts.append((now, self._here))

    @property
    def _here(self) -> int:
        return self._starting + sum(not each.is_leaving for each in self._serving)

    def _scale(self, now: float) -> None:
        """Kubernetes' controller, with both figures: up at once, down slowly."""
        scale = self._fleet.autoscale
        assert scale is not None
        self._at(now + _SCRAPE_S, self._scale)
        open_ = [each for each in self._serving if not each.is_leaving]
        work_s = sum(each.work_s for each in (*self._serving, *self._ended))
        load = self._load.read(now, work_s) + self._starting * LOADING_WORK
        queued_s = sum(each.scheduler.queued_s for each in open_)
        wanted, here = replicas_for(load, queued_s, target_wait_s=scale.target_wait_s), self._here
        exact = replicas_for(load * 100, queued_s * 100, target_wait_s=scale.target_wait_s) / 100
        if here and abs(exact / here - 1.0) <= _TOLERANCE:
            wanted = here
        wanted = min(max(wanted, scale.least), scale.most, max(here + 4, 2 * here))
        self._wanted = [each for each in self._wanted if each[0] > now - scale.hold_s]
        self._wanted.append((now, wanted))
        self._change(max(count for _, count in self._wanted), now)

    def _change(self, wanted: int, now: float) -> None:
        here = self._here
        for _ in range(here, wanted):
            self._begin(1.0, now)
        leaving = [each for each in self._serving if not each.is_leaving][max(1, wanted) :]
        if wanted < here and not self._starting:
            for replica in leaving:
                replica.is_leaving = True
                if not replica.held:
                    self._end(replica)
        if self._here != here:
            self._note(now)


@dataclass(frozen=True, slots=True)
class _Slower:
    profile: Any
    speed: float

    def seconds_at(self, rows: int, size: float) -> float:
        seconds: float = self.profile.seconds_at(rows, size)
        return seconds * self.speed
