"""`Batcher` on the virtual clock: who runs with whom, and at which exact time."""

import asyncio
import gc
import threading
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy
import pytest

import headway
from headway import Batcher, CostTable, DeadlineExceeded, QueueFull, Shed
from headway.events import Refused
from headway.testing import FakeModel, GatedModel, Recorder, now

TEN_MS_EACH = CostTable(rows=(1,), sizes=None, seconds=((0.010,),))
TEN_MS_FLAT = CostTable(rows=(1, 64), sizes=None, seconds=((0.010,), (0.010,)))


async def later(seconds: float, value: Any, batcher: Batcher[Any, Any], **options: Any) -> Any:
    await asyncio.sleep(seconds)
    return await batcher.submit(value, **options)


async def timed(batcher: Batcher[Any, Any], value: Any, **options: Any) -> tuple[Any, float]:
    return await batcher.submit(value, **options), now()


def at(seconds: float) -> Any:
    return pytest.approx(seconds, abs=1e-6)


# ---- window


async def test_under_window_a_lone_call_waits_its_window_then_runs() -> None:
    async with Batcher(FakeModel(cost_s=0.010), policy="window", max_wait_ms=5) as batcher:
        assert await timed(batcher, 21) == (42, at(0.015))


async def test_under_window_a_full_batch_leaves_at_once() -> None:
    model = FakeModel(cost_s=0.010)
    async with Batcher(model, policy="window", max_wait_ms=5, max_batch_size=4) as batcher:
        answers = await asyncio.gather(*(timed(batcher, n) for n in range(4)))
    assert answers == [(2 * n, at(0.010)) for n in range(4)]
    assert model.batches == [[0, 1, 2, 3]]


async def test_under_window_the_window_starts_with_the_first_arrival() -> None:
    model = FakeModel(cost_s=0.010)
    async with Batcher(model, policy="window", max_wait_ms=5) as batcher:
        await asyncio.gather(*(later(n / 1e3, n, batcher) for n in range(8)))
    assert model.batches == [[0, 1, 2, 3, 4, 5], [6, 7]] or model.batches == [
        [0, 1, 2, 3, 4],
        [5, 6, 7],
    ]
    assert now() == at(0.025)


async def test_under_window_leftovers_wait_from_the_oldest_of_them() -> None:
    model = FakeModel(cost_s=0.010)
    async with Batcher(model, policy="window", max_wait_ms=5, max_batch_size=4) as batcher:
        answers = await asyncio.gather(*(timed(batcher, n) for n in range(6)))
    # their window ended while the only worker was busy: they leave as soon as it is free
    assert [when for _, when in answers] == [at(0.010)] * 4 + [at(0.020)] * 2
    assert model.batches == [[0, 1, 2, 3], [4, 5]]


async def test_under_window_a_cancelled_oldest_hands_its_place_to_the_next_oldest() -> None:
    async with Batcher(FakeModel(cost_s=0.010), policy="window", max_wait_ms=5) as batcher:
        oldest = asyncio.create_task(batcher.submit(1))
        second = asyncio.create_task(later(0.003, 2, batcher))
        await asyncio.sleep(0.004)
        oldest.cancel()
        assert await second == 4
        assert now() == at(0.018)


async def test_under_window_a_busy_worker_lets_the_batch_grow() -> None:
    model = FakeModel(cost_s=0.010)
    async with Batcher(model, policy="window", max_wait_ms=1, max_batch_size=8) as batcher:
        await asyncio.gather(*(later(n / 1e3, n, batcher) for n in (0, 3, 6, 9)))
    assert model.batches == [[0], [3, 6, 9]]
    assert now() == at(0.021)


async def test_under_window_every_partition_has_its_own_window() -> None:
    model = FakeModel(cost_s=0.010)
    async with Batcher(model, policy="window", max_wait_ms=5, workers=2) as batcher:
        first = asyncio.create_task(timed(batcher, 1, partition="a"))
        await asyncio.sleep(0.003)
        second = asyncio.create_task(timed(batcher, 2, partition="b"))
        assert await first == (2, at(0.015))
        assert await second == (4, at(0.018))
    assert model.batches == [[1], [2]]


# ---- static


async def test_under_static_only_a_full_batch_leaves() -> None:
    model = FakeModel(cost_s=0.010)
    async with Batcher(model, policy="static", max_batch_size=3) as batcher:
        calls = [asyncio.create_task(timed(batcher, n)) for n in range(2)]
        await asyncio.sleep(1.0)
        assert model.batches == []
        calls.append(asyncio.create_task(timed(batcher, 2)))
        assert await asyncio.gather(*calls) == [(2 * n, at(1.010)) for n in range(3)]


