"""Measured batch times: the table that a warm-up makes, and its JSON form."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.core.policy import MOST_COUNT, MOST_ROWS, tuple_of
from headway.errors import ConfigError

_MS = 1e3  # in a second
_MOST_ERROR = 1e6  # relative to the expected time


@dataclass(frozen=True, slots=True)
class CostTable:
    """Probed batch times. The JSON form is shared by warm-up tables and `simulate --profile`."""

    rows: tuple[int, ...]
    sizes: tuple[int, ...] | None
    seconds: tuple[tuple[float, ...], ...]  # by row count, then by size (one column if no sizes)
    memory_bytes: tuple[tuple[int, ...], ...] | None = None
    errors: tuple[float, ...] = ()  # relative spread of the repeated probes, where known

    def __post_init__(self) -> None:
        self._take_lists()
        _check_axis("rows", self.rows)
        if self.sizes:
            _check_axis("sizes", self.sizes)
        if self.rows[-1] > MOST_ROWS:
            raise ConfigError(f"must be at most {MOST_ROWS}, not {self.rows[-1]}", field="rows")
        columns = len(self.sizes) if self.sizes else 1
        if len(self.seconds) != len(self.rows) or any(len(r) != columns for r in self.seconds):
            raise ConfigError(f"needs {len(self.rows)} rows of {columns} times", field="ms")
        if not all(0 < second < math.inf for row in self.seconds for second in row):
            raise ConfigError("every time must be more than 0, and finite", field="ms")
        if not all(-1 <= error <= _MOST_ERROR for error in self.errors):
            raise ConfigError(f"must be from -1 to {_MOST_ERROR:g}", field="errors")

    def _take_lists(self) -> None:
        """Convert lists and numpy's numbers: compiled code needs tuples of Python numbers."""
        taken: dict[str, object] = {
            "rows": tuple_of("rows", self.rows),
            "seconds": _cells("ms", self.seconds, float),
            "errors": _numbers("errors", self.errors, float),
        }
        if self.sizes is not None:
            taken["sizes"] = tuple_of("sizes", self.sizes)
        if self.memory_bytes is not None:
            taken["memory_bytes"] = _cells("memory_bytes", self.memory_bytes, int)
        for name, value in taken.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_json(cls, table: object) -> "CostTable":
        """Read `{"rows": […], "sizes": […] | null, "ms": [[…]], "memory_bytes": [[…]] | null}`."""
        try:
            if not isinstance(table, dict):
                raise TypeError(f"not an object but {table!r:.40}")
            sizes, memory = table.get("sizes"), table.get("memory_bytes")
            ms = [row if isinstance(row, list) else [row] for row in table["ms"]]
            return cls(
                rows=tuple(int(row) for row in table["rows"]),
                sizes=None if sizes is None else tuple(int(size) for size in sizes),
                seconds=tuple(tuple(float(cell) / _MS for cell in row) for row in ms),
                memory_bytes=None
                if memory is None
                else tuple(tuple(int(cell) for cell in row) for row in memory),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ConfigError(
                'a cost table is {"rows": [1, 2, …], "sizes": [32, …] or null, "ms": [[…], …]}; '
                f"this one has {error!r}"
            ) from error

    def to_json(self) -> dict[str, object]:
        return {
            "rows": list(self.rows),
            "sizes": None if self.sizes is None else list(self.sizes),
            "ms": [[round(cell * _MS, 6) for cell in row] for row in self.seconds],
            "memory_bytes": None
            if self.memory_bytes is None
            else [list(row) for row in self.memory_bytes],
        }


def _cells(name: str, rows: object, number: Callable[[Any], Any]) -> tuple[tuple[Any, ...], ...]:
    return tuple(_numbers(name, row, number) for row in tuple_of(name, rows))


def _numbers(name: str, values: object, number: Callable[[Any], Any]) -> tuple[Any, ...]:
    try:
        return tuple(number(value) for value in tuple_of(name, values))
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"must be numbers: {error}", field=name) from error


def _check_axis(name: str, axis: tuple[int, ...]) -> None:
    for number in axis:
        if type(number) is not int:  # compiled code does not accept numpy's integers
            raise ConfigError(f"must be whole numbers, not {number!r}", field=name)
        if abs(number) > MOST_COUNT:
            raise ConfigError(f"must be at most {MOST_COUNT}", field=name)
    if not axis or list(axis) != sorted(set(axis)) or axis[0] < 1:
        raise ConfigError(f"must be positive and ascending, not {axis}", field=name)
