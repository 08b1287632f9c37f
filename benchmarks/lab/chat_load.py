"""The chat model on the CPU: shared prefixes, long prompts beside streams, tenants that flood.

The production scheduler and engine in one process, driven as the engine's loop drives them, in real
time, token ids in and out. `.venv-llm/bin/python -m benchmarks.lab chat-prefixes chat-interactive
chat-fair`; the model is `headway models get chat`.
"""

import itertools
import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.report import Bar, Benchmark, Report
from headway.core.generation.sampling import Sampling
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Sequence
from headway.core.generation.step import Step
from headway.core.items import Priority, Wait

SYSTEM, QUESTION = 1000, 24  # tokens
CHATS = 16
STREAMS, LONG = 8, 2000
VOCABULARY = 49_000


def start(**options: Any) -> Any:
    from headway.engine.starting import EngineOptions
    from headway.engine.starting import start as start_engine
    from headway.models.chat.finding import find_language_model

    settings = {"max_context": 4096, "device": "cpu", "kv_cache_gib": 2.0, **options}
    return start_engine(find_language_model("chat"), EngineOptions(**settings))


class Driver:
    """One engine and a new scheduler: what each sequence got, and when."""

    def __init__(self, runner: Any, *, seed: int = 0, **limits: Any) -> None:
        self._runner = runner
        self.scheduler = GenerationScheduler(replace(runner.limits, **limits))
        self._ids = itertools.count(1)
        self._draw = random.Random(seed)
        self.sent: dict[int, float] = {}
        self.tokens: dict[int, list[float]] = defaultdict(list)  # when each came
        self.tenants: dict[int, str] = {}
        self.prefilled = 0  # tokens of prompts that were computed
        self.steps = 0
        self.entered: dict[int, int] = {}  # the step that first computed some of its prompt

    def prompt(self, count: int) -> tuple[int, ...]:
        return tuple(self._draw.randrange(10, VOCABULARY) for _ in range(count))

    def submit(self, prompt: tuple[int, ...], out: int, **fields: Any) -> int:
        number, now = next(self._ids), time.perf_counter()
        self.sent[number] = now
        self.tenants[number] = fields.get("tenant", "")
        self.scheduler.submit(Sequence(number, now, prompt, out, **fields))
        self._runner.add(number, prompt, Sampling(temperature=0.0))
        return number

    def submit_and_run(self, prompt: tuple[int, ...], out: int) -> int:
        number = self.submit(prompt, out)
        self.run()
        return number

    def step(self) -> Step:
        while isinstance(step := self.scheduler.next_step(time.perf_counter()), Wait):
            assert step.until < math.inf  # an idle engine waits a moment for the rest of a burst
        began = time.perf_counter()
        sampled = self._runner.run(step)
        now = time.perf_counter()
        self.steps += 1
        for each in step.prefill:
            self.entered.setdefault(each.sequence, self.steps)
        self.prefilled += sum(len(each.tokens) for each in step.prefill)
        for number in step.sampled:
            self.tokens[number].append(now)
        for finished in self.scheduler.complete(step, sampled.tokens, now - began):
            self._runner.drop(finished.sequence)
        return step

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        while (self.scheduler.running or self.scheduler.waiting) and not until():
            self.step()

    def first_s(self, number: int) -> float:
        return self.tokens[number][0] - self.sent[number]

    def gaps(self, numbers: list[int], since: float = 0.0) -> list[float]:
        return [
            after - before
            for number in numbers
            for before, after in itertools.pairwise(self.tokens[number])
            if after > since  # the gap in which something began is of that time, too
        ]


def prefixes(quick: bool) -> Report:
    runner = start()
    driver = Driver(runner)
    driver.submit(driver.prompt(64), 4)
    driver.run()  # warm
    colds: list[float] = []
    cached: list[float] = []
    for _ in range(1 if quick else 3):
        system = driver.prompt(SYSTEM)
        for times in (colds, cached):
            number = driver.submit((*system, *driver.prompt(QUESTION)), 2)
            driver.run()
            times.append(driver.first_s(number))
    cold, warm = statistics.median(colds), statistics.median(cached)
    system, before = driver.prompt(SYSTEM), driver.prefilled
    numbers = [driver.submit((*system, *driver.prompt(QUESTION)), 2) for _ in range(CHATS)]
    driver.run()
    computed = driver.prefilled - before
    least = SYSTEM + CHATS * QUESTION
    block = runner.limits.block_size  # a question shares no block with the prefix's last one
    is_once = computed <= least + CHATS * block
    slowest = max(driver.first_s(number) for number in numbers)
    return Report(
        "Chats that share a beginning",
        ["chats", "first token", "prompt tokens computed"],
        [
            ["the first", f"{cold * 1e3:.0f} ms", SYSTEM + QUESTION],
            ["one after it", f"{warm * 1e3:.0f} ms", "the question's"],
            [f"{CHATS} at once", f"{slowest * 1e3:.0f} ms, the last", computed],
        ],
        [
            Bar("first token ≥ 5× sooner after the first", f"{cold / warm:.1f}×", cold >= 5 * warm),
            Bar(f"{CHATS} at once: computed once", f"{computed} tokens, least {least}", is_once),
        ],
        [f"a system prompt of {SYSTEM} tokens, questions of {QUESTION}"],
    )