async def test_under_static_a_rest_leaves_on_close() -> None:
    model = FakeModel(cost_s=0.010)
    async with Batcher(model, policy="static", max_batch_size=3) as batcher:
        rest = asyncio.create_task(timed(batcher, 1))
        await asyncio.sleep(1.0)
    assert await rest == (2, at(1.010))


async def test_under_static_a_rest_leaves_just_in_time_for_a_deadline() -> None:
    async with Batcher(
        FakeModel(cost_s=0.010), policy="static", max_batch_size=3, costs=TEN_MS_EACH
    ) as batcher:
        answer, when = await timed(batcher, 1, deadline_ms=100)
        assert answer == 2
        assert 0.050 < when <= 0.100 + 1e-6


# ---- auto


async def test_under_auto_a_lone_call_runs_at_once() -> None:
    async with Batcher(FakeModel(cost_s=0.010)) as batcher:
        assert await timed(batcher, 21) == (42, at(0.010))


async def test_under_auto_whoever_comes_while_the_worker_is_busy_leaves_together() -> None:
    model = FakeModel(cost_s=0.010)
    async with Batcher(model) as batcher:
        await asyncio.gather(*(later(n / 1e3, n, batcher) for n in range(5)))
    assert model.batches == [[0], [1, 2, 3, 4]]
    assert now() == at(0.020)


async def test_calls_made_in_one_turn_of_the_loop_share_a_batch() -> None:
    model = FakeModel(cost_s=0.010)
    async with Batcher(model, policy="idle") as batcher:
        answers = await asyncio.gather(*(timed(batcher, n) for n in range(64)))
    assert answers == [(2 * n, at(0.010)) for n in range(64)]
    assert len(model.batches) == 1


async def test_a_wait_of_zero_is_plain_fire_when_idle() -> None:
    recorder = Recorder()
    async with Batcher(FakeModel(cost_s=0.010), max_wait_ms=0, observers=[recorder]) as batcher:
        for n in range(40):
            await timed(batcher, n)
    assert now() == at(0.400)
    assert {batch.reason for batch in recorder.batches} == {"idle"}


async def test_no_batch_is_larger_than_allowed() -> None:
    model = FakeModel()
    async with Batcher(model, max_batch_size=7) as batcher:
        await asyncio.gather(*(batcher.submit(n) for n in range(50)))
    assert max(map(len, model.batches)) == 7
    assert sorted(chain.from_iterable(model.batches)) == list(range(50))


async def test_the_budget_bounds_rows_times_the_largest_size() -> None:
    model = FakeModel()
    async with Batcher(model, max_batch_cost=100, size=lambda value: value) as batcher:
        await asyncio.gather(*(batcher.submit(value) for value in (50, 50, 60, 10, 10)))
    assert [len(batch) * max(batch) for batch in model.batches if len(batch) > 1] != []
    assert all(len(batch) * max(batch) <= 100 for batch in model.batches)


async def test_workers_run_side_by_side_and_never_more_than_there_are() -> None:
    model = FakeModel(cost_s=0.010)
    async with Batcher(model, workers=3, max_batch_size=2) as batcher:
        await asyncio.gather(*(batcher.submit(n) for n in range(24)))
    assert model.most_running == 3
    assert now() == at(0.040)


# ---- who goes first, and with whom


async def test_high_priority_overtakes_a_queue_of_normal_ones() -> None:
    model = FakeModel(cost_s=0.010)
    async with Batcher(model, max_batch_size=4) as batcher:
        crowd = [asyncio.create_task(batcher.submit(n)) for n in range(100)]
        await asyncio.sleep(0.001)
        assert await timed(batcher, 1000, priority="high") == (2000, at(0.020))
        await asyncio.gather(*crowd)


async def test_low_priority_fills_the_room_that_is_left() -> None:
    model = FakeModel(cost_s=0.010)
    async with Batcher(model, max_batch_size=4) as batcher:
        first = asyncio.create_task(batcher.submit(0))
        await asyncio.sleep(0.001)
        low = [asyncio.create_task(batcher.submit(n, priority="low")) for n in (1, 2)]
        normal = [asyncio.create_task(batcher.submit(n)) for n in (3, 4, 5)]
        await asyncio.gather(first, *low, *normal)
    assert [sorted(batch) for batch in model.batches] == [[0], [1, 3, 4, 5], [2]]


