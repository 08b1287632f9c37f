"""What the last minutes would have been with another setting: replayed through the simulator.

Arrivals, rows, sizes, classes, tenants and deadlines are those that the server has seen; batch
times are those that it has measured. What was refused is not replayed: nothing is kept of it.
"""

from collections import defaultdict
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from headway.core.costs import CostTable
from headway.core.items import Priority
from headway.core.policy import Compose, Firing, Order, Policy, choice, read_buckets
from headway.errors import ConfigError, nearest
from headway.lab.profiles import Noise, PowerProfile, TableProfile, TokenProfile
from headway.lab.simulate import Callers, Lengths, Outcome, Scenario, simulate
from headway.lab.what_if import sizes_up_to

_ENOUGH = 100  # items, for percentiles that mean something
_TRUSTED = 0.15  # how far the simulated p99 of what happened may be off
_NUMBERS = {
    "max_batch_size": int,
    "max_batch_cost": int,
    "max_queue": int,
    "workers": int,
    "max_wait_ms": float,
    "slo_ms": float,
    "slo_percentile": float,
}
_CHOICES = {"policy": Firing, "order": Order, "compose": Compose}


class _Seen(NamedTuple):
    """The items of one model, in the order of arrival, and its batches."""

    items: list[Any]
    batches: list[Any]
    latencies_s: "np.ndarray[Any, Any]"
    span_s: float


def changes_of(text: str) -> dict[str, Any]:
    """`max_batch_size=16,policy=window` as settings. Raises ConfigError."""
    changes: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (each.strip() for each in part.partition("="))
        if name not in _NUMBERS and name not in _CHOICES:
            known = [*_NUMBERS, *_CHOICES]
            hint = nearest(name, known) or f"; known are {', '.join(known)}"
            raise ConfigError(f"--what-if: {name!r} cannot be simulated{hint}")
        try:
            changes[name] = _NUMBERS[name](value) if name in _NUMBERS else value
        except ValueError:
            raise ConfigError(f"--what-if: {name} is a number, not {value!r}") from None
    return changes


def what_if(page: Any, changes: dict[str, Any]) -> list[str]:
    """The answer in lines. Raises ConfigError where a setting is wrong."""
    [(model, seen)] = _models_of(page).items() or [(None, None)]
    if model is None or seen is None:
        raise ConfigError("--what-if: no batch has ended yet")
    name, version = model
    settings = next(
        each["settings"] for each in page["models"] if (each["model"], each["version"]) == model
    )
    as_it_was, changed = _policy(settings), _policy({**settings, **changes})
    before, after = (_simulate(seen, policy) for policy in (as_it_was, changed))
    real_p99 = float(np.percentile(seen.latencies_s, 99))
    off = abs(before.percentile_s(99) / real_p99 - 1)
    lines = [
        f"{name}, version {version}: {len(seen.items)} items in {len(seen.batches)} batches, "
        f"{seen.span_s:.1f} s",
        f"{'':24}{'p50 ms':>10}{'p99 ms':>10}{'items/s':>10}{'a batch':>10}{'refused':>10}",
        _row("as it was", seen.latencies_s, seen.span_s, len(seen.batches), 0),
        _row("simulated as it was", *_figures(before)),
        _row(", ".join(f"{key}={value}" for key, value in changes.items()), *_figures(after)),
    ]
    if len(seen.items) < _ENOUGH:
        lines.append(f"only a hint: {len(seen.items)} items are too few for a p99")
    if off > _TRUSTED:
        lines.append(f"only a hint: the simulated p99 of what happened is off by {off:.0%}")
    largest = max(batch["rows"] for batch in seen.batches)
    if changed.max_batch_size > largest:
        lines.append(f"no batch had more than {largest} rows: the time of larger ones is a guess")
    return lines


def _models_of(page: Any) -> dict[tuple[str, str], _Seen]:
    found: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for batch in page["batches"]:
        if batch["lost"] is None:
            found[batch["model"], batch["version"]].append(batch)
    if len(found) > 1:
        names = ", ".join(sorted({name for name, _ in found}))
        raise ConfigError(f"--what-if: say which with --model: {names}")
    return {model: _seen(batches) for model, batches in found.items()}


def _seen(batches: list[Any]) -> _Seen:
    pairs = [(item, batch) for batch in batches for item in batch["items"]]
    pairs.sort(key=lambda pair: float(pair[0]["arrived_at"]))
    spent = [batch["finished_at"] - item["arrived_at"] for item, batch in pairs]
    end = max(batch["finished_at"] for batch in batches)
    span_s = end - pairs[0][0]["arrived_at"]
    return _Seen([item for item, _ in pairs], batches, np.array(spent), span_s)


