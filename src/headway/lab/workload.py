"""Arrival times and item lengths, drawn from a distribution (`traces` reads recorded ones).

Open loops are arrays of seconds, ascending, the same for every policy. In a closed loop the
arrivals depend on the answers, so only the think times are drawn here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from headway.errors import ConfigError

Times: TypeAlias = NDArray[np.float64]
Sizes: TypeAlias = NDArray[np.int64]
OpenLoop: TypeAlias = Callable[[int, float, np.random.Generator], Times]

_BURST_S, _CALM_S = 0.2, 0.4  # mean length of the two states of `mmpp`
_BURST_RATE, _CALM_RATE = 1.8, 0.6  # of the mean rate
_STEP_S = 2.0
_LOW_RATE, _HIGH_RATE = 2 * 20 / 110, 2 * 90 / 110  # 20 to 90, with a mean of 1
_DAY_S, _DAY_SWING = 10.0, 0.8  # `diurnal`: the relative amplitude of the rate in each "day"
_CRON_S, _CRON_SHARE = 0.25, 0.7  # `cron`: the period of bursts, and their share of the requests
_TRAIN_GAP_S = 0.001
_MAX_SPAN_S = 1e6  # of a rate that varies: its states are kept in memory
_GROUP_SIZE = 8
_GROUP_S = 0.002
LONGEST = 2**31


@dataclass(frozen=True, slots=True, eq=False)
class ClosedLoop:
    """Clients that each send one item, wait for its answer, think, and send the next."""

    clients: int
    think_s: Times  # one for each item, in the order of use
    pace: Times | None = None  # by client: the factor for its think times; None: all alike
    is_barrier: bool = False  # clients start to think only when all have been answered

    @property
    def requests(self) -> int:
        return len(self.think_s)


def poisson(requests: int, rate_rps: float, rng: np.random.Generator) -> Times:
    return np.cumsum(rng.exponential(1.0 / rate_rps, requests))


def mmpp(requests: int, rate_rps: float, rng: np.random.Generator) -> Times:
    """Poisson arrivals that switch between bursts (1.8× for 200 ms) and calm (0.6× for 400 ms)."""
    is_burst = rng.random() < _BURST_S / (_BURST_S + _CALM_S)
    lengths = (_BURST_S, _CALM_S) if is_burst else (_CALM_S, _BURST_S)
    rates = (_BURST_RATE, _CALM_RATE) if is_burst else (_CALM_RATE, _BURST_RATE)
    marks = np.cumsum(rng.exponential(1.0, requests))
    state_rng = np.random.default_rng(rng.integers(2**63))

    def draw(pairs: int) -> Times:
        return (state_rng.exponential(1.0, (pairs, 2)) * lengths).ravel()

    return _at_varying_rate(marks, rate_rps, rates, draw)


def step(requests: int, rate_rps: float, rng: np.random.Generator) -> Times:
    """Poisson arrivals with a rate that switches between low and high (20 to 90) every 2 s."""
    marks = np.cumsum(rng.exponential(1.0, requests))
    return _at_varying_rate(
        marks, rate_rps, (_LOW_RATE, _HIGH_RATE), lambda pairs: np.full(2 * pairs, _STEP_S)
    )


def fan_out(requests: int, rate_rps: float, rng: np.random.Generator) -> Times:
    """Groups of geometric size (mean 8), each spread over 2 ms; the groups are Poisson."""
    expected = requests / _GROUP_SIZE
    groups = int(expected + 6 * expected**0.5) + 16
    sizes = rng.geometric(1.0 / _GROUP_SIZE, groups)
    while sizes.sum() < requests:
        sizes = np.concatenate([sizes, rng.geometric(1.0 / _GROUP_SIZE, groups)])
    starts = np.cumsum(rng.exponential(_GROUP_SIZE / rate_rps, len(sizes)))
    times = np.repeat(starts, sizes) + rng.uniform(0.0, _GROUP_S, sizes.sum())
    return np.sort(times)[:requests]


def gamma(requests: int, rate_rps: float, rng: np.random.Generator, cv: float = 3.0) -> Times:
    """Gaps with a gamma law: `cv` 0 is a metronome, 1 is Poisson, 3 comes in clusters."""
    if cv == 0.0:
        return np.arange(1, requests + 1) / rate_rps
    shape = 1.0 / cv**2
    return np.cumsum(rng.gamma(shape, 1.0 / (shape * rate_rps), requests))


def constant(requests: int, rate_rps: float, rng: np.random.Generator) -> Times:
    """A metronome."""
    return gamma(requests, rate_rps, rng, cv=0.0)


def pareto(requests: int, rate_rps: float, rng: np.random.Generator, shape: float = 1.5) -> Times:
    """Gaps with a heavy tail: clusters at every scale, and long silences."""
    if shape <= 1.0:
        raise ConfigError("gaps with a Pareto law have a mean only for shapes above 1")
    gaps = rng.pareto(shape, requests) * (shape - 1.0)
    return np.cumsum(gaps / rate_rps)


def diurnal(
    requests: int, rate_rps: float, rng: np.random.Generator, swing: float = _DAY_SWING
) -> Times:
    """Poisson arrivals with a rate that rises and falls by the share `swing`, in "days" of 10 s."""
    if not 0.0 <= swing <= 1.0:
        raise ConfigError("the rate can swing by 0 to 1 of itself")
    marks = np.cumsum(rng.exponential(1.0 / rate_rps, requests))
    grid = np.linspace(0.0, marks[-1] + 2 * _DAY_S, int(40 * (marks[-1] / _DAY_S + 2)) + 1)
    summed = grid - swing * _DAY_S / (2 * np.pi) * (np.cos(2 * np.pi * grid / _DAY_S) - 1.0)
    times: Times = np.interp(marks, summed, grid)
    return times


def cron(
    requests: int, rate_rps: float, rng: np.random.Generator, period_s: float = _CRON_S
) -> Times:
    """A burst at one instant every `period_s` (70 % of all requests); the others are Poisson."""
    if period_s <= 0.0:
        raise ConfigError("bursts need a period above 0 s")
    bursts = int(requests / (rate_rps * period_s)) + 2
    sizes = rng.poisson(_CRON_SHARE * rate_rps * period_s, bursts)
    together = np.repeat(np.arange(1, bursts + 1) * period_s, sizes)
    others = np.cumsum(rng.exponential(1.0 / ((1 - _CRON_SHARE) * rate_rps), requests))
    return np.sort(np.concatenate([together, others]))[:requests]


def trains(
    requests: int, rate_rps: float, rng: np.random.Generator, gap_s: float = _TRAIN_GAP_S
) -> Times:
    """Groups of 8, each item `gap_s` behind the one before; the groups are Poisson."""
    groups = -(-requests // _GROUP_SIZE)
    starts = np.cumsum(rng.exponential(_GROUP_SIZE / rate_rps, groups))
    times = starts[:, None] + np.arange(_GROUP_SIZE) * gap_s
    return np.sort(times.ravel())[:requests]


OPEN_LOOPS: dict[str, OpenLoop] = {
    "poisson": poisson,
    "constant": constant,
    "mmpp": mmpp,
    "fanout": fan_out,
    "step": step,
    "gamma": gamma,
    "pareto": pareto,
    "diurnal": diurnal,
    "cron": cron,
    "trains": trains,
}
PARAMETERS = {"gamma": "cv", "pareto": "shape", "diurnal": "swing", "cron": "period_s"}
THINKING = ("exponential", "constant", "mixed")


def closed_loop(
    clients: int,
    think_s: float,
    requests: int,
    rng: np.random.Generator,
    thinking: str = "exponential",
) -> ClosedLoop:
    """`mixed`: exponential, and some clients think ten times as long as others."""
    if thinking == "constant":
        return ClosedLoop(clients, np.full(requests, think_s))
    pace = None
    if thinking == "mixed":
        pace = 10.0 ** rng.uniform(-0.5, 0.5, clients)
    return ClosedLoop(clients, rng.exponential(think_s, requests), pace)


def barrier(
    clients: int, think_s: float, jitter_s: float, requests: int, rng: np.random.Generator
) -> ClosedLoop:
    """Clients that wait for each other: all are answered, all think, all send again."""
    think = think_s + rng.uniform(0.0, jitter_s, requests)
    return ClosedLoop(clients, think, is_barrier=True)


def _at_varying_rate(
    marks: Times, rate_rps: float, rates: Sequence[float], draw: Callable[[int], Times]
) -> Times:
    """Put the marks of a unit Poisson process where the summed rate reaches them.

    `draw(n)` gives the lengths of n more pairs of states, which take turns at `rates`.
    """
    if marks[-1] > _MAX_SPAN_S * rate_rps:
        raise ConfigError(f"at this rate the requests would last over {_MAX_SPAN_S:.0f} s")
    lengths = draw(16)
    while True:
        per_state = np.tile(np.asarray(rates) * rate_rps, len(lengths) // 2)
        summed = np.concatenate([[0.0], np.cumsum(lengths * per_state)])
        if summed[-1] >= marks[-1]:
            times: Times = np.interp(marks, summed, np.concatenate([[0.0], np.cumsum(lengths)]))
            return times
        lengths = np.concatenate([lengths, draw(len(lengths) // 2)])


def of_tenants(
    law: OpenLoop, requests: int, rates: Mapping[str, float], seed: int
) -> tuple[Times, list[str]]:
    """The first `requests` arrivals of tenants that each follow the law, and whose they are."""
    together = sum(rates.values())
    times, owners = [], []
    for number, rate in enumerate(rates.values()):
        share = requests * rate / together
        enough = int(share + 8 * share**0.5) + 16
        times.append(law(enough, rate, np.random.default_rng([seed, 0, number])))
        owners.append(np.full(enough, number))
    merged = np.concatenate(times)
    order = np.argsort(merged, kind="stable")[:requests]
    names = list(rates)
    return merged[order], [names[each] for each in np.concatenate(owners)[order].tolist()]


# ---- lengths


def lognormal_sizes(
    requests: int, median: float, sigma: float, clip: int | None, rng: np.random.Generator
) -> Sizes:
    """Log-normal lengths: many short ones, a few long ones, none above `clip`."""
    sizes = np.rint(median * np.exp(sigma * rng.standard_normal(requests)))
    return np.clip(sizes, 1, clip or LONGEST).astype(np.int64)
