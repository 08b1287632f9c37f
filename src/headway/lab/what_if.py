"""What the last traffic would have met under other settings: the batches that a server remembers
(`/admin/explain`), simulated as they were and as they would be.

Run as a program (`python -m headway.lab.what_if`) it reads a question from stdin and writes the
answer to stdout, so that a server can ask without waiting for it or importing it.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from headway.core.costs import CostTable
from headway.core.items import Priority
from headway.core.policy import Compose, Firing, Order, Policy, choice
from headway.errors import ConfigError
from headway.lab.profiles import PowerProfile, Profile, SizedProfile, TableProfile, TokenProfile
from headway.lab.simulate import Callers, Lengths, Outcome, Scenario, simulate
from headway.lab.workload import Times

LEAST_ITEMS = 20
NUMBERS = (
    *("max_wait_ms", "max_batch_size", "max_batch_cost", "max_queue", "workers", "slo_ms"),
    "slo_percentile",
)
CHOICES = {"policy": Firing, "order": Order, "compose": Compose}
CHANGES = (*NUMBERS, *CHOICES)
_ENOUGH = 100  # items, for percentiles that mean something
_TRUSTED = 0.15  # how far the simulated p99 of what happened may be off
_PERCENTS = (50.0, 99.0)


class RecordedTraffic(NamedTuple):
    """Recorded traffic, one entry for each row, and how long its batches took."""

    arrived_at: Times  # from 0, ascending
    sizes: "np.ndarray[Any, np.dtype[np.int64]]"
    priorities: list[Priority]
    tenants: list[str]
    deadlines_s: Times
    whole: list[slice]  # the rows of each item
    rows: Times  # by batch: the rows that ran, their padded size, and how long a worker had it
    padded_sizes: Times
    seconds: Times
    latencies_s: Times  # by item, as measured


def read_traffic(batches: Sequence[Mapping[str, Any]]) -> RecordedTraffic:
    """Of batches as `/admin/explain` gives them, with their items. Raises ConfigError."""
    came = sorted(
        ((item, batch) for batch in batches for item in batch["items"]),
        key=lambda each: each[0]["arrived_at"],
    )
    if len(came) < LEAST_ITEMS:
        raise ConfigError(
            f"only {len(came)} items are remembered; a simulation needs {LEAST_ITEMS} or more"
        )
    begin = came[0][0]["arrived_at"]
    arrived: list[float] = []
    sizes: list[int] = []
    priorities: list[Priority] = []
    tenants: list[str] = []
    deadlines: list[float] = []
    whole: list[slice] = []
    for item, _ in came:
        at, rows, deadline = item["arrived_at"], item["rows"], item["deadline_at"]
        whole.append(slice(len(arrived), len(arrived) + rows))
        arrived += [at - begin] * rows
        sizes += [item["size"]] * rows
        priorities += [Priority[item["priority"].upper()]] * rows
        tenants += [item["tenant"]] * rows
        deadlines += [math.inf if deadline is None else deadline - at] * rows
    ran = [each for each in batches if not each["reruns"] and not each["lost"]]
    return RecordedTraffic(
        *(np.array(arrived), np.array(sizes, np.int64), priorities, tenants, np.array(deadlines)),
        whole,
        rows=np.array([each["padded_rows"] for each in ran], float),
        padded_sizes=np.array([each["size"] for each in ran], float),
        seconds=np.array([max(1e-6, each["finished_at"] - each["fired_at"]) for each in ran]),
        latencies_s=np.array([batch["finished_at"] - item["arrived_at"] for item, batch in came]),
    )


class SimulatedModel(NamedTuple):
    """How long its batches take."""

    profile: Profile
    sized: SizedProfile | None  # None: all items are alike
    factors: Times  # how batches strayed from that
    is_fitted: bool  # to the batches, which says little of larger ones


def model_of(traffic: RecordedTraffic, table: CostTable | None) -> SimulatedModel:
    """By the table of its warm-up, if there is one, else by what its batches took; and by how far
    they strayed from it. Raises ConfigError."""
    has_sizes = bool(traffic.sizes.any())
    is_fitted = table is None or bool(table.sizes) != has_sizes
    if table is None or is_fitted:
        profile, sized = _fitted(traffic, has_sizes=has_sizes)
    else:
        known = TableProfile(table)
        profile, sized = known, known if has_sizes else None
    expected = [
        profile.seconds(int(rows)) if sized is None else sized.seconds_at(int(rows), size)
        for rows, size in zip(traffic.rows, traffic.padded_sizes, strict=True)
    ]
    return SimulatedModel(profile, sized, traffic.seconds / np.maximum(expected, 1e-9), is_fitted)


def _fitted(traffic: RecordedTraffic, *, has_sizes: bool) -> tuple[Profile, SizedProfile | None]:
    """A line through what batches took: a part for each, for each row, and for each slot."""
    if not len(traffic.rows):
        raise ConfigError("of the last batches none ran undisturbed: what one takes is not known")
    if len(np.unique(traffic.rows)) < 2:
        raise ConfigError(
            f"the last batches all had {int(traffic.rows[0])} rows, and the model was not timed at "
            "its start (warm_up): what others would take is not known"
        )
    columns = [np.ones_like(traffic.rows), traffic.rows]
    if has_sizes:
        columns.append(traffic.rows * traffic.padded_sizes)
    found = np.linalg.lstsq(np.stack(columns, axis=1), traffic.seconds, rcond=None)[0]
    least = float(traffic.seconds.min()) * 1e-3
    alpha, beta, *token = (max(0.0, float(each)) for each in found)
    profile = PowerProfile(max(alpha, least), beta)
    return profile, TokenProfile(profile, token[0]) if has_sizes else None


def policy_of(settings: Mapping[str, Any]) -> Policy:
    """Of the fields of a policy, as JSON."""
    known = {each.name for each in dataclasses.fields(Policy)}
    given = {name: value for name, value in settings.items() if name in known}
    kinds = {"firing": Firing, "order": Order, "compose": Compose}
    return Policy(**{**given, **{name: kind(given[name]) for name, kind in kinds.items()}})


def changed(policy: Policy, changes: Mapping[str, Any]) -> Policy:
    """Raises ConfigError."""
    unknown = set(changes) - set(CHANGES)
    if unknown:
        raise ConfigError(f"{min(unknown)} cannot be changed; there are {', '.join(CHANGES)}")
    fields: dict[str, Any] = {}
    for name, value in changes.items():
        if name in CHOICES:
            field = "firing" if name == "policy" else name
            fields[field] = choice(CHOICES[name], value, name)
        else:
            fields[name.replace("_ms", "_s")] = value / 1e3 if name.endswith("_ms") else value
    if (most := fields.get("max_batch_size")) is not None:
        fields["batch_sizes"] = sizes_up_to(policy.batch_sizes, most)
    return dataclasses.replace(policy, **fields)


def sizes_up_to(batch_sizes: Sequence[int], most: int) -> tuple[int, ...]:
    """The fixed sizes of batches that are left with this `max_batch_size`. Raises ConfigError."""
    if batch_sizes and most not in batch_sizes:
        known = ", ".join(map(str, batch_sizes))
        raise ConfigError(
            f"is {most}, and the model runs only at its batch_sizes: {known}",
            field="max_batch_size",
        )
    return tuple(size for size in batch_sizes if size <= most)


def scenario_of(traffic: RecordedTraffic, model: SimulatedModel, policy: Policy) -> Scenario:
    lengths = None
    if model.sized is not None:
        lengths = Lengths(traffic.sizes, model.sized, policy.max_batch_cost)
    callers = Callers(
        priorities=traffic.priorities,
        tenants=traffic.tenants,
        weights=tuple(policy.tenant_weights.items()),
        deadlines_s=traffic.deadlines_s,
        order=policy.order,
    )
    scenario = Scenario.build(
        traffic.arrived_at,
        model.profile,
        max_rows=policy.max_batch_size,
        workers=policy.workers,
        max_queue=policy.max_queue,
        slo_s=policy.slo_s,
        slo_percentile=policy.slo_percentile,
        lengths=lengths,
        callers=callers,
        probed_rows=policy.batch_sizes or None,
    )
    draws = np.random.default_rng(0).choice(model.factors, len(traffic.arrived_at))
    return dataclasses.replace(scenario, factors=draws)


def figures(
    latencies_s: Times, *, batches: int, rows: int, span_s: float, slo_s: float | None
) -> dict[str, Any]:
    """`latencies_s`: by item; NaN: refused."""
    answered = latencies_s[~np.isnan(latencies_s)]
    p50_s, p99_s = np.percentile(answered, _PERCENTS) if len(answered) else (math.nan,) * 2
    in_time = None if slo_s is None else float((answered <= slo_s).sum()) / len(latencies_s)
    return {
        "p50_ms": _ms(p50_s),
        "p99_ms": _ms(p99_s),
        "items_per_s": round(len(answered) / span_s, 3) if span_s else None,
        "mean_rows": round(rows / batches, 3) if batches else None,
        "refused": int(np.isnan(latencies_s).sum()),
        "in_time": in_time,
    }


def _simulated(traffic: RecordedTraffic, outcome: Outcome, slo_s: float | None) -> dict[str, Any]:
    by_item = np.array([outcome.latencies_s[rows].max() for rows in traffic.whole])
    return figures(
        by_item,
        batches=outcome.batches,
        rows=len(outcome.answered_s),
        span_s=outcome.span_s,
        slo_s=slo_s,
    )


def what_if(question: Mapping[str, Any]) -> dict[str, Any]:
    """`question`: `batches` as `/admin/explain` gives them, the `policy` in force, the `table` that
    the model's warm-up made, or null, and the `changes`. The answer has the figures as they were
    measured, as they are simulated under the policy in force, and under the changed one."""
    traffic = read_traffic(question["batches"])
    policy = policy_of(question["policy"])
    other = changed(policy, question["changes"])
    table = None if question["table"] is None else CostTable.from_json(question["table"])
    model = model_of(traffic, table)
    slo_s = other.slo_s  # both are held against the same goal
    span_s = max(each["finished_at"] for each in question["batches"]) - min(
        item["arrived_at"] for each in question["batches"] for item in each["items"]
    )
    runs = [
        _simulated(traffic, simulate(scenario_of(traffic, model, each), each), slo_s)
        for each in (policy, other)
    ]
    measured = figures(
        traffic.latencies_s,
        batches=len(question["batches"]),
        rows=len(traffic.arrived_at),
        span_s=span_s,
        slo_s=slo_s,
    )
    hints = [*_hints(len(traffic.whole), measured, runs[0])]
    most_rows = int(traffic.rows.max())
    if model.is_fitted and question["changes"].get("max_batch_size", 0) > most_rows:
        hints.append(f"no batch had more than {most_rows} rows: what larger ones take is a guess")
    return {
        "items": len(traffic.whole),
        "seconds": round(span_s, 3),
        "batches": len(question["batches"]),
        "measured": measured,
        "simulated": runs[0],
        "changed": runs[1],
        "hints": hints,
    }


def _hints(items: int, measured: Mapping[str, Any], simulated: Mapping[str, Any]) -> Iterator[str]:
    """Why the answer is not to be trusted too much."""
    if items < _ENOUGH:
        yield f"only a hint: {items} items are too few for a p99"
    elif simulated["p99_ms"] and measured["p99_ms"]:
        off = abs(simulated["p99_ms"] / measured["p99_ms"] - 1)
        if off > _TRUSTED:
            yield f"only a hint: the simulated p99 of what happened is off by {off:.0%}"


def _ms(seconds: float) -> float | None:
    return None if math.isnan(seconds) else round(float(seconds) * 1e3, 3)


def main() -> int:
    try:
        answer = what_if(json.load(sys.stdin))
    except ConfigError as error:
        answer = {"error": str(error)}
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
