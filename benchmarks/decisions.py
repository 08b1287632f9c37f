"""What one decision costs, by the number of waiting items; and memory over millions of items.

`python -m benchmarks decisions`, or single columns and rows of the table:
`python -m benchmarks.decisions "sizes, tenants" --waiting 1000`.
"""

import argparse
import gc
import math
import random
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from benchmarks.report import Bar, Benchmark, Report, machine
from headway.core.batching import scheduler as deciding
from headway.core.batching.rehearsal import Rehearsal
from headway.core.batching.scheduler import Scheduler
from headway.core.costs import Costs, CostTable
from headway.core.items import Item, Priority, Run
from headway.core.policy import Policy
from headway.core.queueing.running import Running
from headway.errors import QueueFull

WAITING = (10, 100, 1_000, 10_000)
MOST_US = {100: 38, 1_000: 44, 10_000: 60}  # what a decision may take, by the items waiting


class Kind(NamedTuple):
    """What tells the items of a column apart."""

    sizes: int = 1
    tenants: int = 1
    has_classes: bool = False
    has_deadlines: bool = False
    slo_s: float | None = None

    def item(self, number: int, now: float) -> Item:
        drawn = number * 7919
        return Item(
            number,
            now,
            size=1 + drawn % self.sizes if self.sizes > 1 else 0,
            tenant=f"t{drawn % self.tenants}" if self.tenants > 1 else "",
            priority=Priority(drawn % 3) if self.has_classes else Priority.NORMAL,
            deadline=now + 3_600 if self.has_deadlines else math.inf,
        )


ALL_OF_IT = "all of it"
KINDS = {
    "all alike": Kind(),
    "512 sizes": Kind(sizes=512),
    "1,000 tenants": Kind(tenants=1_000),
    "sizes, tenants": Kind(sizes=512, tenants=1_000),
    "deadlines": Kind(has_deadlines=True),
    "3 classes, deadlines": Kind(has_classes=True, has_deadlines=True),
    "SLO": Kind(slo_s=1_000.0),
    "sizes, SLO": Kind(sizes=512, slo_s=1_000.0),
    "sizes, tenants, SLO": Kind(sizes=512, tenants=1_000, slo_s=1_000.0),
    ALL_OF_IT: Kind(512, 1_000, has_classes=True, has_deadlines=True, slo_s=1_000.0),
}


