"""How long after a fault is everything as before? Pure, from the account of the requests.

A model is at its full rate again when its clients no longer notice: a fault's time to full rate
ends with the first of a run of requests that are all answered as promptly as before the fault.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.chaos.accounting import ANSWERED, LEFT, Entry
from benchmarks.chaos.scenario import Fault, Plan

RUN_S = 0.25  # so long nothing may be late or refused
RUN_LEAST = 5
FACTOR = 3.0  # times the usual p99 is not prompt any more
LEAST_S = 0.15  # below this nobody notices: other processes want the cores, too


@dataclass(frozen=True, slots=True)
class Recovery:
    fault: Fault
    full_rate_s: float | None  # None: not before the next fault on this model, or the end
    slowest_s: float  # answer among those who were there or came before that
    refused: int  # by overload, meanwhile


def recoveries(plan: Plan, entries: Iterable[Entry]) -> list[Recovery]:
    ordered = sorted(
        (each for each in entries if each.request.is_healthy and each.outcome != LEFT),
        key=lambda entry: entry.request.due_at,
    )
    found, models = [], _by_model(plan, ordered)
    for fault in plan.faults:
        # The surge ends before anything can be as it was.
        start = plan.surge[1] if fault.kind == "surge" else fault.at
        model = models[fault.model]
        until = min(
            (each.at for each in plan.faults if each.model == fault.model and each.at > start),
            default=plan.seconds,
        )
        found.append(_recovery(fault, model, start, until))
    return found


class _Model(NamedTuple):
    """The requests to one model, or to all."""

    entries: list[Entry]  # as they were due
    due_at: list[float]
    longest_s: float  # from due to its end
    prompt_s: float


def _by_model(plan: Plan, ordered: Sequence[Entry]) -> dict[str, _Model]:
    found = {}
    for name in {fault.model for fault in plan.faults}:
        own = [e for e in ordered if name in (e.request.model, "all")]
        usual_s = _usual_s([e for e in own if e.at < plan.faults[0].at])
        found[name] = _Model(
            own,
            [e.request.due_at for e in own],
            max((e.at - e.request.due_at for e in own), default=0.0),
            max(LEAST_S, FACTOR * usual_s),
        )
    return found


def _recovery(fault: Fault, model: _Model, start: float, until: float) -> Recovery:
    after = model.entries[bisect_left(model.due_at, start) : bisect_left(model.due_at, until)]
    first = _first_prompt(after, model.prompt_s)
    full_s = None if first is None else max(0.0, after[first].request.due_at - start)
    if first == 0:
        full_s = 0.0  # nobody noticed
    end = until if full_s is None else start + full_s
    there = slice(
        bisect_left(model.due_at, start - model.longest_s), bisect_right(model.due_at, end)
    )
    hurt = [e for e in model.entries[there] if e.at >= start]
    return Recovery(
        fault,
        full_s,
        max((e.latency_s for e in hurt if e.outcome == ANSWERED), default=0.0),
        sum(e.outcome != ANSWERED for e in hurt),
    )


def _first_prompt(entries: Sequence[Entry], prompt_s: float) -> int | None:
    """The first of a run without anybody late or refused."""
    start = 0
    for place, entry in enumerate(entries):
        if entry.outcome != ANSWERED or entry.latency_s > prompt_s:
            start = place + 1
        elif (
            place - start + 1 >= RUN_LEAST
            and entry.request.due_at - entries[start].request.due_at >= RUN_S
        ):
            return start
    return None


def _usual_s(entries: Sequence[Entry]) -> float:
    """p99."""
    latencies = sorted(entry.latency_s for entry in entries)
    return latencies[len(latencies) * 99 // 100] if latencies else 0.0
