"""How long batches take: a law or a measured table, the noise on it, and probes of it.

A profile holds the true batch times of a simulated model. The scheduler never sees it: it gets
the times that the probes of a warm-up would have measured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headway.core.costs import CostTable, next_probe, probe_rows
from headway.errors import ConfigError

_PROBE_REPEATS = 5
_SORTED = 4096  # items from which a capacity is computed


class Profile(Protocol):
    def seconds(self, rows: int) -> float:
        """The time of a batch of `rows` rows."""


class SizedProfile(Protocol):
    def seconds_at(self, rows: int, size: float) -> float:
        """The time of a batch of `rows` rows, each padded to `size`."""


@dataclass(frozen=True, slots=True)
class PowerProfile:
    """l(b) = alpha + beta · b ** exponent."""

    alpha_s: float
    beta_s: float
    exponent: float = 1.0

    def __post_init__(self) -> None:
        values = (self.alpha_s, self.beta_s, self.exponent)
        if not all(np.isfinite(values)) or min(values) < 0 or self.alpha_s + self.beta_s <= 0:
            raise ConfigError(
                "times and exponent must be at least 0, and a batch must take some time"
            )

    def seconds(self, rows: int) -> float:
        return self.alpha_s + self.beta_s * math.pow(rows, self.exponent)


@dataclass(frozen=True, slots=True)
class TileProfile:
    """The hardware computes rows in tiles: a partly filled tile takes as long as a full one."""

    base: Profile
    tile: int

    def __post_init__(self) -> None:
        if self.tile < 1:
            raise ConfigError("a tile has at least one row")

    def seconds(self, rows: int) -> float:
        return self.base.seconds(-(-rows // self.tile) * self.tile)


@dataclass(frozen=True, slots=True)
class KneeProfile:
    """Up to `best` rows as `base`; each further row takes `penalty` times the time of one there."""

    base: Profile
    best: int
    penalty: float = 3.0

    def seconds(self, rows: int) -> float:
        at_best = self.base.seconds(min(rows, self.best))
        return at_best + self.penalty * at_best / self.best * max(0, rows - self.best)


@dataclass(frozen=True, slots=True)
class TokenProfile:
    """The time of `rows`, plus `token_s` for each slot (row × size) of the batch."""

    rows: Profile
    token_s: float

    def seconds_at(self, rows: int, size: float) -> float:
        return self.rows.seconds(rows) + self.token_s * rows * size


class TableProfile:
    """Measured times: lines between the measured row counts, in proportion beyond the last."""

    def __init__(self, table: CostTable, size: int | None = None) -> None:
        """`size`: at which item size to read a table that has sizes. None: the middle one."""
        self._table = table
        self._rows = table.rows
        self._seconds = _at_size(table, size)

    def seconds_at(self, rows: int, size: float) -> float:
        sizes, last = self._table.sizes or (1,), self._rows[-1]
        by_rows = [np.interp(size, sizes, row) for row in self._table.seconds]
        longer = max(1.0, size / sizes[-1]) if self._table.sizes else 1.0
        more = max(1.0, rows / last)
        return float(np.interp(rows, self._rows, by_rows)) * longer * more

    def seconds(self, rows: int) -> float:
        last = self._rows[-1]
        if rows > last:
            return self._seconds[-1] * rows / last
        return float(np.interp(rows, self._rows, self._seconds))


def _at_size(table: CostTable, size: float | None) -> list[float]:
    if not table.sizes:
        return [row[0] for row in table.seconds]
    if size is None:
        size = table.sizes[len(table.sizes) // 2]
    return [float(np.interp(size, table.sizes, row)) for row in table.seconds]


def batch_seconds(profile: Profile, max_rows: int) -> tuple[float, ...]:
    """The profile as a look-up: seconds by row count, 0 for none."""
    return (0.0, *(profile.seconds(rows) for rows in range(1, max_rows + 1)))


def capacity_rps(seconds: Sequence[float], workers: float = 1) -> float:
    """The most rows per second that batches of the best size reach."""
    return workers * max(rows / seconds[rows] for rows in range(1, len(seconds)))


def packed_capacity_rps(
    profile: SizedProfile,
    mean_size: float,
    max_rows: int,
    max_cost: float = math.inf,
    workers: float = 1,
) -> float:
    """The most rows per second without padding, if all rows have the mean size."""
    most = int(max(1, min(max_rows, max_cost // mean_size)))
    return workers * max(rows / profile.seconds_at(rows, mean_size) for rows in range(1, most + 1))


def sorted_capacity_rps(
    profile: SizedProfile,
    sizes: NDArray[np.int64],
    max_rows: int,
    max_cost: float = math.inf,
    workers: float = 1,
) -> float:
    """The most items per second of a model that pads, with full batches in the order of sizes."""
    ordered = np.sort(sizes)[:: max(1, len(sizes) // _SORTED)][::-1].tolist()
    seconds, at = 0.0, 0
    while at < len(ordered):
        longest = ordered[at]
        most = int(max(1, min(max_rows, max_cost // longest, len(ordered) - at)))
        rows = max(range(1, most + 1), key=lambda rows: rows / profile.seconds_at(rows, longest))
        seconds += profile.seconds_at(rows, longest)
        at += rows
    return workers * len(ordered) / seconds


NOISE_LAWS = ("lognormal", "gamma", "uniform")


@dataclass(frozen=True, slots=True)
class Noise:
    """How a batch's time varies: factors with mean 1, and stragglers."""

    cv: float = 0.0
    law: str = "lognormal"
    stragglers: float = 0.0  # the share of batches that are …
    times_slower: float = 10.0  # … slower by this factor

    @property
    def varies(self) -> bool:
        return self.cv > 0.0 or self.stragglers > 0.0

    def factors(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        factors = noise_factors(count, self.cv, rng, self.law)
        if self.stragglers:
            is_slow = rng.random(count) < self.stragglers
            factors = np.where(is_slow, factors * self.times_slower, factors)
        return factors


def noise_factors(
    count: int, cv: float, rng: np.random.Generator, law: str = "lognormal"
) -> NDArray[np.float64]:
    """Factors with mean 1 and the coefficient of variation `cv`."""
    if cv == 0.0:
        return np.ones(count)
    if law == "gamma":
        return rng.gamma(1.0 / cv**2, cv**2, count)
    if law == "uniform":  # as wide as `cv` needs, but no factor below 0.1
        half = min(0.9, math.sqrt(3.0) * cv)
        return rng.uniform(1.0 - half, 1.0 + half, count)
    variance = np.log1p(cv * cv)
    return rng.lognormal(-variance / 2, np.sqrt(variance), count)


def probe(
    seconds: Sequence[float],
    noise: "Noise | float",
    rng: np.random.Generator,
    rows: Sequence[int] | None = None,
) -> CostTable:
    """The table that a warm-up would measure: each size's median of a few runs, and the spread."""
    if rows is None:
        rows = _rows_worth_timing(seconds)
    return _probed(rows, None, [[seconds[each]] for each in rows], _noise(noise), rng)


def _rows_worth_timing(seconds: Sequence[float]) -> list[int]:
    timed: dict[int, float] = {}
    while (rows := next_probe(timed, len(seconds) - 1)) is not None:
        timed[rows] = seconds[rows]
    return sorted(timed)


def probe_sizes(
    profile: SizedProfile,
    max_rows: int,
    largest: int,
    noise: "Noise | float",
    rng: np.random.Generator,
    rows: Sequence[int] | None = None,
) -> CostTable:
    """The same with item sizes, which double up to the largest."""
    rows, sizes = rows or probe_rows(max_rows, coarse=True), doubled(largest)
    seconds = [[profile.seconds_at(each, size) for size in sizes] for each in rows]
    return _probed(rows, tuple(sizes), seconds, _noise(noise), rng)


def doubled(largest: int) -> list[int]:
    """1, 2, 4, … and the largest."""
    sizes = [1]
    while sizes[-1] * 2 < largest:
        sizes.append(sizes[-1] * 2)
    return sizes if largest == 1 else [*sizes, largest]


def _noise(noise: "Noise | float") -> Noise:
    return noise if isinstance(noise, Noise) else Noise(noise)


def _probed(
    rows: Sequence[int],
    sizes: tuple[int, ...] | None,
    seconds: Sequence[Sequence[float]],
    noise: Noise,
    rng: np.random.Generator,
) -> CostTable:
    medians, errors = [], []
    for line in seconds:
        cells = []
        for true_s in line:
            factors = noise.factors(_PROBE_REPEATS, rng)
            repeats = [true_s * float(factor) for factor in factors]
            cells.append(median(repeats))
            errors += [repeat / cells[-1] - 1.0 for repeat in repeats]
        medians.append(tuple(cells))
    return CostTable(tuple(rows), sizes, tuple(medians), errors=tuple(errors))
