"""The search for a rate, on a server of a known law whose probes are disturbed at random."""

import math
from dataclasses import dataclass

import numpy as np
import pytest

from headway.loadgen.rate_search import (
    FASTEST,
    LONGER,
    SLOWEST,
    Ended,
    LimitBelief,
    RateProbe,
    RateSearch,
)

PROBE_S, BUDGET_S = 1.3, 58.0
# The law of 5 ms and 0.05 ms a row, at most 64 rows: rates, and the logarithm of p99 ÷ 15 ms.
RATES = (100, 1000, 2000, 4000, 5000, 5500, 5800, 6000, 6168, 6300, 6500, 6800, 7200, 7600)
STRAINS = (
    -0.9,
    -0.348,
    -0.286,
    -0.159,
    -0.089,
    -0.054,
    -0.03,
    -0.015,
    0,
    0.009,
    0.025,
    0.056,
    *(0.13, 0.4),
)
LIMIT = 6168.0


@dataclass
class NoisyServer:
    seed: int
    disturbed: float = 0.0  # the share of probes that are held up …
    by: float = 0.7  # … by so much, in the mean
    noise: float = 0.007  # of one probe beside another

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def strain(self, ask: RateProbe) -> float:
        if ask.rate_rps > RATES[-1]:
            return math.inf
        strain = float(np.interp(ask.rate_rps, RATES, STRAINS))
        strain += self.rng.normal(0, self.noise / math.sqrt(ask.times))
        if self.rng.random() < 1 - (1 - self.disturbed) ** ask.times:
            strain += self.rng.exponential(self.by)
        return strain


@dataclass
class Result:
    rate: float | None
    why: str
    took_s: float
    asked: list[tuple[RateProbe, float]]


def searched(server: NoisyServer, first: float = 4000.0) -> Result:
    search = RateSearch(
        first,
        precision=0.03,
        narrow_by=BUDGET_S - (2 * LONGER + 1) * PROBE_S,
        end=BUDGET_S - LONGER * PROBE_S,
    )
    now, asked = 0.0, []
    while isinstance(ask := search.next(now), RateProbe):
        assert SLOWEST <= ask.rate_rps <= FASTEST
        strain = server.strain(ask)
        asked.append((ask, strain))
        search.measured(ask, strain, has_room=True)
        now += 0.3 + ask.times
    return Result(search.held_rps, ask.why, now, asked)


@pytest.mark.parametrize("disturbed", [0.0, 0.1, 0.2])
def test_the_rate_is_found_within_3_percent_however_probes_are_disturbed(disturbed: float) -> None:
    for seed in range(12):
        result = searched(NoisyServer(seed, disturbed))
        assert result.rate == pytest.approx(LIMIT, rel=0.03), seed
        assert result.took_s < BUDGET_S, seed


def test_the_rate_is_found_from_wherever_the_search_begins() -> None:
    for seed, first in enumerate((50.0, 700.0, 3000.0, 6168.0, 9000.0, 40_000.0, 1e9)):
        assert searched(NoisyServer(seed, 0.1), first).rate == pytest.approx(LIMIT, rel=0.03), first


def test_what_is_found_has_passed_a_long_probe_and_something_above_it_failed() -> None:
    for seed in range(6):
        result = searched(NoisyServer(seed, 0.3))
        if result.rate is None:
            assert result.why == "time"
            continue
        asked = result.asked
        assert any(ask == RateProbe(result.rate, LONGER) and strain <= 0 for ask, strain in asked)
        assert any(ask.rate_rps > result.rate and strain > 0 for ask, strain in asked)


def test_six_disturbed_probes_in_a_row_are_forgotten() -> None:
    """As when something else runs on the machine for a while."""

    class BusyAtFirst(NoisyServer):
        def strain(self, ask: RateProbe) -> float:
            self.busy = getattr(self, "busy", 6) - 1
            return super().strain(ask) + (0.6 if self.busy >= 0 else 0.0)

    for seed in range(6):
        assert searched(BusyAtFirst(seed)).rate == pytest.approx(LIMIT, rel=0.03), seed


def test_where_nothing_ever_passes_no_rate_is_named() -> None:
    class Late(NoisyServer):
        def strain(self, ask: RateProbe) -> float:
            return super().strain(ask) + 2.0

    result = searched(Late(0))
    assert result.rate is None
    assert result.why == "no limit in sight"


def test_a_limit_beyond_all_rates_is_not_in_sight() -> None:
    search = RateSearch(1000.0, precision=0.03, narrow_by=math.inf, end=math.inf)
    while isinstance(ask := search.next(0.0), RateProbe):
        search.measured(ask, -3.0, has_room=True)
    assert ask == Ended("no limit in sight")


def test_failures_without_room_for_the_client_say_little() -> None:
    with_room, without = LimitBelief(), LimitBelief()
    for belief, has_room in ((with_room, True), (without, False)):
        belief.observe(800.0, -0.2, times=1, has_room=True)
        for strain in (0.5, 0.4, 0.5):
            belief.observe(850.0, strain, times=1, has_room=has_room)
    [likely], [doubted] = with_room.shares(0.5), without.shares(0.5)
    assert likely < 850.0 < doubted
