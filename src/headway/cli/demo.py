"""`headway demo`: what batching does to one small model, in a few seconds, explained as it runs.

A tour, not a benchmark: the model only waits, as Python does for a device that computes.
"""

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headway.cli.commands import Commands
from headway.core.items import FireReason
from headway.errors import HeadwayError
from headway.runtime.batching.batcher import Batcher
from headway.runtime.events import BatchFinished, Event

_CALLERS = 64
_SECONDS = 1.0  # for each of the two runs
_CALL_S = 0.010  # what a call of the model costs, however many rows it has …
_ROW_S = 0.0001  # … and what one text adds
_THINK_S = 0.005  # on average, between a caller's answer and its next call
_TIMETABLE = 12  # batches
_BAR = 32  # characters
_BAD = "\x00"

_REASONS = {
    FireReason.FULL: "no row more is allowed (max_batch_size)",
    FireReason.KNEE: "a larger batch would not pay",
    FireReason.BUDGET: "the cost budget was used up (max_batch_cost)",
    FireReason.IDLE: "the worker was free, and waiting was not expected to pay",
    FireReason.LINGER: "the worker waited a moment for more items, as long as that paid",
    FireReason.ALL_HERE: "all callers seen lately were there: none to wait for",
    FireReason.WINDOW: "the oldest had waited its window (max_wait_ms)",
    FireReason.DEADLINE: "later would have been too late for one of them",
    FireReason.DRAIN: "the batcher was closing",
}

_INTRODUCTION = f"""\
Headway demo: one model, {_CALLERS} callers, without and with batching.

The model takes a list of texts. Every call costs {_CALL_S * 1e3:g} ms, and each text in it
{_ROW_S * 1e3:g} ms more: most of the price is for the call, as on a GPU. Each caller sends
one text, waits for its answer, thinks for about {_THINK_S * 1e3:g} ms and sends the next.
"""

_NEXT = """\
Try next (in the repository)
  examples/decorator.py        the ten lines that batch a function of yours
  docs/tutorial.md             the same in fifteen minutes, step by step
  headway simulate --arrivals poisson --load 0.1,0.5,0.9 --latency 10,0.1
                               this model at three loads, three policies side by side
"""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "demo",
        help="see what batching does to one small model, in a few seconds",
        description="Runs a small model one call at a time, then batched, and explains what "
        "happened. Takes a few seconds and needs nothing but Headway.",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    asyncio.run(_tour())
    return 0


async def _tour() -> None:
    _say(_INTRODUCTION)
    alone = await _one_at_a_time()
    _say(f"1. One call for each text     {alone}")
    events: list[Event] = []
    async with Batcher[str, str](_classify, name="classify", observers=[events.append]) as batcher:
        together = await _drive(batcher.submit)
        batches = [event for event in events if isinstance(event, BatchFinished)]
        _say(f"2. Through headway.Batcher    {together}")
        _say(f"\n   {together.rate / alone.rate:.0f} times the answers, from the same model.")
        _tell_reasons(batches)
        _tell_timetable(batches)
        await _tell_isolation(batcher, events)
    _say(_NEXT)


def _say(text: str) -> None:
    print(text, flush=True)


# ---- the model and its callers


def _classify(texts: list[str]) -> list[str]:
    """The model. It waits as one waits for a device: other threads run meanwhile."""
    time.sleep(_CALL_S + _ROW_S * len(texts))
    for text in texts:
        if text == _BAD:
            raise ValueError(f"cannot read {text!r}")  # one bad input fails the whole call
    return ["long" if len(text) > 8 else "short" for text in texts]


@dataclass(frozen=True, slots=True)
class _Figures:
    rate: float
    latency_s: float  # mean

    def __str__(self) -> str:
        return f"{self.rate:5.0f} answers/s, mean latency {self.latency_s * 1e3:4.0f} ms"


async def _one_at_a_time() -> _Figures:
    free = asyncio.Lock()

    async def call(text: str) -> str:
        async with free:
            return (await asyncio.to_thread(_classify, [text]))[0]

    return await _drive(call)


async def _drive(call: Callable[[str], Awaitable[str]]) -> _Figures:
    """Let all callers call for a while."""
    latencies: list[float] = []
    started = time.monotonic()

    async def be_a_caller(number: int) -> None:
        thinking = random.Random(number)
        while time.monotonic() - started < _SECONDS:
            await asyncio.sleep(thinking.expovariate(1 / _THINK_S))
            asked = time.monotonic()
            await call(f"text {thinking.randrange(10**6)}")
            latencies.append(time.monotonic() - asked)

    async with asyncio.TaskGroup() as group:
        for number in range(_CALLERS):
            group.create_task(be_a_caller(number))
    rate = len(latencies) / (time.monotonic() - started)
    return _Figures(rate, sum(latencies) / len(latencies))


# ---- what happened


def _tell_reasons(batches: list[BatchFinished]) -> None:
    rows = sum(event.batch.rows for event in batches)
    _say(f"   {len(batches)} batches of {rows / len(batches):.0f} texts on average. They left for:")
    reasons = Counter(event.reason for event in batches)
    for reason, count in reasons.most_common():
        _say(f"   {count / len(batches):6.0%}  {reason.value:9} {_REASONS[reason]}")


def _tell_timetable(batches: list[BatchFinished]) -> None:
    _say(f"\n3. The timetable: the first {_TIMETABLE} batches, each with its reason")
    _say("     left at    queued  lingered  ran      texts")
    start = batches[0].batch.fired_at
    for event in batches[:_TIMETABLE]:
        batch, oldest = event.batch, event.items[0]
        bar = "#" * max(1, round(batch.rows / _CALLERS * _BAR))
        times = (batch.fired_at - start, oldest.queued_s, oldest.lingered_s, event.ran_s)
        left_at, queued, lingered, ran = (f"{seconds * 1e3:5.1f}" for seconds in times)
        _say(
            f"     {left_at} ms {queued:>7} {lingered:>9} {ran:>7}   {batch.rows:3d} "
            f"{bar} {event.reason.value}"
        )
    _say("   (ms; queued: the worker was busy; lingered: it waited on purpose)")


async def _tell_isolation(batcher: Batcher[str, str], events: list[Event]) -> None:
    texts = [f"text {number}" for number in range(15)]
    texts.insert(7, _BAD)
    seen = len(events)
    answers = await asyncio.gather(
        *(batcher.submit(text) for text in texts), return_exceptions=True
    )
    _say(f"\n4. One bad text among {len(texts)}")
    for text, answer in zip(texts, answers, strict=True):
        if isinstance(answer, HeadwayError):
            _say(f"   {text!r} got {type(answer).__name__}: {answer}")
    answered = sum(isinstance(answer, str) for answer in answers)
    finished = [event for event in events[seen:] if isinstance(event, BatchFinished)]
    reruns = sum(event.reruns for event in finished)
    _say(f"   Its {answered} neighbours were answered. The batch failed, so Headway halved it")
    _say(f"   until the culprit was alone: {reruns} more calls of the model.\n")
