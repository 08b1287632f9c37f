"""What one call costs in process, beside a bare loop and two libraries."""

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from benchmarks.report import Bar, Report
from headway.runtime.batching.batcher import Batcher

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


BENCHMARKS: dict[str, Callable[[bool], Report]] = {
    "in-process": in_process,
}
