"""Models over named arrays: rows are concatenated, run, and split back; nothing is mixed up."""

import asyncio
from typing import Any

import numpy
import pytest

from headway import (
    Batcher,
    InvalidInput,
    ModelFailed,
    QueueFull,
    Tensor,
    TensorModel,
)
from headway.testing import Recorder, now

Arrays = dict[str, Any]


class Double(TensorModel):
    """Doubles `x`; rows that hold a negative number make the whole batch raise."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    async def predict(self, batch: Arrays) -> Arrays:  # type: ignore[override]
        self.batches.append(batch["x"].copy())
        await asyncio.sleep(0.010)
        if (batch["x"] < 0).any():
            raise ValueError("negative")
        return {"y": batch["x"] * 2}


def rows(*values: float, dtype: str = "float32") -> Arrays:
    return {"x": numpy.array(values, dtype=dtype)[:, None]}


def column(answer: Any) -> list[float]:
    assert list(answer) == ["y"]
    return [float(value) for value in answer["y"][:, 0]]


async def outcomes(batcher: Batcher[Any, Any], *values: Arrays) -> list[Any]:
    return await asyncio.gather(*(batcher.submit(v) for v in values), return_exceptions=True)


async def test_rows_of_several_requests_are_concatenated_and_split_back() -> None:
    model = Double()
    async with Batcher(model, dependent_rows="batch") as batcher:
        answers = await outcomes(batcher, rows(1, 2), rows(3), rows(4, 5, 6))
    assert [column(answer) for answer in answers] == [[2, 4], [6], [8, 10, 12]]
    assert [batch.shape for batch in model.batches] == [(6, 1)]


async def test_a_lone_request_is_not_copied_for_a_model_that_only_reads() -> None:
    seen: list[Any] = []

    class Look(TensorModel):
        writes_inputs = False

        def predict(self, batch: Arrays) -> Arrays:
            seen.append(batch["x"])
            return batch

    value = rows(1, 2)
    async with Batcher(Look()) as batcher:
        await batcher.submit(value)
    assert numpy.shares_memory(seen[0], value["x"])
    assert not seen[0].flags.writeable


@pytest.mark.parametrize("writes", [True, False])
async def test_what_a_model_may_write_into_is_writable_whoever_is_there(writes: bool) -> None:
    class Clip(TensorModel):
        writes_inputs = writes

        def predict(self, batch: Arrays) -> Arrays:
            batch["x"][batch["x"] < 0] = 0
            return {"y": batch["x"]}

    body = numpy.array([[-1.0], [2.0]], numpy.float32).tobytes()
    from_the_wire = {"x": numpy.frombuffer(body, numpy.float32).reshape(2, 1)}
    async with Batcher(Clip()) as batcher:
        (alone,) = await outcomes(batcher, from_the_wire)
        together = await outcomes(batcher, from_the_wire, from_the_wire)
    assert [column(answer) for answer in together] == [[0, 2]] * 2
    if writes:
        assert column(alone) == [0, 2]
    else:  # it broke its word; the caller's bytes are as they were
        assert isinstance(alone, ModelFailed)
    assert from_the_wire["x"].tolist() == [[-1], [2]]


async def test_rows_of_varying_shapes_cost_by_their_elements() -> None:
    class Look(TensorModel):
        def predict(self, batch: Arrays) -> Arrays:
            return batch

    class Fixed(Look):
        inputs = (Tensor("x", "float32", (-1, 3)),)

    value = {"x": numpy.ones((2, 3), numpy.float32)}
    async with Batcher(Look()) as varying, Batcher(Fixed()) as fixed:
        assert (await varying.explain(value)).explanation.batches[0].size == 3
        assert (await fixed.explain(value)).explanation.batches[0].size == 0


async def test_a_request_larger_than_a_batch_is_split_and_rejoined_in_order() -> None:
    model = Double()
    async with Batcher(model, max_batch_size=4) as batcher:
        answer = await batcher.submit(rows(*range(10)))
    assert column(answer) == [2 * n for n in range(10)]
    assert [len(batch) for batch in model.batches] == [4, 3, 3]
    assert now() == pytest.approx(0.030)


async def test_parts_run_side_by_side_where_there_are_workers_and_are_rejoined_in_order() -> None:
    class Uneven(TensorModel):
        async def predict(self, batch: Arrays) -> Arrays:  # type: ignore[override]
            await asyncio.sleep(1.0 / (1.0 + float(batch["x"][0, 0])))  # the first comes last
            return {"y": batch["x"] * 2}

    async with Batcher(Uneven(), max_batch_size=2, workers=4) as batcher:
        assert column(await batcher.submit(rows(*range(8)))) == [2 * n for n in range(8)]
    assert now() == pytest.approx(1.0)


async def test_parts_share_batches_with_neighbours() -> None:
    model = Double()
    async with Batcher(model, max_batch_size=4) as batcher:
        answers = await outcomes(batcher, rows(*range(6)), rows(100), rows(200))
    assert [column(answer) for answer in answers] == [[2 * n for n in range(6)], [200], [400]]
    assert all(len(batch) <= 4 for batch in model.batches)


async def test_one_failing_part_fails_its_request_once_and_the_rest_of_it_never_runs() -> None:
    model, recorder = Double(), Recorder()
    async with Batcher(model, max_batch_size=4, observers=[recorder]) as batcher:
        bad = asyncio.create_task(batcher.submit(rows(-1, *range(15))))
        await asyncio.sleep(0.001)
        good = asyncio.create_task(batcher.submit(rows(1)))
        with pytest.raises(ModelFailed, match="negative") as failed:
            await bad
        assert isinstance(failed.value.__cause__, ValueError)
        assert now() == pytest.approx(0.010)
        assert column(await good) == [2]
        assert batcher.statistics().queued_items == 0
    assert sum(len(batch) for batch in model.batches) <= 4 + 4 + 1


async def test_bisection_stops_at_request_boundaries() -> None:
    model, recorder = Double(), Recorder()
    async with Batcher(model, max_batch_size=16, observers=[recorder]) as batcher:
        answers = await outcomes(batcher, rows(1, 2, 3, 4), rows(5, -6, 7, 8), rows(9, 10))
    assert column(answers[0]) == [2, 4, 6, 8]
    assert isinstance(answers[1], ModelFailed)
    assert column(answers[2]) == [18, 20]
    # a request runs whole or not at all
    assert all(len(batch) in (2, 4, 6, 8, 10) for batch in model.batches)
    assert [batch.failed for batch in recorder.batches] == [1]


async def test_a_request_that_is_cancelled_takes_its_waiting_parts_along() -> None:
    model = Double()
    async with Batcher(model, max_batch_size=4) as batcher:
        task = asyncio.create_task(batcher.submit(rows(*range(40))))
        await asyncio.sleep(0.005)
        task.cancel()
        assert column(await batcher.submit(rows(1))) == [2]
    assert [len(batch) for batch in model.batches] == [4, 1]


async def test_a_request_larger_than_the_queue_is_served() -> None:
    async with Batcher(Double(), max_batch_size=4, max_queue=8) as batcher:
        for count in (8, 9, 100):
            assert column(await batcher.submit(rows(*range(count)))) == [
                2 * n for n in range(count)
            ]


async def test_a_request_of_one_batch_that_is_larger_than_the_queue_is_served() -> None:
    async with Batcher(Double(), max_batch_size=64, max_queue=1) as batcher:
        assert column(await batcher.submit(rows(1, 2, 3))) == [2, 4, 6]


async def test_many_large_requests_do_not_overflow_the_queue() -> None:
    async with Batcher(Double(), max_batch_size=4, max_queue=8) as batcher:
        answers = await batcher.many([rows(n, n, n) for n in range(20)])
    assert [column(answer) for answer in answers] == [[2 * n] * 3 for n in range(20)]


async def test_a_deadline_that_passes_for_one_part_ends_the_request_once() -> None:
    model = Double()
    async with Batcher(model, max_batch_size=2) as batcher:
        with pytest.raises(Exception, match="deadline"):
            await batcher.submit(rows(*range(20)), deadline_ms=25)
        assert now() == pytest.approx(0.025)
        assert column(await batcher.submit(rows(1))) == [2]
    assert len(model.batches) == 4


async def test_different_dtypes_and_trailing_shapes_never_share_a_batch() -> None:
    model = Double()
    wide = {"x": numpy.ones((1, 3), dtype="float32")}
    async with Batcher(model, dependent_rows="batch") as batcher:
        await outcomes(batcher, rows(1), rows(2, dtype="float64"), wide, rows(3), wide)
    shapes = sorted((batch.dtype.name, batch.shape) for batch in model.batches)
    assert shapes == [("float32", (2, 1)), ("float32", (2, 3)), ("float64", (1, 1))]


async def test_the_callers_partition_keeps_requests_apart_too() -> None:
    model = Double()
    async with Batcher(model) as batcher:
        await asyncio.gather(*(batcher.submit(rows(n), partition=n) for n in range(3)))
    assert len(model.batches) == 3


async def test_parts_whose_results_do_not_fit_together_hurt_only_their_request() -> None:
    class PadsToTheLongest(TensorModel):
        def predict(self, batch: Arrays) -> Arrays:
            width = int(batch["x"].max())
            return {"y": numpy.ones((len(batch["x"]), width))}

    async with Batcher(PadsToTheLongest(), max_batch_size=4) as batcher:
        unfit, neighbour = await outcomes(batcher, rows(1, 1, 1, 2, 2, 2), rows(2))
    assert isinstance(unfit, ModelFailed)
    assert neighbour["y"].shape == (1, 2)


# ---- mistakes


class Declared(TensorModel):
    inputs = (Tensor("ids", "int64", (-1, -1)), Tensor("scale", "float32", (-1, 2)))
    outputs = (Tensor("y", "float32", (-1, 2)),)

    def predict(self, batch: Arrays) -> Arrays:
        return {"y": batch["scale"]}


GOOD = {"ids": numpy.zeros((2, 5), "int64"), "scale": numpy.zeros((2, 2), "float32")}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ids": None}, r"'ids' is a NoneType, not an array"),
        (
            {"extra": GOOD["ids"]},
            r"takes inputs \['ids', 'scale'\], not \['extra', 'ids', 'scale'\]",
        ),
        ({"ids": GOOD["ids"].astype("int32")}, r"'ids' has dtype int32, not int64"),
        (
            {"ids": numpy.zeros((2,), "int64")},
            r"'ids' has shape \[2\]; \[-1, -1\] is expected: one row has the shape \[-1\]",
        ),
        ({"scale": numpy.zeros((2, 3), "float32")}, r"'scale' has shape \[2, 3\]; \[-1, 2\]"),
        ({"scale": numpy.zeros((3, 2), "float32")}, r"same number of rows.*\(3, 2\)"),
        ({name: array[:0] for name, array in GOOD.items()}, r"at least 1"),
        ({"ids": numpy.array(7)}, r"rows"),
    ],
)
async def test_a_wrong_input_is_refused_and_the_message_says_which(change: Any, says: str) -> None:
    async with Batcher(Declared()) as batcher:
        with pytest.raises(InvalidInput, match=says):
            await batcher.submit(GOOD | change)
        assert (await batcher.submit(GOOD))["y"].shape == (2, 2)


@pytest.mark.parametrize("value", [7, None, [1, 2], {}, numpy.zeros((2, 2))])
async def test_what_is_no_mapping_of_arrays_is_refused(value: Any) -> None:
    async with Batcher(Double()) as batcher:
        with pytest.raises(InvalidInput, match="named arrays"):
            await batcher.submit(value)


async def test_a_missing_input_is_named() -> None:
    async with Batcher(Declared()) as batcher:
        with pytest.raises(InvalidInput, match=r"not \['ids'\]"):
            await batcher.submit({"ids": GOOD["ids"]})


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (None, "NoneType"),
        ({}, "dict"),
        ([1, 2], "list"),
        ({"y": numpy.zeros((3, 2))}, r"'y' with shape \[3, 2\] for 2 rows"),
        ({"y": numpy.array(1.0)}, r"'y' with shape \[\] for 2 rows"),
        ({"y": [1.0, 2.0]}, r"'y'"),
        ({"z": numpy.zeros((2, 2))}, r"outputs \['z'\], not \['y'\]"),
    ],
)
async def test_a_wrong_output_is_the_models_fault_and_is_not_run_again(
    output: Any, says: str
) -> None:
    class Wrong(Declared):
        runs = 0

        def predict(self, batch: Arrays) -> Arrays:
            self.runs += 1
            return output  # type: ignore[no-any-return]

    model = Wrong()
    async with Batcher(model, dependent_rows="batch") as batcher:
        with pytest.raises(ModelFailed, match=says):
            await batcher.submit(GOOD)
    assert model.runs == 1


# ---- fixed batch sizes


async def test_fixed_batch_sizes_pad_with_rows_that_are_dropped_again() -> None:
    model = Double()
    async with Batcher(model, max_batch_size=8, batch_sizes=[2, 8]) as batcher:
        assert column(await batcher.submit(rows(1))) == [2]
        assert column(await batcher.submit(rows(1, 2, 3))) == [2, 4, 6]
        assert column(await batcher.submit(rows(*range(11)))) == [2 * n for n in range(11)]
    assert [len(batch) for batch in model.batches] == [2, 8, 8, 8]


async def test_reruns_of_a_fixed_size_are_padded_too() -> None:
    model = Double()
    async with Batcher(model, max_batch_size=8, batch_sizes=[4, 8]) as batcher:
        answers = await outcomes(batcher, rows(1, 2), rows(-3), rows(4, 5))
    assert column(answers[0]) == [2, 4]
    assert isinstance(answers[1], ModelFailed)
    assert column(answers[2]) == [8, 10]
    assert {len(batch) for batch in model.batches} <= {4, 8}


# ---- prepare


async def test_many_prepares_its_values_like_submit() -> None:
    async with Batcher(Double(), prepare=lambda n: rows(*range(n))) as batcher:
        answers = await batcher.many([1, 3, 2])
    assert [column(answer) for answer in answers] == [[0], [0, 2, 4], [0, 2]]


# ---- threads


@pytest.mark.real_time
async def test_arrays_are_never_crossed_between_threads() -> None:
    class Plain(TensorModel):
        def predict(self, batch: Arrays) -> Arrays:
            return {"y": batch["x"] * 2}

    async with Batcher(Plain(), max_batch_size=8, workers=2) as batcher:
        values = [rows(*range(n, n + n % 20 + 1)) for n in range(300)]
        answers = await asyncio.gather(*(batcher.submit(value) for value in values))
    for value, answer in zip(values, answers, strict=True):
        assert (answer["y"] == value["x"] * 2).all()


async def test_static_moves_on_when_a_request_did_not_fit_into_the_queue() -> None:
    """Six rows of eight wait for two more; only requests of three come."""
    async with Batcher(Double(), policy="static", max_batch_size=8, max_queue=8) as batcher:
        waiting = [asyncio.create_task(batcher.submit(rows(1, 2, 3))) for _ in range(2)]
        await asyncio.sleep(0.01)
        with pytest.raises(QueueFull):
            await batcher.submit(rows(1, 2, 3))
        async with asyncio.timeout(1.0):
            await asyncio.gather(*waiting)


# ---- arrays of classes of their own


class Uncuttable(numpy.ndarray[Any, Any]):
    def __getitem__(self, key: Any) -> Any:
        raise RuntimeError("in one piece")

    def __array_function__(self, *arguments: Any, **keywords: Any) -> Any:
        raise RuntimeError("on its own")

    def __len__(self) -> int:
        raise RuntimeError("of no length")


async def test_a_subclass_of_an_array_is_taken_as_an_array() -> None:
    values = [rows(1), {"x": rows(2)["x"].view(Uncuttable)}, {"x": rows(3)["x"].view(numpy.matrix)}]
    model = Double()
    async with Batcher(model) as batcher:
        answers = await outcomes(batcher, *values, *values)
    assert [column(answer) for answer in answers] == [[2], [4], [6]] * 2
    assert all(type(batch) is numpy.ndarray for batch in model.batches)


async def test_so_is_one_of_more_rows_than_a_batch() -> None:
    async with Batcher(Double(), max_batch_size=2) as batcher:
        whole = {"x": rows(1, 2, 3, 4, 5)["x"].view(Uncuttable)}
        answers = await outcomes(batcher, whole, rows(6))
    assert [column(answer) for answer in answers] == [[2, 4, 6, 8, 10], [12]]


async def test_a_value_that_cannot_be_cut_hurts_only_its_caller() -> None:
    class Fickle(dict[str, Any]):
        """Its second look at itself fails."""

        looks = 0

        def items(self) -> Any:
            self.looks += 1
            if self.looks > 3:
                raise RuntimeError("no more")
            return super().items()

    async with Batcher(Double(), max_batch_size=2) as batcher:
        answers = await outcomes(batcher, rows(1), Fickle(rows(1, 2, 3, 4, 5)), rows(2))
        assert column(await batcher.submit(rows(3))) == [6]
    assert [column(answers[0]), column(answers[2])] == [[2], [4]]
    assert isinstance(answers[1], RuntimeError)


@pytest.mark.parametrize("kind", [Uncuttable, numpy.ma.MaskedArray])
async def test_an_output_of_a_class_of_its_own_is_an_answer_or_an_error(kind: Any) -> None:
    class Returns(TensorModel):
        def predict(self, batch: Arrays) -> Arrays:
            doubled = batch["x"] * 2
            return {"y": doubled.view(kind) if batch["x"].max() > 8 else doubled}

    async with Batcher(Returns()) as batcher:
        answers = await outcomes(batcher, rows(1), rows(9), rows(2))
        assert column(await batcher.submit(rows(3))) == [6]
    assert [column(answers[0]), column(answers[2])] == [[2], [4]]
    if not isinstance(answers[1], ModelFailed):
        assert column(answers[1]) == [18]


# ---- declared outputs


class Answers(TensorModel):
    """Answers what it is told, whatever it declares."""

    inputs = (Tensor("x", "float32", (-1, 1)),)

    def __init__(self, declared: Tensor, answer: Any, *, batch_axis: bool = True) -> None:
        self.outputs = (declared,)  # type: ignore[misc]
        self.batch_axis = batch_axis
        self.answer = answer

    def predict(self, batch: Arrays) -> Arrays:
        return {"y": self.answer}


async def answer_of(declared: Tensor, answer: Any, *, batch_axis: bool = True) -> Any:
    model = Answers(declared, answer, batch_axis=batch_axis)
    async with Batcher(model, dependent_rows="batch") as batcher:
        return (await batcher.submit(rows(1, 2)))["y"]


F32 = Tensor("y", "float32", (-1, 2))


@pytest.mark.parametrize(
    ("declared", "answer", "says"),
    [
        (F32, numpy.ones((2, 2)), r"'y' as float64; its declared dtype is float32"),
        (F32, numpy.ones((2,), "f4"), r"'y' with shape \[2\]; its declared shape is \[-1, 2\]"),
        (F32, numpy.ones((2, 3), "f4"), r"'y' with shape \[2, 3\]; its declared shape is"),
        (F32, numpy.ones((2, 2, 1), "f4"), r"'y' with shape \[2, 2, 1\]; its declared shape is"),
        (Tensor("y", "float32", (-1,)), numpy.ones((2, 1), "f4"), r"'y' with shape \[2, 1\]"),
        (Tensor("y", "object", (-1,)), numpy.ones(2, "i8"), r"'y' as int64; .* object"),
        (Tensor("y", "int64", (-1,)), numpy.array([b"1", b"2"], object), r"'y' as object"),
        (Tensor("y", "bfloat16", (-1,)), numpy.ones(2), r"bfloat16, which is float32 in memory"),
    ],
)
async def test_an_output_that_is_not_as_declared_is_refused_by_name(
    declared: Tensor, answer: Any, says: str
) -> None:
    with pytest.raises(ModelFailed, match=says):
        await answer_of(declared, answer)


@pytest.mark.parametrize(
    ("declared", "answer"),
    [
        (F32, numpy.ones((2, 2), "f4")),
        (F32, numpy.ones((2, 2), ">f4")),
        (Tensor("y", "float32", (-1, -1)), numpy.ones((2, 7), "f4")),
        (Tensor("y", "bfloat16", (-1,)), numpy.ones(2, "f4")),
        (Tensor("y", "object", (-1,)), numpy.array([b"1", b"2"], object)),
        (Tensor("y", "object", (-1,)), numpy.array(["a", "bc"])),
        (Tensor("y", "object", (-1,)), numpy.array([b"a", b"bc"])),
    ],
)
async def test_an_output_that_is_as_declared_passes(declared: Tensor, answer: Any) -> None:
    assert (await answer_of(declared, answer)).tolist() == answer.tolist()


async def test_a_whole_answer_is_held_against_its_whole_shape() -> None:
    declared = Tensor("y", "float32", (3,))
    with pytest.raises(ModelFailed, match=r"shape \[4\]; its declared shape is \[3\]"):
        await answer_of(declared, numpy.ones(4, "f4"), batch_axis=False)
    with pytest.raises(ModelFailed, match=r"as float64"):
        await answer_of(declared, numpy.ones(3), batch_axis=False)
    numbers = await answer_of(declared, [1, 2, 3.5], batch_axis=False)  # they have no dtype
    assert numbers.dtype == "float32"
    assert numbers.tolist() == [1, 2, 3.5]
    with pytest.raises(ModelFailed, match=r"as float64; its declared dtype is int64"):
        await answer_of(Tensor("y", "int64", (2,)), [1, 2.5], batch_axis=False)


async def test_a_requests_rows_that_depend_on_each_other_are_checked_too() -> None:
    class Sums(TensorModel):
        inputs = (Tensor("x", "float32", (-1, 1)),)
        outputs = (Tensor("y", "float32", (-1, 1)),)

        def predict(self, batch: Arrays) -> Arrays:
            y = batch["x"] - batch["x"].mean()
            return {"y": y if len(y) < 3 or y.any() else y.astype("float64")}

    async with Batcher(Sums()) as batcher:
        with pytest.raises(ModelFailed, match="as float64"):
            await batcher.submit(rows(1, 1, 1))


async def test_the_shapes_that_a_file_only_guesses_are_not_held_against_it() -> None:
    class Guessed(Answers):
        output_shapes_are_hints = True

    async with Batcher(Guessed(F32, numpy.ones((2, 5), "f4")), dependent_rows="batch") as batcher:
        assert (await batcher.submit(rows(1, 2)))["y"].shape == (2, 5)
    async with Batcher(Guessed(F32, numpy.ones((2, 5))), dependent_rows="batch") as batcher:
        with pytest.raises(ModelFailed, match="as float64"):
            await batcher.submit(rows(1, 2))
