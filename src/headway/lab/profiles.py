"""How long batches take: a law or a measured table, the noise on it, and probes of it.

A profile is the truth of a simulated model. The scheduler never sees it: it gets what the
probes of a warm-up would have measured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headway.core import CostTable, probe_rows
from headway.errors import ConfigError

_PROBE_REPEATS = 5


class Profile(Protocol):
    def seconds(self, rows: int) -> float:
        """What a batch of so many rows takes."""
        ...


class SizedProfile(Protocol):
    def seconds_at(self, rows: int, size: float) -> float:
        """What a batch of so many rows takes, each as long as that."""
        ...


@dataclass(frozen=True, slots=True)
class PowerProfile:
    """l(b) = alpha + beta · b ** exponent."""

    alpha_s: float
    beta_s: float
    exponent: float = 1.0

    def __post_init__(self) -> None:
        values = (self.alpha_s, self.beta_s, self.exponent)
        if not all(np.isfinite(values)) or min(values) < 0 or self.alpha_s + self.beta_s <= 0:
            raise ConfigError("times and exponent must be at least 0, and a batch take some time")

    def seconds(self, rows: int) -> float:
        return self.alpha_s + self.beta_s * math.pow(rows, self.exponent)


@dataclass(frozen=True, slots=True)
class TokenProfile:
    """What a batch takes whatever its length, and so much more for each slot of it."""

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


def capacity_rps(seconds: Sequence[float], workers: int = 1) -> float:
    """The most rows per second that batches of the best size reach."""
    return workers * max(rows / seconds[rows] for rows in range(1, len(seconds)))


def packed_capacity_rps(
    profile: SizedProfile,
    mean_size: float,
    max_rows: int,
    max_cost: float = math.inf,
    workers: int = 1,
) -> float:
    """The most rows per second where nothing is padded: all as long as they are on average."""
    most = int(max(1, min(max_rows, max_cost // mean_size)))
    return workers * max(rows / profile.seconds_at(rows, mean_size) for rows in range(1, most + 1))


def noise_factors(count: int, cv: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Lognormal factors with mean 1 and that coefficient of variation."""
    variance = np.log1p(cv * cv)
    return rng.lognormal(-variance / 2, np.sqrt(variance), count)


def probe(seconds: Sequence[float], noise_cv: float, rng: np.random.Generator) -> CostTable:
    """What a warm-up would measure: each size a few times, its median, and the spread."""
    rows = probe_rows(len(seconds) - 1)
    return _probed(rows, None, [[seconds[each]] for each in rows], noise_cv, rng)


def probe_sizes(
    profile: SizedProfile,
    max_rows: int,
    largest: int,
    noise_cv: float,
    rng: np.random.Generator,
) -> CostTable:
    """The same, at sizes that double up to the largest."""
    rows, sizes = probe_rows(max_rows), probe_rows(largest)
    seconds = [[profile.seconds_at(each, size) for size in sizes] for each in rows]
    return _probed(rows, tuple(sizes), seconds, noise_cv, rng)


def _probed(
    rows: Sequence[int],
    sizes: tuple[int, ...] | None,
    seconds: Sequence[Sequence[float]],
    noise_cv: float,
    rng: np.random.Generator,
) -> CostTable:
    medians, errors = [], []
    for line in seconds:
        cells = []
        for true_s in line:
            factors = noise_factors(_PROBE_REPEATS, noise_cv, rng)
            repeats = [true_s * float(factor) for factor in factors]
            cells.append(median(repeats))
            errors += [repeat / cells[-1] - 1.0 for repeat in repeats]
        medians.append(tuple(cells))
    return CostTable(tuple(rows), sizes, tuple(medians), errors=tuple(errors))
