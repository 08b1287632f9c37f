"""`@headway.batched`: a function over a list becomes one over single values."""

import asyncio
import gc
import inspect
import math
import sys
import threading
from typing import Any

import pytest

import headway
from headway import ConfigError, InvalidInput
from headway.testing import FakeModel, GatedModel, Recorder, now


async def test_it_needs_no_arguments() -> None:
    @headway.batched
    async def double(values: list[int]) -> list[int]:
        return [value * 2 for value in values]

    assert await double(21) == 42
    assert await double.many([1, 2]) == [2, 4]


async def test_it_takes_the_options_of_a_batcher() -> None:
    model = FakeModel(cost_s=0.010)
    double = headway.batched(max_batch_size=2, policy="window", max_wait_ms=5)(model)
    assert await asyncio.gather(*(double(n) for n in range(3))) == [0, 2, 4]
    assert model.batches == [[0, 1], [2]]
    assert now() == pytest.approx(0.020)


async def test_a_call_takes_the_options_of_submit() -> None:
    gate = GatedModel()
    echo = headway.batched(max_batch_size=1)(gate)
    running = asyncio.create_task(echo(1))
    await asyncio.sleep(0.001)
    low = asyncio.create_task(echo(2, priority="low"))
    high = asyncio.create_task(echo(3, priority="high"))
    with pytest.raises(headway.DeadlineExceeded):
        await echo(4, deadline_ms=5)
    gate.open()
    await asyncio.gather(running, low, high)
    assert gate.batches == [[1], [3], [2]]


def test_a_wrong_option_fails_where_it_is_written() -> None:
    with pytest.raises(headway.ConfigError, match="max_batch_size"):
        headway.batched(max_batch_size=0)(lambda values: values)
    with pytest.raises(TypeError, match="max_batchsize"):
        headway.batched(max_batchsize=3)(lambda values: values)


def test_it_keeps_the_functions_name_and_words() -> None:
    @headway.batched
    def embed(texts: list[str]) -> list[int]:
        """Embeds."""
        return [len(text) for text in texts]

    assert (embed.__name__, embed.__doc__) == ("embed", "Embeds.")  # type: ignore[attr-defined]
    assert embed.__module__ == __name__
    assert embed.batcher.name == "embed"
    assert inspect.unwrap(embed)(["abc"]) == [3]  # type: ignore[arg-type]


def test_nothing_is_started_before_the_first_call() -> None:
    before = threading.active_count()
    headway.batched(lambda values: values)
    assert threading.active_count() == before


async def test_an_item_may_itself_be_a_list() -> None:
    double = headway.batched(FakeModel())
    assert await double([1, 2]) == [1, 2, 1, 2]
    assert await double.many([[1], [2, 3]]) == [[1, 1], [2, 3, 2, 3]]


async def test_many_takes_ten_thousand_values() -> None:
    double = headway.batched(FakeModel(cost_s=0.001))
    assert await double.many(range(10_000)) == [2 * n for n in range(10_000)]


async def test_after_close_it_says_closed() -> None:
    double = headway.batched(FakeModel())
    assert await double(1) == 2
    await double.close()
    with pytest.raises(headway.Closed):
        await double(1)


async def test_an_async_callable_object_is_recognised() -> None:
    model = FakeModel(cost_s=0.010)
    assert await headway.batched(model)(1) == 2
    assert now() == pytest.approx(0.010)


# ---- methods


class Scaler:
    def __init__(self, factor: int) -> None:
        self.factor = factor
        self.batches: list[list[int]] = []

    @headway.batched
    async def scale(self, values: list[int]) -> list[int]:
        self.batches.append(values)
        await asyncio.sleep(0.010)
        return [value * self.factor for value in values]

    @headway.batched(max_batch_size=2, name="another name")
    async def shift(self, values: list[int]) -> list[int]:
        self.batches.append(values)
        return [value + self.factor for value in values]


async def test_a_decorated_method_batches_for_each_instance_by_itself() -> None:
    triple, tenfold = Scaler(3), Scaler(10)
    results = await asyncio.gather(
        *(triple.scale(n) for n in range(3)), *(tenfold.scale(n) for n in range(3))
    )
    assert results == [0, 3, 6, 0, 10, 20]
    assert triple.batches == [[0, 1, 2]]
    assert tenfold.batches == [[0, 1, 2]]
    assert now() == pytest.approx(0.010)


