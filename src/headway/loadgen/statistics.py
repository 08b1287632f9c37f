"""What samples tell: rates, percentiles with their intervals, and whether to believe them.

Pure: samples go in, values come out.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from headway.lab.workload import Times
from headway.loadgen.connection import NO_ROOM, REFUSED
from headway.loadgen.samples import Samples, in_flight_at
from headway.loadgen.tokens import TokenLimits, TokenSummary, token_summary

PERCENTILES = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
_HELD = 0.98  # of the offered rate must be answered
_BLOCKS = 10  # of a run, for the test of drift
_T_95 = 2.306  # Student's t for 8 degrees of freedom: 95 % of both sides
_BUSY, _WAITING = 0.85, 0.10  # shares of a CPU from which the client is what is measured
_LATE_SHARE, _LATE_S = 0.05, 0.0005  # lateness is tolerated below either
_DRAWS = 200


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and where it lies with 95 % certainty; NaN: too few samples to say."""

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True, slots=True)
class Summary:
    """One point of load."""

    seconds: float
    offered: int  # requests that were due
    offered_rps: float
    answered: int
    answered_rps: float
    errors: dict[str, int]
    mean_s: float
    percentiles_s: dict[float, Interval]
    max_s: float
    late_p99_s: float
    busy: float
    waiting: float
    in_flight: float  # the mean
    is_saturated: bool  # it answers less than is due, or more and more wait
    tokens: TokenSummary | None = None  # of streams
    good: float | None = None  # the share that was answered within the SLO; None: there is none
    client_faults: tuple[str, ...] = ()  # why not the server, but this client was measured
    server_faults: tuple[str, ...] = ()  # why the server's figures cannot be believed

    @property
    def faults(self) -> tuple[str, ...]:
        return self.client_faults + self.server_faults

    @property
    def is_valid(self) -> bool:
        return not self.faults

    @property
    def has_room(self) -> bool:
        """The client had: the server was measured."""
        return not self.client_faults

    @property
    def was_away(self) -> bool:
        """At some time no server listened."""
        return REFUSED in self.errors

    @property
    def failed(self) -> int:
        return sum(self.errors.values())

    @property
    def error_share(self) -> float:
        return self.failed / self.offered if self.offered else 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a run that counts, in seconds from its start."""

    begin_s: float
    end_s: float
    slo_s: float | None = None
    token_limits: TokenLimits = field(default_factory=TokenLimits)

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


def open_summary(samples: Samples, window: Window) -> Summary:
    """Of the requests of an open loop that were due in the window."""
    due = samples.due_between(window.begin_s, window.end_s)
    done = samples.done_between(window.begin_s, window.end_s)
    offered_rps = len(due.due_s) / window.seconds
    left_rps = len(done.due_s) / window.seconds  # answered or refused
    slope, error = drift(samples, window)
    growth = slope * window.seconds
    is_growing = slope - error > 0 and growth > max(10.0, 0.01 * len(due.due_s))
    faults = []
    if is_growing and left_rps < _HELD * offered_rps:
        answered_rps = float(done.is_ok.sum()) / window.seconds
        faults.append(f"the rate was not held: {answered_rps:.6g}/s is what it can")
    elif is_growing:
        faults.append(f"more and more requests wait: {growth:.0f} over the run")
    client = _client_faults(due, is_open=True)
    return _summary(due, samples, window, (client, faults), is_saturated=is_growing)


def closed_summary(samples: Samples, window: Window) -> Summary:
    """Of the requests of a closed loop that were answered in the window."""
    done = samples.done_between(window.begin_s, window.end_s)
    client = _client_faults(done, is_open=False)
    return _summary(done, samples, window, (client, []), is_saturated=False)


def _summary(
    counted: Samples,
    samples: Samples,
    window: Window,
    faults: tuple[list[str], list[str]],  # the client's, the server's
    *,
    is_saturated: bool,
) -> Summary:
    latencies = counted.latencies_s
    begun = counted.due_s[counted.is_ok | np.isinf(counted.done_s)]
    offered, ok = len(counted.due_s), int(counted.is_ok.sum())
    client, server = faults
    if REFUSED in counted.errors:
        server = [*server, f"the server was away: {counted.errors[REFUSED]} × {REFUSED}"]
    if not ok:
        server = [*server, "no request was answered"]
    good = None
    if window.slo_s is not None:
        good = float((latencies <= window.slo_s).sum()) / offered if offered else 0.0
    moments = np.linspace(window.begin_s, window.end_s, 200)
    done = samples.done_between(window.begin_s, window.end_s)
    return Summary(
        seconds=window.seconds,
        offered=offered,
        offered_rps=offered / window.seconds,
        answered=ok,
        answered_rps=float(done.is_ok.sum()) / window.seconds,
        errors=counted.errors,
        mean_s=float(latencies.mean()) if len(latencies) else math.nan,
        percentiles_s={each: percentile(latencies, begun, each) for each in PERCENTILES},
        max_s=float(latencies.max()) if len(latencies) else math.nan,
        late_p99_s=float(np.percentile(counted.late_s, 99)) if offered else 0.0,
        busy=samples.room.busy,
        waiting=samples.room.waiting,
        in_flight=float(in_flight_at(samples, moments).mean()),
        is_saturated=is_saturated,
        tokens=_tokens(counted, window),
        good=good,
        client_faults=tuple(client),
        server_faults=tuple(server),
    )


def _tokens(counted: Samples, window: Window) -> TokenSummary | None:
    if counted.tokens is None:
        return None
    return token_summary(
        counted.tokens, counted.due_s, window.begin_s, window.end_s, window.token_limits
    )


def _client_faults(samples: Samples, *, is_open: bool) -> list[str]:
    """Reasons why not the server but this client was measured."""
    faults = []
    room = samples.room
    if is_open and len(samples.late_s) and len(samples.latencies_s):
        late = float(np.percentile(samples.late_s, 99))
        p99 = quantile(np.sort(samples.latencies_s), 99)
        if late > max(_LATE_SHARE * p99, _LATE_S):
            faults.append(f"1 % of the requests left more than {late * 1e3:.3g} ms late")
    faults += [kind for kind in samples.errors if kind.startswith(NO_ROOM)]
    if room.busy > _BUSY:
        faults.append(f"the client used {room.busy:.0%} of a core")
    if room.waiting > _WAITING:
        faults.append(f"the client waited for a CPU {room.waiting:.0%} of the time")
    return faults


def drift(samples: Samples, window: Window) -> tuple[float, float]:
    """By how much the number in flight grows a second, and half its 95 % interval."""
    moments = np.linspace(window.begin_s, window.end_s, _BLOCKS * 20, endpoint=False)
    means = in_flight_at(samples, moments).reshape(_BLOCKS, -1).mean(axis=1)
    x = (np.arange(_BLOCKS) - (_BLOCKS - 1) / 2) * window.seconds / _BLOCKS
    slope = float(x @ means / (x @ x))
    residual = means - means.mean() - slope * x
    deviation = math.sqrt(float(residual @ residual) / (_BLOCKS - 2) / float(x @ x))
    return slope, _T_95 * deviation


# ---- percentiles


def quantile(ascending: Times, percent: float) -> float:
    """The sample at this rank; unlike an interpolation, it may be infinite."""
    if not len(ascending):
        return math.nan
    return float(ascending[min(len(ascending) - 1, math.ceil(len(ascending) * percent / 100) - 1)])


def percentile(latencies_s: Times, begun_s: Times, percent: float) -> Interval:
    """With its 95 % interval: by order statistics, or over whole seconds of the run, because
    requests of one batch, or one busy moment, are alike; the wider one."""
    ascending = np.sort(latencies_s)
    value, count, share = quantile(ascending, percent), len(ascending), percent / 100
    spread = 1.96 * math.sqrt(count * share * (1 - share))
    low, high = math.floor(count * share - spread), math.ceil(count * share + spread)
    if low < 0 or high >= count:
        return Interval(value)
    own = float(ascending[low]), float(ascending[high])
    blocks = _by_blocks(latencies_s, begun_s, percent)
    return Interval(value, min(own[0], blocks[0]), max(own[1], blocks[1]))


def _by_blocks(latencies_s: Times, begun_s: Times, percent: float) -> tuple[float, float]:
    """The interval if whole seconds are drawn again and again (a block bootstrap)."""
    seconds = np.floor(begun_s - begun_s.min()).astype(np.int64)
    finite = latencies_s[np.isfinite(latencies_s)]
    if seconds.max() < 4 or not len(finite):
        return math.inf, -math.inf
    edges = np.geomspace(max(1e-6, float(finite.min())), float(finite.max()) + 1e-6, 1000)
    bins = np.searchsorted(edges, latencies_s)
    counts = np.zeros((seconds.max() + 1, len(edges) + 1))
    np.add.at(counts, (seconds, bins), 1)
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(len(counts), np.full(len(counts), 1 / len(counts)), _DRAWS) @ counts
    summed = np.cumsum(drawn, axis=1)
    ranks = (summed < summed[:, -1:] * percent / 100).sum(axis=1)
    values = np.append(edges, math.inf)[ranks]
    low, high = np.quantile(values, (0.025, 0.975), method="nearest")
    return float(low), float(high)
