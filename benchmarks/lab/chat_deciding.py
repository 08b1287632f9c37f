"""What the scheduler of steps costs: 256 sequences of 1,000 blocks each, whatever else is cached.

`python -m benchmarks.lab chat-deciding`; needs no torch. CPU time of `next_step` and of
`complete`, the scheduler's whole part of a step.
"""

import statistics
import time

from benchmarks.report import Bar, Benchmark, Report
from headway.core.generation.limits import EngineLimits
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Sequence
from headway.core.generation.step import Step
from headway.core.items import Wait

SEQUENCES, BLOCKS, BLOCK = 256, 1000, 16
CACHED = (0, 10_000, 100_000)
ALONE = 10_000  # blocks of each ended sequence that are left in the cache
STEPS = 10  # in a row
MOST_MS, MOST_RATIO = 1.0, 1.25


def deciding(quick: bool) -> Report:
    turns = 5 if quick else 40
    rows, typical, worst = [], [], 0.0
    schedulers = {cached: _filled(cached) for cached in CACHED}
    timed: dict[int, list[tuple[float, float]]] = {cached: [] for cached in CACHED}
    for _ in range(turns):  # in turn, so that what the machine does beside it hits all alike
        for cached, scheduler in schedulers.items():
            timed[cached] += [_timed_step(scheduler) for _ in range(STEPS)]
    for cached, pairs in timed.items():
        decided, completed = zip(*pairs, strict=True)
        whole = [sum(pair) for pair in pairs]
        typical.append(statistics.median(whole))
        worst = max(worst, typical[-1])
        rows.append(
            [
                f"{cached:,}",
                *(f"{statistics.median(each):.2f}" for each in (decided, completed, whole)),
                f"{statistics.quantiles(whole, n=100)[98]:.2f}",
            ]
        )
    ratio = typical[-1] / typical[0]
    return Report(
        f"Steps decided: {SEQUENCES} sequences of {BLOCKS:,} blocks, CPU ms a step",
        ["other blocks cached", "next_step", "complete", "both", "both, p99"],
        rows,
        [
            Bar(f"≤ {MOST_MS:g} ms a step", f"{worst:.2f} ms", worst <= MOST_MS),
            Bar(
                f"flat in cached blocks: {CACHED[-1]:,} ≤ {MOST_RATIO} × none",
                f"{ratio:.2f} ×",
                ratio <= MOST_RATIO,
            ),
        ],
        [
            f"medians of {turns * STEPS} steps, in which every sequence gets a token and one in "
            f"{BLOCK} a block; contexts of 16,000 tokens and their prefix hashes"
        ],
    )


def _filled(cached: int) -> GenerationScheduler:
    """All sequences decode while the cache has that many blocks of ended ones."""
    room = SEQUENCES * (BLOCKS + 64) + cached + ALONE
    limits = EngineLimits(
        blocks=room,
        block_size=BLOCK,
        max_context=(max(BLOCKS, ALONE) + 64) * BLOCK,
        max_sequences=SEQUENCES,
        step_tokens=2**20,
        max_stretch=float("inf"),
    )
    scheduler = GenerationScheduler(limits)
    for number in range(cached // ALONE):
        scheduler.submit(Sequence(10_000 + number, 0.0, _prompt(number, ALONE), 1))
        _run(scheduler)
    assert scheduler.running == scheduler.waiting == 0
    for number in range(SEQUENCES):
        prompt = _prompt(1000 + number, BLOCKS)[number % BLOCK :]  # blocks are due at other times
        scheduler.submit(Sequence(number, 0.0, prompt, 64 * BLOCK - BLOCK))
    while scheduler.waiting:
        _run(scheduler)
    _run(scheduler)
    assert scheduler.running == SEQUENCES
    return scheduler


def _prompt(number: int, blocks: int) -> tuple[int, ...]:
    return (number, *range(1, blocks * BLOCK))


def _run(scheduler: GenerationScheduler) -> None:
    step = scheduler.next_step(0.0)
    if isinstance(step, Wait):  # a prompt that comes alone waits a moment for company
        step = scheduler.next_step(step.until)
    assert isinstance(step, Step)
    scheduler.complete(step, [7] * len(step.sampled), 0.01)


def _timed_step(scheduler: GenerationScheduler) -> tuple[float, float]:
    """Milliseconds to decide it, and to complete it."""
    began = time.thread_time()
    step = scheduler.next_step(0.0)
    made = time.thread_time()
    assert isinstance(step, Step)
    assert len(step.decode) == SEQUENCES
    tokens = [7] * SEQUENCES
    middle = time.thread_time()
    scheduler.complete(step, tokens, 0.01)
    return (made - began) * 1e3, (time.thread_time() - middle) * 1e3


BENCHMARKS: dict[str, Benchmark] = {"chat-deciding": deciding}
