"""An engine in a process of its own, without torch: lost, it comes back, and nobody notices."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from word_engine import ADAPTED, ADAPTER, HANGS, KILLS, LIMITS, WordEngine

from fake_engine import next_token
from headway.core.generation.sampling import Sampling
from headway.core.generation.sequence import FinishReason
from headway.core.generation.sequence import Sequence as Asked
from headway.errors import Closed, HeadwayError, InputTooLarge, NotReady, Poison, UnknownModel
from headway.runtime.generation.loop import PlainTokens, SequenceOutput
from headway.runtime.generation.process import EngineProcess
from headway.runtime.workers.process.options import ProcessOptions

pytestmark = pytest.mark.real_time


class Reader:
    """What has come of every sequence."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, list[Any]] = {}
        self.messages = 0
        self.moved = asyncio.Event()

    def report(self, plain: PlainTokens, outputs: Sequence[SequenceOutput]) -> None:
        self.messages += 1
        for sequence, token in zip(*plain, strict=True):
            self.tokens.setdefault(sequence, []).append(token)
        for output in outputs:
            if output.token is not None:
                self.tokens.setdefault(output.sequence, []).append(output.token)
            if output.finished is not None or output.error is not None:
                end = output.error or output.finished
                self.ends.setdefault(output.sequence, []).append(end)
        self.moved.set()

    async def wait(self, is_so: Any) -> None:
        async with asyncio.timeout(60):
            while not is_so():
                self.moved.clear()
                await self.moved.wait()

    async def wait_ended(self, *sequences: int) -> None:
        await self.wait(lambda: all(each in self.ends for each in sequences))


@asynccontextmanager
async def running(
    words: WordEngine | None = None, **options: Any
) -> AsyncIterator[tuple[EngineProcess, Reader]]:
    reader = Reader()
    engine = EngineProcess(
        "words",
        words or WordEngine(),
        ProcessOptions(**options),
        report=reader.report,
        tell=lambda event: reader.moved.set(),
    )
    welcome = await engine.start()
    assert (welcome.limits, welcome.vocabulary) == (LIMITS, 64)
    try:
        yield engine, reader
    finally:
        await engine.close()


def asked(number: int, *prompt: int, max_tokens: int = 60) -> Asked:
    return Asked(number, float(number), prompt or (number,), max_tokens)


def adapted(number: int, *, max_tokens: int = 200) -> Asked:
    return asked(number, number, ADAPTED, max_tokens=max_tokens)._replace(adapter=ADAPTER)


def expected(sequence: Asked) -> list[int]:
    tokens = list(sequence.prompt)
    for _ in range(sequence.max_tokens):
        tokens.append(next_token(tokens, adapter=sequence.adapter))
    return tokens[len(sequence.prompt) :]


async def test_one_message_a_step_for_all_sequences() -> None:
    async with running() as (engine, reader):
        sequences = [asked(number) for number in range(1, 21)]
        for each in sequences:
            engine.submit(each, Sampling())
        await reader.wait_ended(*range(1, 21))
        assert [reader.tokens[each.id] for each in sequences] == [expected(e) for e in sequences]
        assert reader.messages < 100  # of 1,200 tokens
        assert engine.load.blocks_used == engine.load.running == 0


async def test_killed_in_the_middle_no_token_is_lost_or_repeated() -> None:
    async with running() as (engine, reader):
        sequences = [asked(number, max_tokens=200) for number in range(1, 11)]
        for each in sequences:
            engine.submit(each, Sampling())
        for kills in range(1, 4):
            await reader.wait(lambda least=kills * 30: len(reader.tokens.get(10, ())) >= least)
            pid = engine.status.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await reader.wait(lambda seen=kills * 30 + 15: len(reader.tokens[10]) >= seen)
        await reader.wait_ended(*range(1, 11))
        assert [reader.tokens[each.id] for each in sequences] == [expected(e) for e in sequences]
        assert [len(ends) for ends in reader.ends.values()] == [1] * 10
        assert engine.status.restarts == 3


async def test_after_an_error_of_the_device_all_go_on_in_another_process() -> None:
    async with running() as (engine, reader):
        sequences = [asked(number, max_tokens=100) for number in range(1, 11)]
        for each in sequences:
            engine.submit(each, Sampling())
        await reader.wait(lambda: len(reader.tokens.get(10, ())) >= 30)
        await engine.call("break_device")
        await reader.wait_ended(*range(1, 11))
        assert [reader.tokens[each.id] for each in sequences] == [expected(e) for e in sequences]
        assert all(end.reason is FinishReason.LENGTH for (end,) in reader.ends.values())
        assert engine.status.restarts == 1


async def test_the_sequence_that_takes_engines_down_is_refused_alone() -> None:
    async with running() as (engine, reader):
        innocent = [asked(number) for number in range(1, 6)]
        for each in (*innocent, asked(6, 1, KILLS)):
            engine.submit(each, Sampling())
        await reader.wait_ended(*range(1, 7))
        assert [reader.tokens[each.id] for each in innocent] == [expected(e) for e in innocent]
        assert isinstance(reader.ends[6][0], Poison)
        assert [len(ends) for ends in reader.ends.values()] == [1] * 6