async def test_different_partitions_never_share_a_batch() -> None:
    model = FakeModel()
    async with Batcher(model) as batcher:
        await asyncio.gather(*(batcher.submit(n, partition=n % 3) for n in range(30)))
    assert all(len({n % 3 for n in batch}) == 1 for batch in model.batches)


@pytest.mark.parametrize(
    "partition", [(), ("stream",), ("stream", None), "stream", frozenset({1}), 0, ((), ())]
)
async def test_any_hashable_will_do_as_a_partition(partition: Any) -> None:
    async with Batcher(FakeModel()) as batcher:
        assert await batcher.submit(1, partition=partition) == 2


async def test_tenants_share_by_weight() -> None:
    model = FakeModel(cost_s=0.010)
    async with Batcher(model, max_batch_size=4, tenants={"a": 3, "b": 1}) as batcher:
        first = asyncio.create_task(batcher.submit("_"))
        await asyncio.sleep(0)
        crowd = [batcher.submit("a", tenant="a") for _ in range(12)]
        crowd += [batcher.submit("b", tenant="b") for _ in range(12)]
        await asyncio.gather(first, *crowd)
    assert Counter(chain.from_iterable(model.batches[1:4]))["a"] == 9


async def test_weights_change_while_it_runs() -> None:
    model = FakeModel(cost_s=0.010)
    async with Batcher(model, max_batch_size=4, tenants={"a": 1}) as batcher:
        batcher.weigh({"a": 3})
        assert batcher.policy.tenant_weights == {"a": 3}
        first = asyncio.create_task(batcher.submit("_"))
        await asyncio.sleep(0)
        crowd = [batcher.submit("a", tenant="a") for _ in range(12)]
        crowd += [batcher.submit("b", tenant="b") for _ in range(12)]
        await asyncio.gather(first, *crowd)
    assert Counter(chain.from_iterable(model.batches[1:4]))["a"] == 9


async def test_a_weight_that_is_none_changes_nothing() -> None:
    async with Batcher(FakeModel(), tenants={"a": 2}) as batcher:
        with pytest.raises(headway.ConfigError, match="tenants"):
            batcher.weigh({"a": 0})
        assert batcher.policy.tenant_weights == {"a": 2}


# ---- refusals


async def test_a_call_whose_deadline_passes_in_the_queue_never_runs() -> None:
    model = FakeModel(cost_s=0.050)
    async with Batcher(model) as batcher:
        running = asyncio.create_task(batcher.submit(1))
        await asyncio.sleep(0.001)
        with pytest.raises(DeadlineExceeded):
            await batcher.submit(2, deadline_ms=20)
        assert now() == at(0.021)
        assert await running == 2
    assert model.batches == [[1]]


@pytest.mark.parametrize("deadline_ms", [0, -1, -1e9])
async def test_a_deadline_in_the_past_is_refused_at_once(deadline_ms: float) -> None:
    model = FakeModel()
    async with Batcher(model) as batcher:
        with pytest.raises(DeadlineExceeded):
            await batcher.submit(1, deadline_ms=deadline_ms)
    assert model.batches == []


@pytest.mark.parametrize("deadline", [float("nan"), "9", 10**400, Decimal(9)], ids=type)
async def test_a_deadline_that_is_no_number_hurts_only_its_caller(deadline: Any) -> None:
    model = FakeModel(cost_s=1.0)
    async with Batcher(model) as batcher:
        running = asyncio.create_task(batcher.submit(1))
        await asyncio.sleep(0.001)
        with pytest.raises(headway.InvalidInput, match="deadline_ms"):
            await batcher.submit(2, deadline_ms=deadline)
        with pytest.raises(DeadlineExceeded):
            await batcher.submit(3, deadline_ms=10)
        assert now() == at(0.011)
        assert await running == 2


async def test_an_answer_that_comes_before_its_deadline_is_kept() -> None:
    async with Batcher(FakeModel(cost_s=0.010)) as batcher:
        assert await timed(batcher, 1, deadline_ms=11) == (2, at(0.010))


async def test_a_full_queue_refuses_at_once_and_names_its_limit() -> None:
    model = GatedModel()
    async with Batcher(model, max_queue=3, max_batch_size=1) as batcher:
        calls = [asyncio.create_task(batcher.submit(0))]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        calls += [asyncio.create_task(batcher.submit(n)) for n in (1, 2, 3)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull) as refused:
            await batcher.submit(4)
        assert refused.value.limit == 3
        assert now() == 0.0
        model.open()
        assert await asyncio.gather(*calls) == [0, 1, 2, 3]


