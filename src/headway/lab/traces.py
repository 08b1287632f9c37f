"""Recorded traffic: when requests came, how large they were, and whose they were.

CSV files with a header (Azure's, ours), and JSON lines with the names of Mooncake: `timestamp` in
ms, `input_length`, `output_length`; ours add `size` and `tenant`.
"""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headway.errors import ConfigError
from headway.lab.workload import LONGEST, Sizes, Times

_SIZE_COLUMNS = ("size", "length", "tokens", "contexttokens", "input_length")
_OUTPUT_COLUMNS = ("generatedtokens", "output", "output_tokens", "output_length")
_COLUMNS = frozenset(["timestamp", "tenant", *_SIZE_COLUMNS, *_OUTPUT_COLUMNS])
_MOST_BYTES = 2**30  # of a file: it is read as a whole
_SHORTEST_S, _LONGEST_S = 1e-6, 1e12


def read_sizes(path: Path) -> Sizes:
    """Lengths, in their order, from a file: its column `size`, `length`, `tokens` or
    `contexttokens` or `input_length`, or its only one."""
    rows = _read_rows(path)
    names = [cell.strip().lower() for cell in rows[0]]
    found = [names.index(name) for name in _SIZE_COLUMNS if name in names]
    if not found and len(names) > 1:
        raise ConfigError(f"the trace {path} has no column named {', '.join(_SIZE_COLUMNS)}")
    column = found[0] if found else 0
    is_header = bool(found) or not names[0].replace(".", "").isdigit()
    try:
        sizes = np.array([float(row[column]) for row in rows[is_header:]])
    except (IndexError, ValueError) as error:
        raise ConfigError(f"the trace {path} has a bad length: {error}") from error
    return _whole(sizes, path)


def read_outputs(path: Path) -> Sizes:
    """The lengths of answers, in their order."""
    rows = _read_rows(path)
    cells = _column(rows, _OUTPUT_COLUMNS)
    if cells is None:
        raise ConfigError(f"the trace {path} has no column named {', '.join(_OUTPUT_COLUMNS)}")
    try:
        values = np.array([float(each) for each in cells])
    except ValueError as error:
        raise ConfigError(f"the trace {path} has a bad length: {error}") from error
    return _whole(values, path)


def _whole(sizes: Times, path: Path) -> Sizes:
    if not len(sizes) or not np.all(np.isfinite(sizes)) or sizes.max() > LONGEST:
        raise ConfigError(f"the trace {path} needs lengths from 1 to {LONGEST}")
    whole: Sizes = np.maximum(1, np.rint(sizes)).astype(np.int64)
    return whole


def read_tenants(path: Path) -> list[str] | None:
    """The tenant of each request, in the order of time; None: the trace has no tenants."""
    rows = _read_rows(path)
    names = _column(rows, ("tenant",))
    if names is None:
        return None
    column, has_header = _time_column(rows[0])
    times = _parse_times([row[column] for row in rows[has_header:]])
    shown = {name: "".join(c if c.isprintable() else "?" for c in name) for name in set(names)}
    return [shown[names[each]] for each in np.argsort(times, kind="stable")]


def _column(rows: Sequence[Sequence[str]], wanted: Sequence[str]) -> list[str] | None:
    names = [cell.strip().lower() for cell in rows[0]]
    found = [names.index(name) for name in wanted if name in names]
    if not found:
        return None
    return [row[found[0]] if len(row) > found[0] else "" for row in rows[1:]]


def _read_rows(path: Path) -> list[list[str]]:
    """The header, and a row for each request."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")
        if path.suffix in {".jsonl", ".ndjson"}:
            rows = _json_rows(path)
        else:
            with path.open(newline="", encoding="utf-8-sig") as file:
                rows = [row for row in csv.reader(file) if row]
    except (OSError, ValueError, OverflowError, RecursionError, csv.Error) as error:
        raise ConfigError(f"cannot read the trace {path}: {error}") from error
    if not rows:
        raise ConfigError(f"the trace {path} is empty")
    return rows


def _json_rows(path: Path) -> list[list[str]]:
    """In the order of time, which is in seconds afterwards."""
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(path.read_text("utf-8").splitlines(), 1):
        if text.strip():
            line = json.loads(text)
            if not isinstance(line, dict) or not isinstance(line.get("timestamp"), int | float):
                raise ValueError(f"line {number} has no timestamp in ms")
            lines.append(line)
    lines.sort(key=lambda line: float(line["timestamp"]))
    names = [
        name
        for name in dict.fromkeys(name for line in lines for name in line)
        if name.strip().lower() in _COLUMNS
    ]
    rows = [[str(line.get(name, "")) for name in names] for line in lines]
    at = names.index("timestamp") if names else 0
    for row in rows:
        row[at] = repr(float(row[at]) / 1e3)
    return [names, *rows] if rows else []


def read_trace(path: Path) -> Times:
    """Arrival times, from 0, of a file with a `timestamp` column (or its first column).

    A time is a number of seconds or a date like `2023-11-16 18:17:03.97`.
    """
    rows = _read_rows(path)
    column, has_header = _time_column(rows[0])
    try:
        times = _parse_times([row[column] for row in rows[has_header:]])
    except (IndexError, ValueError) as error:
        raise ConfigError(f"the trace {path} has a bad time: {error}") from error
    if len(times) < 2 or not np.all(np.isfinite(times)) or times.max() <= times.min():
        raise ConfigError(f"the trace {path} needs two different times at least")
    if not _SHORTEST_S <= times.max() / 2 - times.min() / 2 <= _LONGEST_S:
        raise ConfigError(f"the trace {path} lasts less than a microsecond, or for ages")
    from_zero: Times = np.sort(times) - times.min()
    return from_zero


def rate_of(trace: Times) -> float:
    return float((len(trace) - 1) / trace[-1])


def replay(trace: Times, requests: int, rate_rps: float | None = None) -> Times:
    """`requests` arrivals: the trace repeated, and scaled to a mean rate."""
    own_rate = rate_of(trace)
    period_s = len(trace) / own_rate  # one mean gap between the end and the next start
    rounds = np.arange(-(-requests // len(trace))) * period_s
    times = (rounds[:, None] + trace[None, :]).ravel()[:requests]
    return times if rate_rps is None else times * (own_rate / rate_rps)


def _time_column(first_row: Sequence[str]) -> tuple[int, bool]:
    """The column of the times, and whether the first row is a header."""
    names = [cell.strip().lower() for cell in first_row]
    if "timestamp" in names:
        return names.index("timestamp"), True
    try:
        _parse_times(first_row[:1])
    except ValueError:
        return 0, True
    return 0, False


def _parse_times(cells: Sequence[str]) -> Times:
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        moments = np.array([cell.strip() for cell in cells], dtype="datetime64[ns]")
        if np.isnat(moments).any():
            raise ValueError("an empty time") from None
        seconds: Times = (moments - moments[0]).astype(np.float64) / 1e9
        return seconds
