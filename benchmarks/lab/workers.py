"""Process workers beside threads: what a call costs, small and large, and how soon one is back."""

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import numpy

import headway
from benchmarks.report import Bar, Benchmark, Report
from headway.events import Event, WorkerChanged

LARGE_BYTES = 64 * 2**20
SMALL = {"x": numpy.ones((1, 16), numpy.float32)}
LARGE = {"x": numpy.ones((64, LARGE_BYTES // 256), numpy.float32)}
Kind = Literal["thread", "process"]
KINDS: tuple[Kind, ...] = ("thread", "process")


class Echo(headway.TensorModel):
    inputs = (headway.Tensor("x", "float32", (-1, -1)),)
    outputs = (headway.Tensor("x", "float32", (-1, -1)),)
    writes_inputs = False

    def predict(self, batch: "dict[str, numpy.ndarray[Any, Any]]") -> Any:
        return batch


class Loading(headway.Model[int, int]):
    """Takes 0.1 s to load, 2 ms to answer."""

    def load(self) -> None:
        time.sleep(0.1)

    def predict(self, items: list[int]) -> list[int]:
        time.sleep(0.002)
        return items


def workers(quick: bool) -> Report:
    calls, rounds = (500, 3) if quick else (3_000, 7)
    turns = [_turn(SMALL, calls) for _ in range(rounds)]
    small = {kind: statistics.median(turn[kind] for turn in turns) for kind in KINDS}
    large = _turn(LARGE, 10)
    copy_s = _copy_s()
    crossings_us = [1e6 * (turn["process"] - turn["thread"]) for turn in turns]
    crossing_us = statistics.median(crossings_us)
    # There and back: the bytes cross twice.
    share = 2 * copy_s / (large["process"] - large["thread"])
    start_s, back_s = asyncio.run(_recovery(rounds))
    return Report(
        "Process workers beside threads",
        ["one caller, batches of one", "thread", "process"],
        [
            ["64 bytes there and back", *(f"{1e6 * each:,.0f} µs" for each in small.values())],
            ["64 MiB there and back", *(f"{1e3 * each:,.1f} ms" for each in large.values())],
            ["open, until ready", "", f"{start_s:.2f} s"],
            ["SIGKILL until the next answer, load 0.1 s", "", f"{back_s:.2f} s"],
        ],
        [
            Bar(
                "≤ 150 µs more than a thread",
                f"{crossing_us:.0f} µs ({min(crossings_us):.0f} to {max(crossings_us):.0f})",
                crossing_us <= 150,
            ),
            Bar("≥ 50 % of memcpy at 64 MiB", f"{share:.0%}", share >= 0.5),
            Bar("full rate ≤ 1 s after SIGKILL", f"{back_s:.2f} s", back_s <= 1.0),
        ],
        [
            f"memcpy of 64 MiB: {1e3 * copy_s:.1f} ms; medians; small calls in {rounds} turns",
            "both sides look out for a message for up to 0.5 ms where the last one came as soon; a "
            "thread's wake-ups are those of a core that sleeps meanwhile",
        ],
    )


def _turn(value: Any, count: int) -> dict[Kind, float]:
    return {kind: asyncio.run(_calls(kind, value, count)) for kind in KINDS}


async def _calls(kind: Kind, value: Any, count: int) -> float:
    """Seconds a call, one after the other."""
    async with headway.Batcher(Echo, worker=kind, policy="idle") as batcher:
        times = [await _timed(lambda: batcher.submit(value)) for _ in range(count + 3)]
    return statistics.median(times[3:])


async def _timed(call: Callable[[], Awaitable[Any]]) -> float:
    started = time.perf_counter()
    await call()
    return time.perf_counter() - started


def _copy_s() -> float:
    source = numpy.ones(LARGE_BYTES, numpy.uint8)
    target = numpy.zeros_like(source)
    times = []
    for _ in range(10):
        started = time.perf_counter()
        numpy.copyto(target, source)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


async def _recovery(rounds: int) -> tuple[float, float]:
    """Seconds to open, and from a SIGKILL with requests in flight to the next answer."""
    ready = asyncio.Event()

    def observe(event: Event) -> None:
        if isinstance(event, WorkerChanged) and event.state == "ready":
            ready.set()

    started = time.perf_counter()
    times = []
    async with headway.Batcher(Loading, worker="process", observers=[observe]) as batcher:
        start_s = time.perf_counter() - started
        for _ in range(rounds):
            await asyncio.sleep(1.5)  # the spare process is there again
            in_flight = asyncio.gather(*(batcher.submit(n) for n in range(16)))
            await asyncio.sleep(0.001)
            pid = batcher.worker_processes[0].pid
            assert pid is not None
            ready.clear()
            killed = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            await ready.wait()
            await batcher.submit(0)
            times.append(time.perf_counter() - killed)
            assert await in_flight == list(range(16))
    return start_s, statistics.median(times)


BENCHMARKS: dict[str, Benchmark] = {"workers": workers}