async def test_high_priority_pushes_the_newest_low_one_out_of_a_full_queue() -> None:
    model = GatedModel()
    async with Batcher(model, max_queue=2, max_batch_size=1) as batcher:
        running = asyncio.create_task(batcher.submit(0))
        await asyncio.sleep(0.001)
        old = asyncio.create_task(batcher.submit(1, priority="low"))
        new = asyncio.create_task(batcher.submit(2, priority="low"))
        await asyncio.sleep(0.001)
        high = asyncio.create_task(batcher.submit(3, priority="high"))
        with pytest.raises(QueueFull):
            await new
        model.open()
        assert await asyncio.gather(running, old, high) == [0, 1, 3]


async def test_a_call_that_would_miss_the_slo_is_shed_with_a_time_to_come_back() -> None:
    async with Batcher(
        FakeModel(cost_s=0.010), slo_ms=20, max_batch_size=1, costs=TEN_MS_EACH
    ) as batcher:
        results = await asyncio.gather(
            *(timed(batcher, n) for n in range(3)), return_exceptions=True
        )
        assert results[:2] == [(0, at(0.010)), (2, at(0.020))]
        assert isinstance(results[2], Shed)
        assert results[2].retry_after_s == at(0.020)


async def test_a_cold_model_serves_instead_of_shedding() -> None:
    async with Batcher(FakeModel(cost_s=0.010), slo_ms=1, max_batch_size=1) as batcher:
        assert await asyncio.gather(*(batcher.submit(n) for n in range(3))) == [0, 2, 4]


async def test_an_unknown_priority_is_the_callers_mistake() -> None:
    async with Batcher(FakeModel()) as batcher:
        with pytest.raises(headway.InvalidInput, match=r"'urgent'.*'high', 'normal', 'low'"):
            await batcher.submit(1, priority="urgent")  # type: ignore[arg-type]


# ---- leaving early


async def test_a_caller_cancelled_in_the_queue_never_runs() -> None:
    model = FakeModel(cost_s=0.010)
    async with Batcher(model) as batcher:
        running = asyncio.create_task(batcher.submit(1))
        await asyncio.sleep(0.001)
        leaving = asyncio.create_task(batcher.submit(2))
        staying = asyncio.create_task(batcher.submit(3))
        await asyncio.sleep(0.001)
        leaving.cancel()
        assert await asyncio.gather(running, staying) == [2, 6]
    assert leaving.cancelled()
    assert model.batches == [[1], [3]]


async def test_a_caller_cancelled_mid_batch_does_not_hurt_its_neighbours() -> None:
    model = FakeModel(cost_s=0.010)
    async with Batcher(model) as batcher:
        calls = [asyncio.create_task(batcher.submit(n)) for n in range(3)]
        await asyncio.sleep(0.005)
        calls[1].cancel()
        assert await asyncio.gather(calls[0], calls[2]) == [0, 4]
        assert now() == at(0.010)
    assert calls[1].cancelled()
    assert model.batches == [[0, 1, 2]]


async def test_a_timeout_around_a_call_ends_it_at_the_exact_time() -> None:
    model = FakeModel(cost_s=0.010)
    async with Batcher(model) as batcher:
        neighbour = asyncio.create_task(batcher.submit(1))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.004):
                await batcher.submit(2)
        assert now() == at(0.004)
        assert await neighbour == 2
        assert batcher.statistics().queued_items == 0


async def test_when_everybody_leaves_the_next_call_finds_a_working_batcher() -> None:
    async with Batcher(FakeModel(cost_s=0.010), max_batch_size=2) as batcher:
        calls = [asyncio.create_task(batcher.submit(n)) for n in range(20)]
        await asyncio.sleep(0.005)
        for call in calls:
            call.cancel()
        assert await batcher.submit(7) == 14


# ---- many


async def test_many_answers_in_order() -> None:
    async with Batcher(FakeModel(), max_batch_size=3) as batcher:
        assert await batcher.many(range(10)) == [2 * n for n in range(10)]
        assert await batcher.many([]) == []


async def test_many_takes_ten_thousand_values_with_a_queue_of_4096() -> None:
    async with Batcher(FakeModel(cost_s=0.001), max_queue=4096) as batcher:
        assert await batcher.many(range(10_000)) == [2 * n for n in range(10_000)]


