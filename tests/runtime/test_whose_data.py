"""Whose data it is: an answer is its caller's own once `predict` has returned, a rerun sees what
the callers sent, whatever the model does with its buffers and its inputs."""

import asyncio
import collections
import copy
import dataclasses
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy
import pytest

from headway import END, Batcher, Model, ModelFailed, Tensor, TensorModel
from headway.runtime.calling import ownership
from headway.runtime.calling.ownership import own

Arrays = dict[str, numpy.ndarray[Any, Any]]
SMALL, LARGE = 1, 2**15  # columns of float32: copied without a look, and with one


def rows(*values: float, columns: int = SMALL) -> Arrays:
    column = numpy.array(values, numpy.float32).reshape(-1, 1)
    return {"x": numpy.repeat(column, columns, axis=1)}


async def one_by_one(batcher: Batcher[Any, Any], values: list[Any]) -> list[Any]:
    """All answers are kept while later batches run."""
    return [await batcher.submit(value) for value in values]


# ---- what tensor models return


class Doubling(TensorModel):
    """Keeps what it returns, in a way of its own."""

    def __init__(self, columns: int) -> None:
        self.out = numpy.zeros((4, columns), numpy.float32)
        self.kept: Any = None

    def predict(self, batch: Arrays) -> Any:
        count = len(batch["x"])
        numpy.multiply(batch["x"], 2, out=self.out[:count])
        return {"y": self.out[:count]}


class ReturnsItWhole(Doubling):
    def predict(self, batch: Arrays) -> Any:
        if len(self.out) != len(batch["x"]):
            self.out = numpy.zeros_like(batch["x"])
        numpy.multiply(batch["x"], 2, out=self.out)
        return {"y": self.out}


class KeepsTheDict(Doubling):
    def predict(self, batch: Arrays) -> Any:
        if self.kept is None:
            self.kept = {"y": batch["x"] * 2}
        else:
            numpy.multiply(batch["x"], 2, out=self.kept["y"])
        return self.kept


class KeepsAView(Doubling):
    def predict(self, batch: Arrays) -> Any:
        if self.kept is not None:
            self.kept[...] = batch["x"] * 2
        fresh = batch["x"] * 2
        self.kept = fresh[:]
        return {"y": fresh}


class KeepsAMemoryView(KeepsAView):
    def predict(self, batch: Arrays) -> Any:
        if self.kept is not None:
            numpy.asarray(self.kept)[...] = -1
        fresh = batch["x"] * 2
        self.kept = memoryview(fresh)
        return {"y": fresh}


class KeepsAWeakReference(KeepsAView):
    def predict(self, batch: Arrays) -> Any:
        before = None if self.kept is None else self.kept()
        if before is not None:
            before[...] = -1
        fresh = batch["x"] * 2
        self.kept = weakref.ref(fresh)
        return {"y": fresh}


class KeepsAMapping(KeepsTheDict):
    def predict(self, batch: Arrays) -> Any:
        return collections.UserDict(super().predict(batch))


class IsAsync(Doubling):
    async def predict(self, batch: Arrays) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().predict(batch)


@pytest.mark.parametrize("columns", [SMALL, LARGE])
@pytest.mark.parametrize(
    "kind",
    [
        Doubling,
        ReturnsItWhole,
        KeepsTheDict,
        KeepsAView,
        KeepsAMemoryView,
        KeepsAWeakReference,
        KeepsAMapping,
        IsAsync,
    ],
)
async def test_an_answer_stays_as_it_was_whatever_the_model_keeps(
    kind: Callable[[int], Doubling], columns: int
) -> None:
    async with Batcher(kind(columns), max_batch_size=1) as batcher:
        answers = await one_by_one(batcher, [rows(n, columns=columns) for n in range(1, 6)])
    assert [answer["y"][0, 0] for answer in answers] == [2, 4, 6, 8, 10]
    assert all((answer["y"] == answer["y"][0, 0]).all() for answer in answers)