async def test_a_decorated_method_is_made_once_for_each_instance() -> None:
    one = Scaler(1)
    assert one.scale is one.scale
    assert one.shift is one.shift
    assert one.scale is not Scaler(1).scale
    assert Scaler.scale is Scaler.scale


async def test_a_decorated_method_keeps_its_options_and_its_given_name() -> None:
    one = Scaler(1)
    assert one.shift.batcher.name == "another name"
    assert await one.shift.many(range(5)) == [1, 2, 3, 4, 5]
    assert max(map(len, one.batches)) == 2


def test_a_second_name_for_a_decorated_method_is_refused() -> None:
    with pytest.raises(
        (RuntimeError, TypeError)
    ) as raised:  # before 3.12 Python's own, around ours
        type("Aliased", (Scaler,), {"multiply": Scaler.scale})
    said = raised.value.__cause__ or raised.value
    assert "scale is batched and cannot be called multiply as well" in str(said)


async def test_a_subclass_may_override_a_decorated_method() -> None:
    class Negative(Scaler):
        @headway.batched
        async def scale(self, values: list[int]) -> list[int]:
            return [-value for value in values]

    assert await Negative(3).scale(2) == -2


async def test_an_instance_without_a_dict_says_what_is_missing() -> None:
    class Slotted:
        __slots__ = ()

        @headway.batched
        async def echo(self, values: list[int]) -> list[int]:
            return values

    with pytest.raises(TypeError, match="__dict__"):
        await Slotted().echo(1)


async def test_an_instance_that_is_gone_is_not_kept_by_its_decorated_method() -> None:
    class Tracked(Scaler):
        pass

    one = Tracked(2)
    assert await one.scale(1) == 2
    await one.scale.close()
    del one
    await asyncio.sleep(1.0)
    gc.collect()
    assert not [each for each in gc.get_objects() if isinstance(each, Tracked)]


async def test_decorated_functions_report_to_observers() -> None:
    recorder = Recorder()
    double = headway.batched(observers=[recorder])(FakeModel())
    await double(1)
    assert len(recorder.batches) == 1


# ---- threads


@pytest.mark.real_time
async def test_a_plain_function_runs_in_a_worker_thread() -> None:
    @headway.batched
    def where(values: list[int]) -> list[str]:
        return [threading.current_thread().name for _ in values]

    assert await where(1) == "headway-where-0"
    await where.close()


def threads_of(name: str) -> list[threading.Thread]:
    return [each for each in threading.enumerate() if name in each.name]


def test_the_threads_of_an_instance_end_with_it() -> None:
    class Brief:
        @headway.batched(name="brief", workers=2, prepare=lambda value: value)
        def echo(self, values: list[int]) -> list[int]:
            return values

        @headway.batched(name="brief-async")
        async def later(self, values: list[int]) -> list[int]:
            return values

    async def use() -> None:
        one = Brief()
        assert await one.echo(1) == 1
        assert await one.later(1) == 1

    for _ in range(5):
        one = Brief()
        assert (one.echo.call(1), one.later.call(1)) == (1, 1)
        asyncio.run(use())
    assert threads_of("brief"), "the last instance is alive"
    del one
    for _ in range(2000):  # a thread that winds up its last job keeps it for a moment
        gc.collect()
        if not threads_of("brief"):
            break
        for thread in threads_of("brief"):
            thread.join(0.01)
    assert threads_of("brief") == []


def test_an_instance_that_is_gone_still_answers_those_who_wait() -> None:
    started, let_go = threading.Event(), threading.Event()

    class Slow:
        @headway.batched(name="still-answers", max_batch_size=1)
        def echo(self, values: list[int]) -> list[int]:
            started.set()
            assert let_go.wait(10)
            return values

    answers: list[int] = []

    def ask(value: int, method: Any) -> None:
        answers.append(method.call(value))

    def start_callers(method: Any) -> list[threading.Thread]:
        callers = [threading.Thread(target=ask, args=(n, method)) for n in range(3)]
        for caller in callers:
            caller.start()
        return callers

    callers = start_callers(Slow().echo)
    assert started.wait(10)
    gc.collect()
    let_go.set()
    for caller in callers:
        caller.join(10)
    assert sorted(answers) == [0, 1, 2]