async def test_an_engine_without_memory_for_all_says_so_and_all_are_answered() -> None:
    async with running(WordEngine(most=4)) as (engine, reader):
        sequences = [asked(number) for number in range(1, 11)]
        for each in sequences:
            engine.submit(each, Sampling())
        await reader.wait_ended(*range(1, 11))
        assert [reader.tokens[each.id] for each in sequences] == [expected(e) for e in sequences]
        told = "exited with status 1: RuntimeError: CUBLAS_STATUS_ALLOC_FAILED: room for 4 only"
        assert engine.status.last_error == told


async def test_a_step_that_hangs_is_ended() -> None:
    async with running(execute_timeout_s=1.0) as (engine, reader):
        engine.submit(asked(1, HANGS), Sampling())
        await reader.wait_ended(1)
        assert isinstance(reader.ends[1][0], Poison)
        assert "did not answer within 1 s" in engine.status.last_error
        engine.submit(asked(2), Sampling())
        await reader.wait_ended(2)
        assert reader.tokens[2] == expected(asked(2))


async def test_cancelled_with_an_engine_or_without() -> None:
    async with running() as (engine, reader):
        engine.submit(asked(1, max_tokens=400), Sampling())
        await reader.wait(lambda: 1 in reader.tokens)
        engine.cancel(1)
        await reader.wait_ended(1)
        assert reader.ends[1][0].reason is FinishReason.CANCELLED
        pid = engine.status.pid
        assert pid is not None
        engine.submit(asked(2, max_tokens=400), Sampling())
        os.kill(pid, signal.SIGKILL)
        await reader.wait(lambda: not engine.is_up)
        engine.submit(asked(3), Sampling())  # held until the next one is there
        engine.cancel(2)
        await reader.wait_ended(2)
        await reader.wait_ended(3)
        assert reader.tokens[3] == expected(asked(3))


async def test_what_the_engine_refuses_says_why() -> None:
    async with running() as (engine, reader):
        engine.submit(asked(1, *range(1, 40), max_tokens=10_000), Sampling())
        await reader.wait_ended(1)
        error = reader.ends[1][0]
        assert isinstance(error, InputTooLarge)
        assert error.limit == LIMITS.max_context


async def test_an_engine_that_is_not_started_again_is_given_up() -> None:
    async with running(max_restarts=0) as (engine, reader):
        engine.submit(asked(1, KILLS), Sampling())
        await reader.wait_ended(1)
        error = reader.ends[1][0]
        assert isinstance(error, HeadwayError)
        await reader.wait(lambda: engine.trouble)
        with pytest.raises(NotReady):
            engine.submit(asked(2), Sampling())


async def test_methods_are_called_between_steps_and_closing_tells_everyone() -> None:
    async with running() as (engine, reader):
        assert await engine.call("count") == 0
        with pytest.raises(AttributeError):
            await engine.call("nothing")
        engine.weigh({"a": 2.0})
        engine.submit(asked(1, max_tokens=400), Sampling())
        await reader.wait(lambda: 1 in reader.tokens)
        assert await engine.call("count") == 1
    assert isinstance(reader.ends[1][0], Closed)
    with pytest.raises(Closed):
        engine.submit(asked(2), Sampling())


@pytest.mark.parametrize("is_away", [False, True])
async def test_an_adapter_that_is_unloaded_serves_those_that_have_it_and_is_gone(
    is_away: bool,
) -> None:
    """Whether the engine was lost before that, or is lost after it."""
    async with running() as (engine, reader):
        await engine.load_adapter(ADAPTER, "/")
        engine.submit(adapted(1), Sampling())
        await reader.wait(lambda: len(reader.tokens.get(1, ())) >= 20)
        assert engine.status.pid is not None
        if is_away:
            os.kill(engine.status.pid, signal.SIGKILL)
            await reader.wait(lambda: not engine.is_up)
            await engine.unload_adapter(ADAPTER)
        else:
            await engine.unload_adapter(ADAPTER)
            os.kill(engine.status.pid, signal.SIGKILL)
        await reader.wait_ended(1)
        assert reader.tokens[1] == expected(adapted(1))
        assert await engine.call("loaded") == []


async def test_a_sequence_that_waits_for_its_turn_keeps_an_adapter_that_is_unloaded() -> None:
    """A neighbour takes engines down, and others wait until it is found."""
    async with running() as (engine, reader):
        await engine.load_adapter(ADAPTER, "/")
        engine.submit(asked(1, 1, KILLS), Sampling())
        await reader.wait(lambda: not engine.is_up)
        engine.submit(adapted(2), Sampling())
        await reader.wait(lambda: engine.is_up)
        await engine.unload_adapter(ADAPTER)
        await reader.wait_ended(1, 2)
        assert isinstance(reader.ends[1][0], Poison)
        assert reader.tokens.get(2) == expected(adapted(2)), reader.ends[2]
        assert await engine.call("loaded") == []


async def test_an_adapter_whose_folder_is_gone_is_told_of_when_its_engine_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    async with running() as (engine, reader):
        await engine.load_adapter(ADAPTER, str(folder))
        folder.rmdir()
        engine.submit(adapted(1), Sampling())
        await reader.wait(lambda: len(reader.tokens.get(1, ())) >= 20)
        assert engine.status.pid is not None
        os.kill(engine.status.pid, signal.SIGKILL)
        await reader.wait_ended(1)
        assert isinstance(reader.ends[1][0], UnknownModel)
        assert f"adapter {ADAPTER} is lost with its engine: there is no folder" in caplog.text
        engine.submit(asked(2), Sampling())
        await reader.wait_ended(2)
        assert reader.tokens[2] == expected(asked(2))