async def test_a_large_output_that_nobody_else_holds_is_not_copied() -> None:
    where: list[int] = []

    class Fresh(TensorModel):
        def predict(self, batch: Arrays) -> Arrays:
            doubled = batch["x"] * 2
            where.append(doubled.ctypes.data)
            return {"y": doubled}

    async with Batcher(Fresh()) as batcher:
        answer: Any = await batcher.submit(rows(1, columns=LARGE))
    assert answer["y"].ctypes.data == where[0]


async def test_an_answer_is_not_the_callers_input() -> None:
    class Same(TensorModel):
        writes_inputs = False

        def predict(self, batch: Arrays) -> Arrays:
            return {"y": batch["x"]}

    sent = rows(1, 2)
    async with Batcher(Same()) as batcher:
        answer: Any = await batcher.submit(sent)
    sent["x"][:] = 9
    assert answer["y"].tolist() == [[1], [2]]


# ---- what item models return


def reused_list() -> Callable[[list[int]], Any]:
    results: list[int] = [0] * 4

    def predict(items: list[int]) -> list[int]:
        results[:] = [item * 2 for item in items]
        return results

    return predict


def reused_rows() -> Callable[[list[int]], Any]:
    out = numpy.zeros((4, 1))

    def predict(items: list[int]) -> Any:
        out[: len(items), 0] = numpy.array(items) * 2
        return out[: len(items)]

    return predict


def list_of_rows() -> Callable[[list[int]], Any]:
    predict = reused_rows()
    return lambda items: list(predict(items))


def large_rows() -> Callable[[list[int]], Any]:
    out = numpy.zeros((4, LARGE))

    def predict(items: list[int]) -> Any:
        out[: len(items)] = numpy.array(items).reshape(-1, 1) * 2
        return [out[place, :] for place in range(len(items))]

    return predict


def same_dict() -> Callable[[list[int]], Any]:
    kept: dict[str, Any] = {"deep": [{}]}

    def predict(items: list[int]) -> Any:
        kept["deep"][0]["y"] = items[0] * 2
        return [kept for _ in items]

    return predict


def same_bytes() -> Callable[[list[int]], Any]:
    buffer = bytearray(1)

    def predict(items: list[int]) -> Any:
        buffer[0] = items[0] * 2
        return [memoryview(buffer) for _ in items]

    return predict


@pytest.mark.parametrize(
    ("make", "read"),
    [
        (reused_list, lambda answer: answer),
        (reused_rows, lambda answer: answer[0]),
        (list_of_rows, lambda answer: answer[0]),
        (large_rows, lambda answer: answer[-1]),
        (same_dict, lambda answer: answer["deep"][0]["y"]),
        (same_bytes, lambda answer: answer[0]),
    ],
)
async def test_an_items_answer_stays_as_it_was(
    make: Callable[[], Any], read: Callable[[Any], int]
) -> None:
    async with Batcher(make(), max_batch_size=1) as batcher:
        answers = await one_by_one(batcher, [1, 2, 3, 4])
    assert [read(answer) for answer in answers] == [2, 4, 6, 8]


async def test_two_callers_never_share_one_answer() -> None:
    def labels(items: list[int]) -> list[dict[str, list[int]]]:
        return [{"labels": []}] * len(items)

    async with Batcher(labels) as batcher:
        one, other = await batcher.many([1, 2])
    one["labels"].append(1)
    assert other == {"labels": []}


async def test_what_finish_and_prepare_reuse_is_the_callers_own_too() -> None:
    class Reuses(Model[Any, Any]):
        def __init__(self) -> None:
            self.prepared: list[int] = [0]
            self.finished: list[int] = [0]

        def prepare(self, raw: int) -> list[int]:
            self.prepared[0] = raw
            return self.prepared

        def predict(self, items: list[Any]) -> list[Any]:
            return [item[0] * 2 for item in items]

        def finish(self, result: int) -> list[int]:
            self.finished[0] = result
            return self.finished

    async with Batcher(Reuses()) as batcher:
        assert await batcher.many([1, 2, 3]) == [[2], [4], [6]]