async def test_many_takes_more_values_than_the_queue_holds() -> None:
    async with Batcher(FakeModel(), max_queue=2) as batcher:
        assert await batcher.many(range(50)) == [2 * n for n in range(50)]


async def test_an_item_of_many_may_itself_be_a_list() -> None:
    async with Batcher(FakeModel()) as batcher:
        assert await batcher.submit([1]) == [1, 1]
        assert await batcher.many([[1], [], [2, 3]]) == [[1, 1], [], [2, 3, 2, 3]]


async def test_one_error_withdraws_the_rest_of_many_and_is_raised_with_its_cause() -> None:
    model = FakeModel(poison=lambda value: value == 5)
    async with Batcher(model, max_batch_size=1) as batcher:
        with pytest.raises(headway.ModelFailed) as failed:
            await batcher.many(range(1000))
        assert isinstance(failed.value.__cause__, ValueError)
        assert batcher.statistics().queued_items == 0
    assert len(model.batches) < 10


async def test_cancelling_many_withdraws_all_of_it() -> None:
    model = FakeModel(cost_s=0.010)
    async with Batcher(model, max_batch_size=2) as batcher:
        task = asyncio.create_task(batcher.many(range(100)))
        await asyncio.sleep(0.015)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert batcher.statistics().queued_items == 0
    assert len(model.batches) == 2


# ---- use and misuse


async def test_use_before_it_is_opened_says_how_to_open_it() -> None:
    batcher = Batcher(FakeModel())
    with pytest.raises(headway.Closed, match="async with"):
        await batcher.submit(1)
    with pytest.raises(headway.Closed, match="async with"):
        batcher.call(1)
    with pytest.raises(headway.Closed, match="async with"):
        await batcher.warm_up(1)


async def test_call_in_the_batchers_own_loop_is_an_error_that_says_what_to_do() -> None:
    async with Batcher(FakeModel()) as batcher:
        with pytest.raises(RuntimeError, match="await"):
            batcher.call(1)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_batch_size": 0}, "max_batch_size"),
        ({"workers": 0}, "workers"),
        ({"max_queue": 0}, "max_queue"),
        ({"max_reruns": -1}, "max_reruns"),
        ({"policy": "soon"}, "policy"),
        ({"order": "random"}, "order"),
        ({"policy": "window"}, "max_wait_ms"),
        ({"slo_ms": 0}, "slo_ms"),
        ({"slo_percentile": 100}, "slo_percentile"),
        ({"tenants": {"a": 0}}, "tenants"),
        ({"batch_sizes": [4, 2]}, "batch_sizes"),
        ({"policy": "idle", "max_wait_ms": 5}, "max_wait_ms"),
        ({"policy": "window", "max_wait_ms": 5, "slo_ms": 50}, "slo_ms"),
        ({"policy": "static", "slo_ms": 50}, "slo_ms"),
        ({"max_batch_cost": 10}, "max_batch_cost"),
        ({"max_wait_ms": "5"}, "max_wait_ms"),
        ({"slo_ms": "50"}, "slo_ms"),
    ],
)
def test_a_wrong_setting_fails_at_once_and_is_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(headway.ConfigError, match=f"^{field}"):
        Batcher(FakeModel(), **options)


def test_an_unknown_policy_is_answered_with_all_that_there_are() -> None:
    with pytest.raises(headway.ConfigError) as refused:
        Batcher(FakeModel(), policy="soon")  # type: ignore[arg-type]
    assert str(refused.value) == ("policy: 'soon' is not one of 'auto', 'idle', 'window', 'static'")


def test_settings_that_go_together_are_taken() -> None:
    class Sized(headway.Model[str, int]):
        def size(self, item: str) -> int:
            return len(item)

    Batcher(FakeModel(), policy="idle", max_wait_ms=0)
    Batcher(FakeModel(), policy="idle", slo_ms=50)
    Batcher(FakeModel(), max_batch_cost=10, size=len)
    Batcher(Sized(), max_batch_cost=10)
    Batcher(headway.TensorModel(), max_batch_cost=10)


