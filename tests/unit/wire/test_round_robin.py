"""Work is shared out by turns of the event loop and by client. Counted in turns, not in time."""

import asyncio
from collections.abc import Iterator

import pytest

from headway.wire import round_robin
from headway.wire.round_robin import RoundRobin


@pytest.fixture(autouse=True)
def one_step_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_robin, "SLICE_S", -1.0)
    monkeypatch.setattr(round_robin, "FIRST_S", -1.0)


def work(name: str, count: int, done: list[str]) -> Iterator[float]:
    for number in range(count):
        done.append(f"{name}{number}")
        yield 0.0


async def test_one_step_in_a_turn_however_many_have_work() -> None:
    turns, done = RoundRobin(), list[str]()
    for number in range(5):
        turns.begin("client", work(f"{number}.", 3, done))
    assert len(done) == 1
    for count in range(2, 22):
        await asyncio.sleep(0)
        assert len(done) <= count
    assert len(set(done)) == 15


async def test_a_client_waits_for_one_step_of_another_and_not_for_one_of_each_connection() -> None:
    turns, done = RoundRobin(), list[str]()
    for number in range(50):
        turns.begin("busy", work(f"busy{number}.", 100, done))
    turns.begin("honest", work("honest", 3, done))
    for _ in range(8):
        await asyncio.sleep(0)
    assert [each for each in done if each.startswith("honest")] == ["honest0", "honest1", "honest2"]


async def test_what_is_short_is_done_at_once_if_nobody_waits() -> None:
    turns, done = RoundRobin(), list[str]()
    turns.begin("a", iter(()))
    turns.begin("a", work("b", 1, done))
    assert not done  # this turn has had its slice
    await asyncio.sleep(0)
    assert done == ["b0"]
    for _ in range(3):
        await asyncio.sleep(0)
    turns.begin("a", work("c", 1, done))
    assert done == ["b0", "c0"]


async def test_work_that_begins_more_work_goes_behind() -> None:
    turns, done = RoundRobin(), list[str]()

    def parent() -> Iterator[float]:
        done.append("parent")
        turns.begin("a", work("child", 1, done))
        yield 0.0

    turns.begin("a", parent())
    turns.begin("b", work("other", 1, done))
    for _ in range(6):
        await asyncio.sleep(0)
    assert sorted(done) == ["child0", "other0", "parent"]


async def test_a_step_that_raises_ends_its_own_work_alone() -> None:
    turns, done, said = RoundRobin(), list[str](), list[str]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: said.append(str(context["exception"])))

    def broken() -> Iterator[float]:
        yield 0.0
        raise RuntimeError("a mistake")

    turns.begin("a", broken())
    turns.begin("b", work("other", 3, done))
    for _ in range(8):
        await asyncio.sleep(0)
    assert said == ["a mistake"]
    assert len(done) == 3


@pytest.mark.parametrize("first_s", [-1.0, 30.0])
async def test_one_callback_a_turn(monkeypatch: pytest.MonkeyPatch, first_s: float) -> None:
    """What it wakes has its work in the next turn, however much time this one has left."""
    monkeypatch.setattr(round_robin, "FIRST_S", first_s)
    turns, done = RoundRobin(), list[int]()
    for number in range(5):
        turns.call("a", lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == [0]
    for _ in range(12):
        before = len(done)
        await asyncio.sleep(0)
        assert len(done) <= before + 1
    assert done == [0, 1, 2, 3, 4]


async def test_what_a_step_leaves_to_the_next_turn_counts_as_done_in_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(round_robin, "FIRST_S", 30.0)
    monkeypatch.setattr(round_robin, "SLICE_S", 10.0)
    turns, done = RoundRobin(), list[int]()

    def leaving() -> Iterator[float]:
        for number in range(20):
            done.append(number)
            yield 5.1

    turns.begin("a", leaving())
    assert len(done) == 6
    turns.begin("b", leaving())
    assert len(done) == 6  # of all that begins
    await asyncio.sleep(0)
    assert len(done) == 8


async def test_several_share_the_slice_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_robin, "FIRST_S", 30.0)
    turns, done = RoundRobin(), list[str]()
    for number in range(5):
        turns.begin("a", work(f"{number}.", 3, done))
    assert len(done) == 15


async def test_a_turn_goes_on_with_others_until_its_slice_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One short piece was done in a turn, so many of them took as many turns."""
    turns, done = RoundRobin(), list[str]()
    for number in range(6):
        turns.begin(f"client {number}", work(f"{number}.", 2, done))
    assert done == ["0.0"]
    monkeypatch.setattr(round_robin, "SLICE_S", 30.0)
    await asyncio.sleep(0)
    assert len(done) == 12