class Streams(Model[Any, Any]):
    def __init__(self) -> None:
        self.chunk = [0]

    def stream(self, items: list[Any]) -> Iterator[list[Any]]:
        for step in range(3):
            self.chunk[0] = step
            items[0]["seen"] = True
            yield [self.chunk for _ in items]
        yield [END for _ in items]


class StreamsAsync(Streams):
    async def stream(self, items: list[Any]) -> AsyncIterator[list[Any]]:  # type: ignore[override]
        for step in super().stream(items):
            yield step


@pytest.mark.parametrize("kind", [Streams, StreamsAsync])
async def test_a_chunk_is_its_readers_own(kind: type[Streams]) -> None:
    sent: dict[str, Any] = {}
    async with Batcher(kind()) as batcher:
        chunks = [chunk async for chunk in batcher.stream(sent)]
    assert chunks == [[0], [1], [2]]
    assert sent == {}


# ---- what models do to their inputs


async def test_a_model_that_writes_into_its_arrays_changes_nobodys() -> None:
    class Scales(TensorModel):
        def predict(self, batch: Arrays) -> Arrays:
            batch["x"] *= 2
            return {"y": batch["x"]}

    sent = rows(1, 2)
    async with Batcher(Scales()) as batcher:
        answers: list[Any] = [await batcher.submit(sent), await batcher.submit(sent)]
    assert [answer["y"].tolist() for answer in answers] == [[[2], [4]]] * 2
    assert sent["x"].tolist() == [[1], [2]]


async def test_rows_that_run_again_for_want_of_memory_are_as_they_were() -> None:
    class Small(TensorModel):
        """Doubles what it is given, then finds that it was too much."""

        def predict(self, batch: Arrays) -> Arrays:
            batch["x"] *= 2
            if len(batch["x"]) > 2:
                raise MemoryError
            return {"y": batch["x"]}

    sent = rows(*[1.0] * 8)
    async with Batcher(Small()) as batcher:
        answer: Any = await batcher.submit(sent)
    assert answer["y"].ravel().tolist() == [2.0] * 8
    assert sent["x"].ravel().tolist() == [1.0] * 8


@dataclasses.dataclass
class Record:
    text: str
    tags: list[str]


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenRecord:
    tags: list[str]


class Named(NamedTuple):
    tags: list[str]


def pop_text(item: Any) -> str:
    text: str = item.pop("text")
    return text


def pop_tag(item: Any) -> str:
    tag: str = item.tags.pop()
    return tag