def interactive(quick: bool) -> Report:
    rows: list[list[object]] = []
    bars: list[Bar] = []
    for chunking in (True, False):
        runner = start(chunking=chunking)
        alone_s, calm, beside, firsts = _beside(runner, prompts=1 if quick else 3)
        ratio, later = _p99(beside) / _p99(calm), max(firsts) / alone_s
        name = "chunks" if chunking else "no chunks"
        rows.append(
            [
                name,
                f"{_p99(calm) * 1e3:.0f} ms",
                f"{_p99(beside) * 1e3:.0f} ms ({ratio:.2f}×)",
                f"{max(beside):.2f} s",
                f"{alone_s:.2f} s",
                f"{max(firsts):.2f} s ({later:.2f}×)",
            ]
        )
        if chunking:
            bars.append(Bar("p99 between tokens ≤ 2× without it", f"{ratio:.2f}×", ratio <= 2))
            bars.append(Bar("its first token ≤ 4× its time alone", f"{later:.2f}×", later <= 4))
    return Report(
        "Streams beside long prompts",
        [
            "",
            "p99 between tokens",
            "with long prompts",
            "longest",
            "one alone: first token",
            "beside",
        ],
        rows,
        bars,
        [
            f"{STREAMS} streams; a prompt of {LONG} tokens every 4× its time alone; turn by turn "
            "with the same streams without it"
        ],
    )


def _beside(runner: Any, *, prompts: int) -> tuple[float, list[float], list[float], list[float]]:
    """Turn by turn without and with a long prompt: the streams grow, and the machine's speed
    changes, so one half of the time says little of the other."""
    driver = Driver(runner)
    driver.submit(driver.prompt(64), 4)
    driver.run()
    alone = [driver.submit_and_run(driver.prompt(LONG), 1) for _ in range(3)]
    alone_s = statistics.median(map(driver.first_s, alone))
    streams = [driver.submit(driver.prompt(32), 3000) for _ in range(STREAMS)]
    driver.run(lambda: all(len(driver.tokens[each]) > 4 for each in streams))
    calm: list[float] = []
    beside: list[float] = []
    firsts = []
    for _ in range(prompts):
        began = time.perf_counter()
        driver.run(lambda began=began: time.perf_counter() - began > 4 * alone_s)  # type: ignore[misc]
        calm += driver.gaps(streams, began)
        sent = time.perf_counter()
        number = driver.submit(driver.prompt(LONG), 1)
        driver.run(
            lambda number=number, sent=sent: (  # type: ignore[misc]
                bool(driver.tokens[number]) and time.perf_counter() - sent > 4 * alone_s
            )
        )
        beside += driver.gaps(streams, sent)
        firsts.append(driver.first_s(number))
    return alone_s, calm, beside, firsts


def fair(quick: bool) -> Report:
    runner, slots, out = start(), 8, 32 if quick else 48
    driver = Driver(runner, max_sequences=slots)
    driver.submit(driver.prompt(64), 4)
    driver.run()

    def ask(seed: int, flood: int, priority: Priority = Priority.NORMAL) -> tuple[float, int]:
        new = Driver(runner, seed=seed, max_sequences=slots)
        return _asked(new, flood, out, priority)

    calm = [ask(seed, slots - 1)[0] for seed in range(3)]
    busy = [ask(seed, 5 * slots)[0] for seed in range(3, 6)]
    asked = [ask(seed, 5 * slots, Priority.HIGH) for seed in range(6, 9)]
    high, steps = [first_s for first_s, _ in asked], max(count for _, count in asked)
    driver = Driver(runner, max_sequences=slots)
    for tenant in ("floods", "other"):
        for _ in range(5 * slots if tenant == "floods" else 2 * slots):
            driver.submit(driver.prompt(48), out, tenant=tenant)
    driver.run(lambda: "other" not in _waiting(driver))
    counts = {
        tenant: sum(
            len(driver.tokens[each]) for each, name in driver.tenants.items() if name == tenant
        )
        for tenant in ("floods", "other")
    }
    share = counts["floods"] / sum(counts.values())
    ratio = statistics.median(busy) / statistics.median(calm)
    return Report(
        "A tenant that floods",
        ["", "first token of the other tenant"],
        [
            [f"beside {slots - 1} running, no queue", f"{statistics.median(calm) * 1e3:.0f} ms"],
            [f"{slots} running, {4 * slots} queued", f"{statistics.median(busy) * 1e3:.0f} ms"],
            ["the same, priority high", f"{statistics.median(high) * 1e3:.0f} ms"],
        ],
        [
            Bar("the other's first token ≤ 1.5× without a queue", f"{ratio:.2f}×", ratio <= 1.5),
            Bar(
                "the flood gets no more than its share", f"{share:.1%} of the tokens", share <= 0.55
            ),
            Bar("high enters at the next step", f"step {steps}", steps == 1),
        ],
        [f"{slots} sequences at once; prompts of 48 tokens, {out} out"],
    )


def _asked(driver: Driver, flood: int, out: int, priority: Priority) -> tuple[float, int]:
    """The other tenant's first token, asked for while the first one's are under way: seconds, and
    in which step from then on it entered."""
    for _ in range(flood):
        driver.submit(driver.prompt(48), out, tenant="floods")
    driver.run(lambda: sum(map(len, driver.tokens.values())) > 4 * min(flood, 8))
    number = driver.submit(driver.prompt(48), 1, tenant="other", priority=priority)
    before = driver.steps
    driver.run(lambda: bool(driver.tokens[number]))
    return driver.first_s(number), driver.entered[number] - before


def _waiting(driver: Driver) -> set[str]:
    """Tenants some of whose answers are not complete."""
    return {
        driver.tenants[each]
        for each in driver.sent
        if each not in driver.tokens or not driver.tokens[each]
    }


def _p99(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[-1]


BENCHMARKS: dict[str, Benchmark] = {
    "chat-prefixes": prefixes,
    "chat-interactive": interactive,
    "chat-fair": fair,
}
