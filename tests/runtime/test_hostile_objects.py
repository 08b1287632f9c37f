"""Results and exceptions that turn on those who look at them: one item's affair, never its batch's,
and never the event loop's."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import headway
from headway import Batcher, HeadwayError, InvalidInput, ModelFailed
from headway.runtime.calling.faults import MOST_TEXT

COUNT, VICTIM = 8, 3
RAISED: list[type[BaseException]] = [
    *(ReferenceError, KeyboardInterrupt, SystemExit, GeneratorExit),
    *(asyncio.CancelledError, StopIteration, RecursionError),
]
PROPERTIES = ["__class__", "__dict__", "nbytes"]
METHODS = [
    *("__getattribute__", "__eq__", "__bool__", "__len__", "__hash__", "__iter__", "__repr__"),
    *("__str__", "__reduce_ex__", "__copy__", "__deepcopy__", "__array__"),
]


def hostile(base: type[Any], name: str, raised: type[BaseException]) -> Any:
    def turn(*_: object, **__: object) -> Any:
        raise raised("do not look at me")

    return type("Hostile", (base,), {name: property(turn) if name in PROPERTIES else turn})()


def dead_proxy() -> Any:
    class Gone:
        pass

    return weakref.proxy(Gone())


def all_of(base: type[Any]) -> Iterator[Any]:
    for name in (*PROPERTIES, *METHODS):
        for raised in RAISED:
            yield hostile(base, name, raised)


Place = Callable[[type[headway.Model[Any, Any]], Any], None]


def returned_by_predict(model: type[headway.Model[Any, Any]], thing: Any) -> None:
    def predict(_: Any, items: list[int]) -> list[Any]:
        return [thing if item == VICTIM else item for item in items]

    model.predict = predict  # type: ignore[method-assign]


def raised_by_predict(model: type[headway.Model[Any, Any]], thing: Any) -> None:
    def predict(_: Any, items: list[int]) -> list[Any]:
        if VICTIM in items:
            raise thing
        return items

    model.predict = predict  # type: ignore[method-assign]


def _for_victim(answer: Callable[[], Any]) -> Callable[[Any, int], Any]:
    return lambda _, value: answer() if value == VICTIM else value


def returned_by_finish(model: type[headway.Model[Any, Any]], thing: Any) -> None:
    model.finish = _for_victim(lambda: thing)  # type: ignore[method-assign,assignment]


def _raise(thing: Any) -> Any:
    raise thing


def raised_by_finish(model: type[headway.Model[Any, Any]], thing: Any) -> None:
    model.finish = _for_victim(lambda: _raise(thing))  # type: ignore[method-assign,assignment]


def raised_by_prepare(model: type[headway.Model[Any, Any]], thing: Any) -> None:
    model.prepare = _for_victim(lambda: _raise(thing))  # type: ignore[method-assign,assignment]


def model_with(place: Place, thing: Any) -> headway.Model[Any, Any]:
    class Plain(headway.Model[Any, Any]):
        def predict(self, items: list[Any]) -> list[Any]:
            return items

    place(Plain, thing)
    return Plain()


async def others_are_answered(model: headway.Model[Any, Any]) -> None:
    async with Batcher(model, max_batch_size=COUNT) as batcher:
        calls = [asyncio.ensure_future(batcher.submit(number)) for number in range(COUNT)]
        done, waiting = await asyncio.wait(calls, timeout=30)
        assert not waiting
        assert len(done) == COUNT
        neighbours = [call for number, call in enumerate(calls) if number != VICTIM]
        assert [call.result() for call in neighbours] == [
            number for number in range(COUNT) if number != VICTIM
        ]
        victim = calls[VICTIM].exception()
        assert victim is None or issubclass(type(victim), HeadwayError)


@pytest.mark.real_time
@pytest.mark.parametrize("place", [returned_by_predict, returned_by_finish])
def test_a_result_that_turns_on_its_readers_hurts_no_neighbour(place: Place) -> None:
    for thing in (dead_proxy(), *all_of(object)):
        asyncio.run(others_are_answered(model_with(place, thing)))


@pytest.mark.real_time
@pytest.mark.parametrize("place", [raised_by_predict, raised_by_finish, raised_by_prepare])
def test_an_exception_that_turns_on_its_readers_hurts_no_neighbour(place: Place) -> None:
    for thing in (*all_of(Exception), *(raised("plain") for raised in RAISED)):
        asyncio.run(others_are_answered(model_with(place, thing)))


async def test_nor_in_the_event_loop_itself() -> None:
    """On virtual time models run in the loop, as `async def` ones do."""
    for thing in (*all_of(Exception), *(raised("plain") for raised in RAISED)):
        await others_are_answered(model_with(raised_by_predict, thing))


async def test_a_chunk_that_turns_on_its_readers_is_one_streams_affair() -> None:
    class Talk(headway.Model[int, Any]):
        def __init__(self, thing: Any) -> None:
            self.thing = thing

        async def stream(self, items: list[int]) -> AsyncIterator[list[Any]]:
            yield [self.thing if item == VICTIM else item for item in items]

    async def read(batcher: Batcher, number: int) -> list[Any]:
        return [chunk async for chunk in batcher.stream(number)]

    for thing in (dead_proxy(), *all_of(object)):
        async with Batcher(Talk(thing)) as batcher:
            found = await asyncio.gather(*(read(batcher, number) for number in range(COUNT)))
        assert [each for number, each in enumerate(found) if number != VICTIM] == [
            [number] for number in range(COUNT) if number != VICTIM
        ]


# ---- texts without end


async def test_a_text_of_megabytes_is_cut_in_each_answer() -> None:
    long = "begin" + "x" * 50_000_000 + "end"
    for error in (ValueError(long), InvalidInput(long)):
        async with Batcher(model_with(raised_by_predict, error)) as batcher:
            with pytest.raises(HeadwayError) as caught:
                await batcher.submit(VICTIM)
        text = str(caught.value)
        assert len(text) < MOST_TEXT + 200
        assert "begin" in text
        assert text.endswith("end")
        assert "(50000008 characters)" in text
        assert len(str(caught.value.__cause__)) < MOST_TEXT + 200
        assert type(caught.value) is (ModelFailed if type(error) is ValueError else InvalidInput)


async def test_a_text_that_takes_long_is_made_once_for_all_callers() -> None:
    made = 0

    class Slow(Exception):
        def __str__(self) -> str:
            nonlocal made
            made += 1
            return "slow"

    class Broken(headway.Model[int, int]):
        rerun = False

        def predict(self, items: list[int]) -> list[int]:
            raise Slow

    async with Batcher(Broken(), max_batch_size=64) as batcher:
        found = await asyncio.gather(
            *(batcher.submit(number) for number in range(64)), return_exceptions=True
        )
    assert all(isinstance(each, ModelFailed) for each in found)
    assert made < 20