@pytest.mark.parametrize(
    ("make", "take"),
    [
        (lambda text: {"text": text}, pop_text),
        (lambda text: collections.OrderedDict(text=text), pop_text),
        (lambda text: [text], lambda item: item.pop()),
        (lambda text: ([text],), lambda item: item[0].pop()),
        (lambda text: [[[text]]], lambda item: item[0][0].pop()),
        (lambda text: collections.deque([text]), lambda item: item.pop()),
        (lambda text: Record(text, [text]), pop_tag),
        (lambda text: FrozenRecord([text]), pop_tag),
        (lambda text: Named([text]), pop_tag),
        (lambda text: {text}, lambda item: item.pop()),
        (lambda text: numpy.array([[text]], object), lambda item: item[0].tolist().pop()),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_items_that_predict_takes_apart_are_whole_when_they_run_again(
    make: Callable[[str], Any], take: Callable[[Any], str], is_async: bool
) -> None:
    def predict(items: list[Any]) -> list[str]:
        texts = [take(items.pop(0)) for _ in range(len(items))]
        if "bad" in texts:
            raise ValueError("bad")
        return texts

    async def predict_async(items: list[Any]) -> list[str]:
        return predict(items)

    sent = [make(text) for text in ("a", "bad", "c", "d")]
    before = copy.deepcopy(sent)
    async with Batcher(predict_async if is_async else predict) as batcher:
        results = await asyncio.gather(*map(batcher.submit, sent), return_exceptions=True)
    assert [results[0], *results[2:]] == ["a", "c", "d"]
    assert isinstance(results[1], ModelFailed)
    assert sent == before


async def test_a_stream_that_runs_again_finds_its_items_whole() -> None:
    class Breaks(Model[Any, Any]):
        def stream(self, items: list[Any]) -> Iterator[list[Any]]:
            texts = [item.pop("text") for item in items]
            if "bad" in texts:
                raise ValueError("bad")
            yield texts
            yield [END for _ in items]

    async def read(batcher: Batcher[Any, Any], text: str) -> list[Any]:
        return [chunk async for chunk in batcher.stream({"text": text})]

    async with Batcher(Breaks()) as batcher:
        calls = (read(batcher, text) for text in ("a", "bad", "c"))
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert [results[0], results[2]] == [["a"], ["c"]]
    assert isinstance(results[1], ModelFailed)


async def test_a_model_that_only_reads_is_given_the_items_themselves() -> None:
    class Reads(Model[Any, Any]):
        writes_inputs: ClassVar[bool] = False

        def predict(self, items: list[Any]) -> list[int]:
            return [id(item) for item in items]

    sent = {"text": "a"}
    async with Batcher(Reads()) as batcher:
        assert await batcher.submit(sent) == id(sent)


async def test_a_tensor_model_that_breaks_its_word_hurts_itself_only() -> None:
    class Writes(TensorModel):
        inputs: ClassVar = [Tensor("x", "float32", (-1, 1))]
        writes_inputs = False

        def predict(self, batch: Arrays) -> Arrays:
            batch["x"] *= 2
            return {"y": batch["x"]}

    sent = rows(1)
    async with Batcher(Writes()) as batcher:
        with pytest.raises(ModelFailed, match="read-only"):
            await batcher.submit(sent)
    assert sent["x"].tolist() == [[1]]


# ---- copying


def test_what_occurs_twice_or_contains_itself_does_so_in_the_copy() -> None:
    row = [1]
    knot: dict[str, Any] = {"rows": [row, row]}
    knot["self"] = knot
    copied = own(knot)
    assert copied is not knot
    assert copied["self"] is copied
    assert copied["rows"][0] is copied["rows"][1]
    assert copied["rows"][0] is not row


def test_a_value_may_be_nested_deeper_than_the_stack() -> None:
    deep: list[Any] = []
    for _ in range(10 * sys.getrecursionlimit()):
        deep = [deep]
    copied = own(deep)
    assert copied is not deep
    assert copied[0] is not deep[0]
    while deep:  # piece by piece: freeing it, too, is recursion
        deep, copied = deep[0], copied[0]


def test_an_object_of_a_class_of_its_own_is_passed_as_it_is() -> None:
    class Handle:
        pass

    handle = Handle()
    assert own(handle) is handle
    assert own([handle])[0] is handle


def test_a_memoryview_keeps_its_shape() -> None:
    grid = numpy.arange(6, dtype=numpy.int32).reshape(2, 3)
    view = own(memoryview(grid))
    grid[:] = 0
    assert view.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_the_count_of_references_sees_one_more_holder() -> None:
    """What the rule rests on, in this interpreter."""

    def returned(keep: list[Any]) -> dict[str, Any]:
        outputs = {"y": numpy.zeros((1, LARGE), numpy.float32)}
        keep.append(outputs["y"])
        return outputs

    nobody: list[Any] = []
    outputs = returned(nobody)
    nobody.clear()
    owned = ownership.own_outputs(outputs)
    assert owned["y"] is outputs["y"]
    somebody: list[Any] = []
    outputs = returned(somebody)
    owned = ownership.own_outputs(outputs)
    assert owned["y"] is not outputs["y"]