@pytest.mark.real_time
async def test_two_threads_that_touch_a_method_first_share_one_batcher() -> None:
    class Plain:
        @headway.batched
        def echo(self, values: list[int]) -> list[int]:
            return values

    for _ in range(50):
        one, start = Plain(), threading.Barrier(2)

        def touch(one: Any = one, start: threading.Barrier = start) -> object:
            start.wait(10)
            return one.echo

        first, second = await asyncio.gather(asyncio.to_thread(touch), asyncio.to_thread(touch))
        assert first is second


def test_an_option_that_does_not_exist_is_told_where_it_is_typed() -> None:
    with pytest.raises(TypeError, match=r"no option 'max_batch'; did you mean max_batch_size\?"):
        headway.batched(max_batch=3)
    with pytest.raises(TypeError, match=r"no option 'worker_count'"):
        headway.Batcher(len, worker_count=3)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("batch_size", r"max_batch_size"),
        *(
            (name, r"max_wait_ms \(in milliseconds\)")
            for name in ("batch_timeout", "batch_wait_timeout_s", "max_latency_ms", "timeout_ms")
        ),
        ("timeout", r"deadline_ms of a call \(in milliseconds\)"),
    ],
)
def test_a_name_of_another_library_leads_to_what_does_the_same(name: str, meant: str) -> None:
    with pytest.raises(TypeError, match=rf"no option '{name}'; did you mean {meant}"):
        headway.batched(**{name: 3})  # type: ignore[call-overload]


def test_a_number_without_its_name_is_told_how_to_write_it() -> None:
    with pytest.raises(ConfigError, match=r"@headway\.batched\(max_batch_size=8\)"):
        headway.batched(8)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "options",
    [
        *({name: 8} for name in ("batch_sizes", "pad_sizes", "buckets", "tenants", "pin")),
        {"observers": 8},
        {"batch_sizes": "8"},
        *(
            {name: bad}
            for name in ("max_wait_ms", "slo_ms", "execute_timeout_ms")
            for bad in (True, -1, "5", 10**400)
        ),
        {"execute_timeout_ms": math.nan},
        *({"max_reruns": bad} for bad in (True, 2.5, "x", -(10**5000))),
        {"max_batch_size": sys.maxsize},
    ],
    ids=lambda options: "".join(options),
)
def test_an_option_of_the_wrong_kind_is_refused_by_name(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"^{name}: (must be|is a whole number)"):
        headway.Batcher(len, **options)


async def test_several_values_may_come_from_any_iterable() -> None:
    @headway.batched
    def double(values: list[int]) -> list[int]:
        return [2 * value for value in values]

    assert await double.many(n for n in range(3)) == [0, 2, 4]
    assert await double.many({5: "a"}.keys()) == [10]
    with pytest.raises(InvalidInput, match="takes the values of several calls, not int"):
        await double.many(3)  # type: ignore[arg-type]


async def test_true_is_no_deadline() -> None:
    @headway.batched
    def echo(values: list[int]) -> list[int]:
        return values

    for asking in (echo(1, deadline_ms=True), echo.many([1], deadline_ms=True)):
        with pytest.raises(InvalidInput, match="deadline_ms is not a number, but bool"):
            await asking


def test_a_number_in_place_of_the_function_is_answered_with_the_option_that_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"by name: @headway\.batched\(max_batch_size=32\)"):
        headway.batched(32)  # type: ignore[call-overload]


def test_a_number_of_reruns_that_is_none_is_told_as_such() -> None:
    with pytest.raises(ConfigError, match=r"max_reruns: must be a whole number, not 2\.5"):
        headway.Batcher(len, max_reruns=2.5)  # type: ignore[arg-type]


def test_a_cost_beyond_every_float_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^max_batch_cost: must be at most 9007199254740992$"):
        headway.Batcher(FakeModel(), max_batch_cost=10**400, size=len)


# ---- functions that no call could reach


def test_a_function_that_is_batched_already_is_not_batched_again() -> None:
    @headway.batched
    def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    again: Any
    for again in (headway.Batcher, headway.batched):
        with pytest.raises(ConfigError, match="double is batched already"):
            again(double)


async def test_a_keyword_that_no_caller_can_give_is_refused_by_name() -> None:
    def scaled(numbers: list[int], *, k: int) -> list[int]:
        return [k * number for number in numbers]

    function: Any = scaled
    with pytest.raises(ConfigError, match="scaled cannot be called without 'k'"):
        async with headway.Batcher(function):
            pass