class Incomparable:
    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> Any:
        return numpy.zeros(2) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tenant": {"a": 1}}, "tenant must be a string"),
        ({"tenant": None}, "tenant must be a string"),
        ({"partition": ["en"]}, "partition must be hashable"),
        ({"partition": numpy.zeros(2)}, "partition must be hashable"),
        ({"partition": ("en", {})}, "partition must be hashable"),
        ({"partition": Incomparable()}, "partition must be comparable with any value"),
        ({"priority": ["high"]}, "priority"),
    ],
)
async def test_what_cannot_be_sorted_by_is_refused_and_hurts_nobody(
    options: dict[str, Any], says: str
) -> None:
    class Both(headway.Model[int, int]):
        def predict(self, items: list[int]) -> list[int]:
            return items

        def stream(self, items: list[int]) -> Iterator[list[int]]:
            yield items

    recorder = Recorder()
    async with Batcher(Both(), observers=[recorder]) as batcher:
        neighbour = asyncio.create_task(batcher.submit(1))
        with pytest.raises(headway.InvalidInput, match=says):
            await batcher.submit(2, **options)
        with pytest.raises(headway.InvalidInput, match=says):
            await anext(batcher.stream(2, **options))
        assert await neighbour == 1
        assert await batcher.submit(3) == 3
        assert batcher.statistics().queued_items == 0
    refusals = [event.reason for event in recorder.events if isinstance(event, Refused)]
    assert refusals == ["invalid_input", "invalid_input"]


def test_something_that_is_no_model_is_refused() -> None:
    with pytest.raises(headway.ConfigError, match="neither a function nor"):
        Batcher(42)  # type: ignore[arg-type]


async def test_statistics_tell_what_waits_and_what_runs() -> None:
    model = GatedModel()
    async with Batcher(model, max_batch_size=2) as batcher:
        assert batcher.statistics().is_open
        calls = [asyncio.create_task(batcher.submit(n)) for n in range(5)]
        await asyncio.sleep(0.5)
        seen = batcher.statistics()
        assert (seen.queued_items, seen.queued_rows, seen.running_batches) == (3, 3, 1)
        assert seen.oldest_batch_s == at(0.5)
        assert seen.crashed is None
        model.open()
        await asyncio.gather(*calls)
    seen = batcher.statistics()
    assert (seen.is_open, seen.queued_items, seen.running_batches) == (False, 0, 0)


async def test_fixed_batch_sizes_pad_with_rows_that_are_dropped_again() -> None:
    model = FakeModel()
    recorder = Recorder()
    async with Batcher(
        model, max_batch_size=8, batch_sizes=[4, 8], observers=[recorder]
    ) as batcher:
        assert await batcher.many([1, 2, 3]) == [2, 4, 6]
        assert await batcher.many(range(6)) == [0, 2, 4, 6, 8, 10]
    assert [len(batch) for batch in model.batches] == [4, 8]
    assert [batch.batch.rows for batch in recorder.batches] == [3, 6]


# ---- threads, on the real clock


@pytest.mark.real_time
async def test_a_plain_function_runs_in_a_worker_thread() -> None:
    def where(values: list[int]) -> list[str]:
        return [threading.current_thread().name for _ in values]

    async with Batcher(where, name="predict") as batcher:
        assert await batcher.submit(1) == "headway-predict-0"


@pytest.mark.real_time
async def test_an_async_function_runs_in_the_event_loop() -> None:
    async def where(values: list[int]) -> list[threading.Thread]:
        return [threading.current_thread() for _ in values]

    async with Batcher(where) as batcher:
        assert await batcher.submit(1) is threading.current_thread()


@pytest.mark.real_time
async def test_n_workers_really_run_n_at_once_and_never_more() -> None:
    everybody_is_here = threading.Barrier(3)
    running, most, lock = 0, 0, threading.Lock()

    def meet(values: list[int]) -> list[int]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        everybody_is_here.wait(10)  # breaks unless three run at once
        with lock:
            running -= 1
        return values

    async with Batcher(meet, workers=3, max_batch_size=1) as batcher:
        values = list(range(30))
        assert await asyncio.gather(*(batcher.submit(n) for n in values)) == values
    assert most == 3


@pytest.mark.real_time
async def test_worker_threads_end_when_the_batcher_closes() -> None:
    async with Batcher(lambda values: values, workers=2, name="ending") as batcher:
        await batcher.submit(1)
        threads = [t for t in threading.enumerate() if t.name.startswith("headway-ending")]
        assert len(threads) == 2
    for thread in threads:
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()


@pytest.mark.real_time
async def test_a_finished_batchs_values_are_not_kept_alive() -> None:
    class Value:
        pass

    def none_left() -> bool:
        return not any(isinstance(each, Value) for each in gc.get_objects())

    async with Batcher(lambda values: [1 for _ in values]) as batcher:
        await batcher.submit(Value())
        await batcher.submit(0)
        gc.collect()
        assert none_left()