def _named_groups(columns: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The last column, where everything comes together, has bars of its own."""
    groups = [
        ("every column but the last", [name for name in columns if name != ALL_OF_IT]),
        (ALL_OF_IT, [name for name in columns if name == ALL_OF_IT]),
    ]
    return [group for group in groups if group[1]]


def _form() -> str:
    if deciding.__file__.endswith(".py"):
        return "not compiled: `make compiled` first"
    return "compiled"


class Cell(NamedTuple):
    """Medians of CPU time, in µs."""

    submit: float
    wait: float  # a decision that starts nothing
    fire: float  # one that starts a batch
    items: float  # of that batch

    def __str__(self) -> str:
        return f"{self.submit:.1f} / {self.wait:.1f} / {self.fire:.0f} ({self.items:.0f})"


def decisions(quick: bool) -> Report:
    items = 300_000 if quick else 6_000_000
    table = _table(list(KINDS), WAITING, 100 if quick else 200)
    overloaded = _overloaded_submit_us()
    counted_s, took_s, arrivals = _rehearsed()
    grown = _memory_growth_kib(items)  # last: millions of items leave a heap of holes
    return Report(
        table.title,
        table.header,
        table.rows,
        [
            *table.bars,
            Bar(
                "a submit to a full queue of 1,000 tenants: ≤ 10 µs",
                f"{overloaded:.1f} µs",
                overloaded <= 10,
            ),
            Bar(
                "rehearsing (S2's traffic) takes no longer than it counts",
                f"{took_s / arrivals * 1e6:.2f} µs an arrival, {counted_s / arrivals * 1e6:.2f} "
                "counted",
                took_s <= counted_s,
            ),
            Bar(
                f"memory flat over {items:,} items, with tenants and partitions that come and go",
                f"{grown:+,} KiB in the second half",
                grown < 1_024,
            ),
        ],
        table.notes,
    )


def _table(columns: Sequence[str], waiting: Sequence[int], rounds: int) -> Report:
    cells = {(each, name): _cell(KINDS[name], each, rounds) for each in waiting for name in columns}
    bars = []
    for each in (each for each in waiting if each in MOST_US):
        for kind, names in _named_groups(columns):
            found = [cells[each, name] for name in names]
            us, held = max(cell.fire for cell in found), max(cell.wait for cell in found)
            alone = max(_cell(KINDS[name], each, rounds, max_batch_size=1).fire for name in names)
            measured = (
                f"{us:.0f} µs, {max(cell.fire / cell.items for cell in found):.1f} an item; "
                f"{alone:.0f} µs where a batch is one item, {held:.0f} µs where nothing starts"
            )
            asked = f"≤ {MOST_US[each]} µs at {each:,} items, {kind}"
            bars.append(Bar(asked, measured, us <= MOST_US[each]))
    return Report(
        "8. One submit / one decision that starts nothing / one that starts a batch (and its "
        "items), in µs, by the number of items waiting",
        ["items waiting", *columns],
        [[f"{each:,}", *(cells[each, name] for name in columns)] for each in waiting],
        bars,
        [
            "a decision that starts a batch takes all its items out of the queue, its plan "
            "included; medians of CPU time",
            f"the core is {_form()}",
        ],
    )


def _cell(kind: Kind, waiting: int, rounds: int, max_batch_size: int = 64) -> Cell:
    sizes = (16, 64, 256, 512)
    rows = (1, 64) if max_batch_size > 1 else (1,)
    seconds = tuple(tuple(0.005 + 1e-5 * size for size in sizes) for _ in rows)
    policy = Policy(max_batch_size=max_batch_size, max_queue=100_000, slo_s=kind.slo_s)
    scheduler = Scheduler(policy, CostTable(rows, sizes, seconds))
    ids = iter(range(10**9))
    now = 0.0
    submit, wait, fire, items = [], [], [], []
    for _ in range(rounds):
        while scheduler.queued_items < waiting:
            item = kind.item(next(ids), now)
            started = time.thread_time_ns()
            scheduler.submit(item)
            submit.append(time.thread_time_ns() - started)
            now += 1e-5
        started = time.thread_time_ns()
        action: Any = scheduler.next_action(now)
        fire.append(time.thread_time_ns() - started)
        if not isinstance(action, Run):
            action = scheduler.next_action(now := action.until)
        items.append(len(action.batch.items))
        started = time.thread_time_ns()
        scheduler.next_action(now)  # the worker is busy
        wait.append(time.thread_time_ns() - started)
        now += 0.008
        scheduler.finish(action.batch, now, ran_s=0.008)
    return Cell(
        *(statistics.median(each) / 1e3 for each in (submit, wait, fire)), statistics.fmean(items)
    )


def _overloaded_submit_us() -> float:
    """The median of a submit to a queue that is full, of 1,000 tenants who all flood it."""
    scheduler, kind = Scheduler(Policy(max_queue=4_096)), Kind(tenants=1_000)
    taken = []
    for number in range(20_000):
        item = kind.item(number, number * 1e-5)
        started = time.thread_time_ns()
        with suppress(QueueFull):
            scheduler.submit(item)
        taken.append(time.thread_time_ns() - started)
        if scheduler.may_refuse and number % 100 == 0:
            scheduler.next_action(item.arrived_at)
    return statistics.median(taken[5_000:]) / 1e3


def _rehearsed() -> tuple[float, float, int]:
    """What rehearsals count for, what they take (CPU), and after how many arrivals."""
    policy = Policy(max_batch_size=64, workers=2)
    costs = Costs(64, CostTable((1, 64), None, ((0.00505,), (0.0082,))))
    rehearsal = Rehearsal(policy, costs, Running(policy.workers))
    draw, now, took_ns, arrivals = random.Random(1), 0.0, 0, 50_000
    for _ in range(arrivals):
        now += draw.expovariate(6_000)
        rehearsal.arrived([now])
        before_s, started = rehearsal.spent_s, time.thread_time_ns()
        rehearsal.step(now)
        if rehearsal.spent_s > before_s:
            took_ns += time.thread_time_ns() - started
    return rehearsal.spent_s, took_ns / 1e9, arrivals


def _memory_growth_kib(items: int) -> int:
    """What the process grew by from the middle to the end. Somebody always waits meanwhile, so
    that nothing is forgotten just because the queue ran empty."""
    scheduler = Scheduler(Policy(slo_s=10.0), CostTable((1, 64), None, ((0.005,), (0.008,))))
    now, half = 0.0, 0
    for number in range(items):
        if number == items // 2:
            half = _resident_kib()
        tenant, partition = f"t{number % 5_003 + number // 50_000}", (number // 100) % 977
        scheduler.submit(Item(number, now, tenant=tenant, partition=partition, deadline=now + 60))
        if number % 3 == 0:
            scheduler.cancel(number)
        now += 2e-4
        if number % 64 == 63:
            now = _serve(scheduler, now, leave=100)
    return _resident_kib() - half


def _serve(scheduler: Scheduler, now: float, leave: int) -> float:
    while scheduler.queued_items > leave:
        action: Any = scheduler.next_action(now)
        if isinstance(action, Run):
            now += 0.0005
            scheduler.finish(action.batch, now, ran_s=0.0005)
        else:
            now = max(now, getattr(action, "until", now))
    return now


def _resident_kib() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 1024


BENCHMARKS: dict[str, Benchmark] = {"decisions": decisions}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decisions", description=__doc__)
    parser.add_argument("columns", nargs="*", metavar="column", help=", ".join(map(repr, KINDS)))
    parser.add_argument("--waiting", type=int, nargs="+", default=WAITING, help="items")
    parser.add_argument("--rounds", type=int, default=200, help="decisions of each cell (200)")
    options = parser.parse_args()
    unknown = [name for name in options.columns if name not in KINDS]
    if unknown:
        parser.error(f"unknown column {unknown[0]!r}; there are {', '.join(map(repr, KINDS))}")
    report = _table(options.columns or list(KINDS), options.waiting, options.rounds)
    print(report.to_markdown() + f"- {machine()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
