"""What one call costs in process, beside a bare loop and two libraries; what one decision costs."""

import asyncio
import gc
import math
import resource
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from benchmarks.report import Bar, Report
from headway.core import CostTable, Item, Policy, Priority, Run, Scheduler
from headway.errors import QueueFull
from headway.runtime.batcher import Batcher

Submit: TypeAlias = Callable[[int], Awaitable[int]]
CALLERS = (1, 64, 1024)


async def zero_cost(values: list[int]) -> list[int]:
    return values


class BareLoop:
    """The floor: a future per request, flushed by call_soon."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, asyncio.Future[int]]] = []

    async def submit(self, value: int) -> int:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._flush)
        self._waiting.append((value, future))
        return await future

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for value, future in waiting:
            future.set_result(value)


async def _per_call_us(submit: Submit, callers: int, calls: int) -> float:
    async def caller() -> None:
        for number in range(calls // callers):
            await submit(number)

    gc.collect()
    started = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return (time.perf_counter() - started) / (calls // callers * callers) * 1e6


async def _measure_bare(callers: int, calls: int) -> float:
    return await _per_call_us(BareLoop().submit, callers, calls)


async def _measure_headway(callers: int, calls: int) -> float:
    async with Batcher[int, int](zero_cost) as batcher:
        return await _per_call_us(batcher.submit, callers, calls)


async def _measure_headway_thread(callers: int, calls: int) -> float:
    def model(values: list[int]) -> list[int]:
        return values

    async with Batcher[int, int](model) as batcher:
        return await _per_call_us(batcher.submit, callers, calls)


async def _measure_batched(callers: int, calls: int) -> float:
    import batched.aio

    function = batched.aio.dynamically(zero_cost, batch_size=64, timeout_ms=5.0)

    async def submit(value: int) -> int:
        result: int = await function(value)
        return result

    return await _per_call_us(submit, callers, calls)


async def _measure_async_batcher(callers: int, calls: int) -> float:
    from async_batcher.batcher import AsyncBatcher

    class Echo(AsyncBatcher[int, int]):
        async def process_batch(self, batch: list[int]) -> list[int]:
            return batch

    batcher = Echo(max_batch_size=64, max_queue_time=0.005)
    try:
        return await _per_call_us(lambda value: batcher.process(item=value), callers, calls)
    finally:
        await batcher.stop()


MEASURES: dict[str, Callable[[int, int], Awaitable[float]]] = {
    "bare loop": _measure_bare,
    "headway": _measure_headway,
    "headway (def, in a thread)": _measure_headway_thread,
    "batched": _measure_batched,
    "async-batcher": _measure_async_batcher,
}


def in_process(quick: bool) -> Report:
    rounds = 3 if quick else 9
    figures: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):  # interleaved: what the machine does meanwhile hits all alike
        for callers in CALLERS:
            for name, measure in MEASURES.items():
                figures.setdefault((name, callers), []).append(
                    asyncio.run(_run(measure, callers, _calls(name, callers)))
                )
    median = {key: statistics.median(values) for key, values in figures.items()}
    rows = [
        [
            name,
            *(_cell(figures[name, callers], median["bare loop", callers]) for callers in CALLERS),
        ]
        for name in MEASURES
    ]
    to_bare = max(median["headway", n] / median["bare loop", n] for n in (64, 1024))
    libraries = ("batched", "async-batcher")
    better = min(median[lib, n] / median["headway", n] for lib in libraries for n in (64, 1024))
    alone = median["headway", 1]
    return Report(
        "7. In-process overhead: µs per call, zero-cost function (× the bare loop)",
        ["", *(f"{callers} callers" for callers in CALLERS)],
        rows,
        [
            Bar(
                "64 and 1,024 callers: ≤ 3× the bare loop (aim 2×)", f"{to_bare:.2f}×", to_bare <= 3
            ),
            Bar("≥ 3× better than both libraries there", f"{better:.1f}×", better >= 3),
            Bar("one caller: ≤ 60 µs, no window paid", f"{alone:.0f} µs", alone <= 60),
        ],
        [f"median of {rounds} interleaved rounds (least – most); the libraries' window: 5 ms"],
    )


async def _run(measure: Callable[[int, int], Awaitable[float]], callers: int, calls: int) -> float:
    return await measure(callers, calls)


def _calls(name: str, callers: int) -> int:
    if callers == 1:
        return 100 if name in ("batched", "async-batcher") else 3_000
    return 6_000 if name == "batched" else 30_000


def _cell(values: list[float], bare: float) -> str:
    median = statistics.median(values)
    return f"{median:.1f} ({min(values):.1f} – {max(values):.1f}), {median / bare:.1f}×"


def decisions(quick: bool) -> Report:
    """The cost of one decision, with so many items waiting; and memory over millions of items."""
    rows, worst = [], dict.fromkeys(MOST_US, 0.0)
    for waiting in (10, 100, 1_000, 10_000):
        cells: list[object] = [f"{waiting:,}"]
        for kind in KINDS.values():
            decide, submit = _decision_us(kind, waiting, 100 if quick else 400)
            cells.append(f"{submit:.1f} / {decide:.0f}")
            if waiting in worst:
                worst[waiting] = max(worst[waiting], decide)
        rows.append(cells)
    items = 300_000 if quick else 10_000_000
    grown = _memory_growth_kib(items)
    overloaded = _overloaded_submit_us()
    return Report(
        "8. One submit / one decision in µs, by the number of items waiting",
        ["items waiting", *KINDS],
        rows,
        [
            *(
                Bar(
                    f"≤ {most} µs at {waiting:,} items, in every column", f"{us:.0f} µs", us <= most
                )
                for (waiting, most), us in zip(MOST_US.items(), worst.values(), strict=True)
            ),
            Bar(
                "a submit to a full queue of 1,000 tenants: ≤ 10 µs",
                f"{overloaded:.1f} µs",
                overloaded <= 10,
            ),
            Bar(
                f"memory flat over {items:,} items, with tenants and partitions that come and go",
                f"{grown:+,} KiB in the second half",
                grown < 1_024,
            ),
        ],
        [
            "a decision takes a whole batch of up to 64 out of the queue, its plan included; "
            "medians of CPU time",
        ],
    )


MOST_US = {100: 50, 1_000: 50, 10_000: 100}  # what a decision may take, by the items waiting


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
    "all of it": Kind(512, 1_000, has_classes=True, has_deadlines=True, slo_s=1_000.0),
}


def _decision_us(kind: Kind, waiting: int, rounds: int) -> tuple[float, float]:
    """Medians of one `next_action` that fires a batch, and of one `submit`, in CPU time."""
    sizes = (16, 64, 256, 512)
    seconds = tuple(tuple(0.005 + 1e-5 * size for size in sizes) for _ in range(2))
    policy = Policy(max_queue=100_000, slo_s=kind.slo_s)
    scheduler = Scheduler(policy, CostTable((1, 64), sizes, seconds))
    ids = iter(range(10**9))
    now = 0.0
    decide, submit = [], []
    for _ in range(rounds):
        while scheduler.queued_items < waiting:
            item = kind.item(next(ids), now)
            started = time.thread_time_ns()
            scheduler.submit(item)
            submit.append(time.thread_time_ns() - started)
            now += 1e-5
        started = time.thread_time_ns()
        action: Any = scheduler.next_action(now)
        decide.append(time.thread_time_ns() - started)
        if not isinstance(action, Run):
            action = scheduler.next_action(now := action.until)
        now += 0.008
        scheduler.finish(action.batch, now, ran_s=0.008)
    return statistics.median(decide) / 1e3, statistics.median(submit) / 1e3


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


BENCHMARKS: dict[str, Callable[[bool], Report]] = {
    "in-process": in_process,
    "decisions": decisions,
}
