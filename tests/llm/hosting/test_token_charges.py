"""What an answer costs its key: what was computed, whether its caller waits for it or not."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.core.generation.options import generation_options
from headway.core.generation.sampling import Sampling
from headway.core.generation.sequence import Finished, FinishReason
from headway.core.generation.sequence import Sequence as Asked
from headway.core.queueing.quota import Allowance, Quota
from headway.errors import DeadlineExceeded, HeadwayError, ModelFailed, QueueFull, QuotaExceeded
from headway.hosting.generation.frontend import Front
from headway.hosting.generation.pieces import Generation
from headway.hosting.registry import Ask
from headway.models.chat.text import ChatText
from headway.observe.generation import GenerationRecorder
from headway.runtime.driving.streams import OpenStream
from headway.runtime.generation.adapter_book import AdapterBook, Answer
from headway.runtime.generation.loop import PlainTokens, SequenceOutput, never_ran

MINUTE, PROMPT, MOST = 100_000, 20_000, 30_000
NO_TOKENS = PlainTokens([], [])


class Engine:
    def __init__(self, *, takes: int = 99) -> None:
        self.cancelled: list[int] = []
        self.left_to_take = takes

    def submit(self, sequence: Asked, sampling: Sampling) -> None:
        if not self.left_to_take:
            raise QueueFull("full", limit=1)
        self.left_to_take -= 1
        self.sequence = sequence.id

    def cancel(self, sequence: int) -> None:
        self.cancelled.append(sequence)

    def load_adapter(self, adapter: str, folder: str) -> Answer:
        raise NotImplementedError

    def unload_adapter(self, adapter: str) -> Answer:
        raise NotImplementedError


def begun(sequence: int, reason: FinishReason = FinishReason.CANCELLED) -> SequenceOutput:
    ended = Finished(sequence, reason, 0, 0, chunks=3, preemptions=1, admitted_at=1.0)
    return SequenceOutput(sequence, finished=ended)


def queued(sequence: int) -> SequenceOutput:
    return SequenceOutput(sequence, finished=never_ran(sequence))


def failed(error: HeadwayError) -> Callable[[int], SequenceOutput]:
    return lambda sequence: SequenceOutput(sequence, error=error)


def left(allowance: Allowance) -> int:
    """Tokens, to a thousand: it fills all the time."""
    for thousands in range(MINUTE // 1000, 0, -1):
        try:
            allowance.reserve_tokens(thousands * 1000, time.monotonic())
        except QuotaExceeded:
            continue
        allowance.refund_tokens(thousands * 1000, time.monotonic())
        return thousands * 1000
    return 0


def connected(folder: Path, engine: Engine) -> tuple[Front, Allowance]:
    front = Front(
        ChatText(folder),
        GenerationRecorder(),
        adapters=AdapterBook("m", most=0),
        is_shared=False,
        idle=lambda: None,
    )
    front.connect(engine, max_context=MINUTE)
    return front, Allowance("a", Quota(tokens_per_minute=MINUTE), time.monotonic())


def opened(folder: Path) -> tuple[Front, Engine, Allowance, OpenStream]:
    engine = Engine()
    front, allowance = connected(folder, engine)
    asked = Generation(((7,) * PROMPT,), generation_options({"max_tokens": MOST}))
    stream = front.open(asked, Ask(allowance=allowance))
    assert left(allowance) in range(MINUTE - PROMPT - MOST, MINUTE - PROMPT - MOST + 5000)
    return front, engine, allowance, stream


@pytest.mark.parametrize(
    ("end", "cost"),
    [
        (begun, PROMPT),
        (queued, 0),
        (failed(ModelFailed("the step failed")), PROMPT),
        (failed(QueueFull("full", limit=1)), 0),
    ],
)
async def test_whoever_leaves_before_the_first_token_pays_for_the_prompt_that_was_begun(
    folder: Path, end: Callable[[int], SequenceOutput], cost: int
) -> None:
    front, engine, allowance, stream = opened(folder)
    stream.close()
    assert engine.cancelled == [engine.sequence]
    assert left(allowance) < MINUTE - PROMPT  # until the engine says how far it came
    front.deliver(NO_TOKENS, [end(engine.sequence)])
    assert left(allowance) in range(MINUTE - cost - 999, MINUTE - cost + 5000)


async def test_an_answer_that_the_engine_does_not_take_costs_nothing(folder: Path) -> None:
    """Of two answers it takes the first, and reports the end of that one only."""
    engine = Engine(takes=1)
    front, allowance = connected(folder, engine)
    options = generation_options({"max_tokens": MOST // 10})
    with pytest.raises(QueueFull):
        front.open(Generation(((7,) * 1000, (7,) * 1000), options), Ask(allowance=allowance))
    assert engine.cancelled == [engine.sequence]
    front.deliver(NO_TOKENS, [queued(engine.sequence)])
    assert left(allowance) >= MINUTE - 999
    assert not front.is_busy


@pytest.mark.parametrize(
    ("end", "error", "cost"),
    [
        (lambda each: begun(each, FinishReason.DEADLINE), DeadlineExceeded, PROMPT),
        (failed(ModelFailed("the step failed")), ModelFailed, PROMPT),
        (failed(QueueFull("full", limit=1)), QueueFull, 0),
    ],
)
async def test_and_so_does_an_answer_that_fails_before_it(
    folder: Path, end: Callable[[int], SequenceOutput], error: type[HeadwayError], cost: int
) -> None:
    front, engine, allowance, stream = opened(folder)
    front.deliver(NO_TOKENS, [end(engine.sequence)])
    with pytest.raises(error):
        await asyncio.wait_for(anext(stream), 10)
    assert left(allowance) in range(MINUTE - cost - 999, MINUTE - cost + 5000)
