"""A worker that is killed under load, and an input that takes its worker down."""

import asyncio
import logging
import statistics
from typing import Any

import headway
from benchmarks.chaos import models
from benchmarks.chaos.accounting import ANSWERED, LEFT, Entry
from benchmarks.chaos.recovery import Recovery
from benchmarks.chaos.run import Run, run
from benchmarks.chaos.scenario import plan
from benchmarks.report import Bar, Benchmark, Report
from headway.errors import ModelFailed, Poison
from headway.events import BatchFinished, BatchStarted, Event

RATE = 200.0
KILL_EVERY_S = 2.0
FULL_RATE_S = 1.0
BATCH = 64
MAX_RERUNS = 12
TOML = f"""
[server]
port = 0
grpc_port = 0
cache_dir = "cache"

[[models]]
name = "vectors"
target = "{models.__name__}:Vectors"
worker = "process"
workers = {{workers}}
"""


# ---- SIGKILL under load


def worker_kill(quick: bool) -> Report:
    seconds = 9.0 if quick else 27.0
    rows: list[list[object]] = []
    bars: list[Bar] = []
    for workers in (1, 2):
        made = plan(
            workers,
            seconds,
            rates={"vectors": RATE},
            kinds={"vectors": ["kill"]},
            fault_every_s=KILL_EVERY_S,
            surge_s=0.0,
        )
        done = run(made, toml=TOML.format(workers=workers))
        rows.append(_kill_row(workers, done))
        bars += _kill_bars(workers, done)
    return Report(
        "A worker killed under load",
        [
            *("workers", "kills", "in flight at a kill, mean", "to full rate: median", "longest"),
            *("slowest answer", "p50", "p99"),
        ],
        rows,
        bars,
        [
            f"SIGKILL every {KILL_EVERY_S:g} s; the model's `load()` takes 0.1 s, a batch 2 ms and "
            f"0.1 ms a row; {RATE:.0f} requests/s open loop, HTTP and gRPC; latency from the "
            "moment each was due; every answer has the digest of its own input",
            "full rate: from the kill to the first of 0.25 s of requests that are all answered as "
            "promptly as before it (within 3 × p99, at least 150 ms)",
        ],
    )


def _kill_row(workers: int, done: Run) -> list[object]:
    entries = list(done.ledger.entries.values())
    latencies = sorted(each.latency_s for each in entries if each.outcome == ANSWERED)
    times = [_full_rate_s(each) for each in done.recoveries]
    in_flight = statistics.mean(_in_flight(entries, each.fault.at) for each in done.recoveries)
    return [
        workers,
        len(done.recoveries),
        f"{in_flight:.1f}",
        f"{statistics.median(times):.2f} s",
        f"{max(times):.2f} s",
        f"{latencies[-1]:.2f} s",
        f"{latencies[len(latencies) // 2] * 1e3:.1f} ms",
        f"{latencies[len(latencies) * 99 // 100] * 1e3:.0f} ms",
    ]


def _kill_bars(workers: int, done: Run) -> list[Bar]:
    counts = done.ledger.counts()
    wanted = done.ledger.sent_count - counts[LEFT]
    longest = max(map(_full_rate_s, done.recoveries))
    return [
        Bar(
            f"{workers} workers: all answered, each with its own answer",
            f"{counts[ANSWERED]} of {wanted}" + "".join(f"; {each}" for each in done.broken),
            counts[ANSWERED] == wanted and not done.broken,
        ),
        Bar(
            f"{workers} workers: full rate ≤ {FULL_RATE_S:g} s after each kill",
            f"{longest:.2f} s",
            longest <= FULL_RATE_S,
        ),
    ]


def _full_rate_s(recovery: Recovery) -> float:
    return float("inf") if recovery.full_rate_s is None else recovery.full_rate_s


def _in_flight(entries: list[Entry], at: float) -> int:
    return sum(each.request.due_at < at < each.at for each in entries)


# ---- one bad item among 64


def poison(quick: bool) -> Report:
    logging.getLogger("headway").setLevel(logging.CRITICAL)  # which tells of every lost worker
    places = [0, BATCH - 1] if quick else [*range(0, BATCH, 5), BATCH - 1]
    rows: list[list[object]] = []
    bars: list[Bar] = []
    for behaviour, what, kind in (
        ("exit", "ends its process", Poison),
        ("segfault", "dereferences a null pointer", Poison),
        ("raise", "raises", ModelFailed),
    ):
        found = [asyncio.run(_one_bad(behaviour, place)) for place in places]
        right = [right for right, _, _ in found]
        reruns = [reruns for _, _, reruns in found]
        errors = [error for _, error, _ in found]
        mean = f"{statistics.mean(reruns):.1f}"
        rows.append([what, len(places), min(right), _name(errors[0]), mean, max(reruns)])
        bars.append(
            Bar(
                f"{what}: 63 right answers, one {kind.__name__}, ≤ {MAX_RERUNS} reruns",
                f"{min(right)}, {_name(errors[0])}, {max(reruns)}",
                min(right) == BATCH - 1
                and all(type(error) is kind for error in errors)
                and max(reruns) <= MAX_RERUNS,
            )
        )
    return Report(
        f"One bad item among {BATCH} in a batch",
        ["the item", "places tried", "right answers", "its own", "reruns, mean", "most"],
        rows,
        bars,
        [
            f"a process worker, one batch of {BATCH}; a rerun is a call of the model beyond the "
            "first; right: the digest of its own input",
        ],
    )


def _name(error: Any) -> str:
    return type(error).__name__


async def _one_bad(behaviour: str, place: int) -> tuple[int, Any, int]:
    """Right answers, the bad item's error, reruns."""
    calls = 0

    def count(event: Event) -> None:
        nonlocal calls
        if isinstance(event, BatchStarted):
            calls += 1
        elif isinstance(event, BatchFinished):
            calls += event.reruns

    texts = [f"fine:{number}" for number in range(BATCH)]
    texts[place] = f"{behaviour}:{place}"
    async with headway.Batcher(
        models.Texts, worker="process", policy="static", max_batch_size=BATCH, observers=[count]
    ) as batcher:
        answers = await asyncio.gather(*map(batcher.submit, texts), return_exceptions=True)
    right = sum(
        answer == models.digest_of(text.encode())
        for text, answer in zip(texts, answers, strict=True)
        if text != texts[place]
    )
    return right, answers[place], calls - 1


BENCHMARKS: dict[str, Benchmark] = {"worker-kill": worker_kill, "poison": poison}