def _policy(settings: dict[str, Any]) -> Policy:
    given = {name: value for name, value in settings.items() if name in _NUMBERS}
    for name in ("max_wait", "slo"):
        limit_ms = given.pop(f"{name}_ms")
        given[f"{name}_s"] = None if limit_ms is None else limit_ms / 1e3
    firing, order, compose = (choice(_CHOICES[name], settings[name], name) for name in _CHOICES)
    buckets, quantiles = read_buckets(settings["buckets"])
    return Policy(
        buckets=buckets,
        quantiles=quantiles,
        pad_sizes=settings["pad_sizes"],
        batch_sizes=sizes_up_to(settings["batch_sizes"], given["max_batch_size"]),
        firing=firing,  # type: ignore[arg-type]
        order=order,  # type: ignore[arg-type]
        compose=compose,  # type: ignore[arg-type]
        tenant_weights=settings["tenants"],
        **given,
    )


def _simulate(seen: _Seen, policy: Policy) -> Outcome:
    """An item of several rows counts as that many items that arrive at once."""
    each = [item for item in seen.items for _ in range(item["rows"])]
    start = seen.items[0]["arrived_at"]
    arrivals = np.array([item["arrived_at"] - start for item in each])
    sizes = np.array([item["size"] for item in each])
    table, spread = _measured(seen.batches)
    most = max(policy.max_batch_size, table.rows[-1])
    deadlines = [(item["deadline_at"] or np.inf) - item["arrived_at"] for item in each]
    callers = Callers(
        priorities=[Priority[item["priority"].upper()] for item in each],
        tenants=[item["tenant"] for item in each],
        weights=tuple(policy.tenant_weights.items()),
        deadlines_s=np.array(deadlines),
        order=policy.order,
    )
    has_sizes = bool(sizes.max())
    lengths = Lengths(sizes, _fitted(seen.batches), policy.max_batch_cost) if has_sizes else None
    scenario = Scenario.build(
        arrivals,
        TableProfile(table),
        max_rows=most,
        noise=Noise(spread),
        workers=policy.workers,
        max_queue=policy.max_queue,
        slo_s=policy.slo_s,
        lengths=lengths,
        callers=callers,
        probed_rows=policy.batch_sizes or None,
    )
    return simulate(scenario, policy)


def _measured(batches: list[Any]) -> tuple[CostTable, float]:
    """The median time of each number of rows, and how far times stray from it."""
    by_rows: dict[int, list[float]] = defaultdict(list)
    for batch in batches:
        by_rows[batch["padded_rows"]].append(_took_s(batch))
    rows = sorted(by_rows)
    medians = {each: median(by_rows[each]) for each in rows}
    ratios = [took_s / medians[each] for each in rows for took_s in by_rows[each]]
    table = CostTable(tuple(rows), None, tuple((medians[each],) for each in rows))
    return table, min(1.0, float(np.std(ratios)))


def _fitted(batches: list[Any]) -> TokenProfile:
    """So much for a batch, a row, and a slot of it: fitted, none below 0."""
    slots = [(1.0, each["padded_rows"], each["padded_rows"] * each["size"]) for each in batches]
    took_s = np.array([_took_s(each) for each in batches])
    found = np.linalg.lstsq(np.array(slots) / took_s[:, None], np.ones(len(slots)), rcond=None)
    base_s, row_s, slot_s = (max(0.0, float(each)) for each in found[0])
    return TokenProfile(PowerProfile(max(base_s, 1e-6), row_s), slot_s)


def _took_s(batch: Any) -> float:
    return max(1e-6, float(batch["finished_at"] - batch["fired_at"]))


def _figures(outcome: Outcome) -> tuple[Any, float, int, int]:
    return outcome.answered_s, outcome.span_s, outcome.batches, outcome.dropped


def _row(name: str, latencies_s: Any, span_s: float, batches: int, refused: int) -> str:
    if not len(latencies_s):
        return f"{name:24}{'every item was refused':>50}"
    p50, p99 = np.percentile(latencies_s, [50, 99]) * 1e3
    rate, mean = len(latencies_s) / max(span_s, 1e-9), len(latencies_s) / max(batches, 1)
    return f"{name:24}{p50:>10.1f}{p99:>10.1f}{rate:>10.1f}{mean:>10.2f}{refused:>10}"
