"""The driving shell is not for batches only: a toy of token-level batching drives it as well."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from token_decider import STEP_S, Generate, TokenDecider

from headway import Closed, DeadlineExceeded, ModelFailed
from headway.events import Crashed, Stopped
from headway.runtime.driving.event_loop import EventLoop
from headway.runtime.driving.streams import OpenStream
from headway.testing import Recorder, now


def count(done: list[int]) -> list[str]:
    return [str(each) for each in done]


class Toy:
    def __init__(self, generate: Generate, slots: int, weights: dict[str, float]) -> None:
        self.recorder = Recorder()
        self.decider = TokenDecider(generate, slots, weights)
        self.decider.shell.observers.add(self.recorder)

    async def read(self, length: int, **options: Any) -> list[str]:
        return [token async for token in self.decider.open(length, **options)]

    def start(self, length: int, **options: Any) -> "asyncio.Task[list[str]]":
        return asyncio.create_task(self.read(length, **options))

    async def close(self, drain_s: float = 30.0) -> None:
        await self.decider.shell.close(drain_s)


@asynccontextmanager
async def opened(
    generate: Generate = count, *, slots: int = 2, weights: dict[str, float] | None = None
) -> AsyncIterator[Toy]:
    toy = Toy(generate, slots, weights or {})
    toy.decider.shell.begin_opening()
    toy.decider.shell.finish_opening(EventLoop(asyncio.get_running_loop()))
    yield toy
    await toy.close()


def test_it_takes_fewer_than_150_lines() -> None:
    lines = Path(__file__).with_name("token_decider.py").read_text().splitlines()
    assert len(lines) < 150


async def test_sequences_share_steps_and_stream_their_tokens() -> None:
    steps: list[list[int]] = []

    def generate(done: list[int]) -> list[str]:
        steps.append(done)
        return count(done)

    async with opened(generate) as toy:
        short, long = toy.start(1), toy.start(3)
        await asyncio.sleep(STEP_S / 2)
        third = toy.start(2)  # joins when the short one leaves, between two steps of the long one
        assert await short == ["0"]
        assert await long == ["0", "1", "2"]
        assert await third == ["0", "1"]
    assert steps == [[0, 0], [1, 0], [2, 1]]
    assert now() == pytest.approx(3 * STEP_S)


async def test_tenants_share_by_weight() -> None:
    order: list[str] = []
    async with opened(slots=1, weights={"a": 3.0}) as toy:

        async def run(tenant: str) -> None:
            await toy.read(2, tenant=tenant)
            order.append(tenant)

        await asyncio.gather(*(run(tenant) for tenant in ["b"] * 8 + ["a"] * 8))
    assert order[:8].count("a") == 6


@pytest.mark.parametrize(("slots", "read"), [(2, ["0", "1"]), (1, [])], ids=["running", "queued"])
async def test_a_deadline_holds_while_it_runs_and_while_it_waits(
    slots: int, read: list[str]
) -> None:
    async with opened(slots=slots) as toy:
        first = toy.start(5)
        await asyncio.sleep(0)
        hurried = toy.decider.open(5, deadline=2.5 * STEP_S)
        assert [await anext(hurried) for _ in read] == read
        with pytest.raises(DeadlineExceeded):
            await anext(hurried)
        assert now() == pytest.approx(2.5 * STEP_S)
        assert await first == ["0", "1", "2", "3", "4"]


async def test_a_reader_that_leaves_makes_room() -> None:
    async with opened(slots=1) as toy:
        leaving = toy.decider.open(1000)
        waiting, follower = toy.decider.open(1000), toy.start(2)
        assert await anext(leaving) == "0"
        waiting.close()
        leaving.close()
        assert await follower == ["0", "1"]
        assert toy.decider.is_idle


async def test_a_step_that_fails_is_its_sequences_failure() -> None:
    def generate(done: list[int]) -> list[str]:
        if len(done) == 2:
            raise ValueError("two are too many")
        return count(done)

    async with opened(generate) as toy:
        both = await asyncio.gather(toy.read(2), toy.read(2), return_exceptions=True)
        assert [type(each) for each in both] == [ModelFailed, ModelFailed]
        assert await toy.read(2) == ["0", "1"]


async def test_in_a_crash_everyone_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(slots=9) as toy:
        calls = [toy.start(5) for _ in range(3)]
        await asyncio.sleep(1.5 * STEP_S)

        def breaks() -> None:
            raise RuntimeError("a bug of ours")

        monkeypatch.setattr(toy.decider.turns, "first", breaks)
        calls.append(toy.start(5))
        await asyncio.sleep(0)
        done, left = await asyncio.wait(calls, timeout=1.0)
        assert not left
        assert {type(each.exception()) for each in done} == {Closed}
        with pytest.raises(Closed, match="crashed"):
            toy.decider.open(1)
    assert [type(event) for event in toy.recorder.events] == [Crashed, Stopped]


@pytest.mark.parametrize(("drain_s", "answered"), [(math.inf, True), (1.5 * STEP_S, False)])
async def test_closing_drains_and_answers_the_rest(drain_s: float, answered: bool) -> None:
    async with opened(slots=1) as toy:
        calls = [toy.start(2), toy.start(2)]
        await asyncio.sleep(0)
        await toy.close(min(drain_s, 30.0))
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(each, Closed) for each in results) is not answered
    assert toy.decider.is_idle


@pytest.mark.real_time
async def test_it_runs_in_a_thread_in_real_time() -> None:
    async with asyncio.timeout(30), opened() as toy:
        streams: list[OpenStream] = [toy.decider.open(50) for _ in range(8)]
        lengths = [len([token async for token in stream]) for stream in streams]
    assert lengths == [50] * 8
