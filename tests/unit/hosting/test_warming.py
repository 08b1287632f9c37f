"""Before a model is ready: what is measured, what is kept, what fits."""

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import numpy
import pytest

import headway
from headway import ModelFailed, Tensor
from headway.config import ModelConfig
from headway.core.costs import CostTable
from headway.errors import ConfigError
from headway.hosting.hosted import Served
from headway.hosting.registry import Ask
from headway.hosting.tables import ModelOrigin
from headway.hosting.warm_up import Beside
from headway.testing import now

ASK = Ask()


class Counting(headway.Model[int, int]):
    """A millisecond for each row, unless it is told; remembers its batches."""

    def __init__(self, most_rows: int = 1000, row_s: float = 0.001) -> None:
        self.batches: list[int] = []
        self.most_rows = most_rows
        self.row_s = row_s

    async def predict(self, items: list[int]) -> list[int]:  # type: ignore[override]
        self.batches.append(len(items))
        if len(items) > self.most_rows:
            raise MemoryError(f"{len(items)} rows do not fit")
        await asyncio.sleep(self.row_s * len(items))
        return items


class Rows(headway.TensorModel):
    """Its width varies: nobody can make its samples up."""

    inputs: ClassVar = [Tensor("x", "float32", (-1, -1))]
    outputs: ClassVar = [Tensor("y", "float32", (-1, -1))]

    async def predict(self, batch: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        if batch["x"].min() < 0:
            raise ValueError("less than nothing")
        return {"y": batch["x"]}


@pytest.fixture
def origin(tmp_path: Path) -> ModelOrigin:
    folder = tmp_path / "1"
    folder.mkdir()
    (folder / "weights").write_bytes(b"1")
    return ModelOrigin(folder=folder, files=(folder / "weights",))


async def started(model: Any, origin: ModelOrigin, **settings: Any) -> Served:
    config = ModelConfig(name="m", target="tests:None", **settings)
    served = Served(config, model=model, origin=origin)
    await served.start()
    return served


class Other(Counting):
    """Another model in the same file."""


async def test_another_model_of_the_same_file_and_name_is_measured_anew(
    origin: ModelOrigin,
) -> None:
    served = await started(Counting(), origin, max_batch_size=8)
    await served.close()
    other = Other()
    again = await started(other, origin, max_batch_size=8)
    assert max(other.batches) == 8
    await again.close()


async def test_a_second_start_uses_what_the_first_measured(origin: ModelOrigin) -> None:
    first = Counting()
    served = await started(first, origin, max_batch_size=8)
    assert max(first.batches) == 8
    await served.close()
    second = Counting()
    again = await started(second, origin, max_batch_size=8)
    assert set(second.batches) == {1}  # no more than what a first call builds
    assert again.costs is not None
    assert served.costs is not None
    assert again.costs.to_json() == served.costs.to_json()
    assert again.costs.memory_bytes is None or len(again.costs.memory_bytes) == 8
    await again.close()


async def test_other_weights_or_settings_are_measured_again(origin: ModelOrigin) -> None:
    await (await started(Counting(), origin, max_batch_size=8)).close()
    origin.files[0].write_bytes(b"2")
    for settings in ({"max_batch_size": 8}, {"max_batch_size": 4}):
        model = Counting()
        await (await started(model, origin, **settings)).close()
        assert max(model.batches) == settings["max_batch_size"]


async def test_what_does_not_fit_into_memory_caps_the_batches(origin: ModelOrigin) -> None:
    model = Counting(most_rows=5)
    served = await started(model, origin, max_batch_size=32)
    assert served.max_batch_size == 5
    model.batches.clear()
    answers = await asyncio.gather(*(served.predict(number, ASK) for number in range(20)))
    assert answers == list(range(20))
    assert max(model.batches) <= 5
    await served.close()
    assert not (origin.folder / "warm-up.json").exists()  # type: ignore[operator]  # for the moment


async def test_a_model_without_warm_up_is_ready_at_once_and_keeps_nothing(
    origin: ModelOrigin,
) -> None:
    model = Counting()
    served = await started(model, origin, warm_up=False)
    assert served.is_ready
    assert model.batches == []
    await served.close()


async def test_samples_beside_the_model_are_what_it_is_timed_with(
    origin: ModelOrigin, tmp_path: Path
) -> None:
    samples = tmp_path / "samples.jsonl"
    samples.write_text('{"x": [1, 2, 3]}\n\n[4, 5]\n')
    origin = ModelOrigin(folder=origin.folder, files=origin.files, samples=samples)
    served = await started(Rows(), origin, max_batch_size=4)
    assert served.costs is not None
    assert served.costs.rows == (1, 2, 4)
    await served.close()


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("[1, ", ConfigError, "line 1: Expecting value"),
        ('[1]\n"text"', ConfigError, "line 2: input 'x'"),
        ("[-1.0]", ModelFailed, "less than nothing"),
    ],
)
async def test_a_sample_that_was_given_must_work(
    origin: ModelOrigin, tmp_path: Path, text: str, error: type[Exception], message: str
) -> None:
    samples = tmp_path / "samples.jsonl"
    samples.write_text(text)
    origin = ModelOrigin(folder=origin.folder, files=origin.files, samples=samples)
    with pytest.raises(error, match=message):
        await started(Rows(), origin)


# ---- a model that can answer nothing


class Fixed(headway.TensorModel):
    """Answers what it is told."""

    inputs: ClassVar = [Tensor("x", "float32", (-1, 2))]
    outputs: ClassVar = [Tensor("y", "float32", (-1, 2))]

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def predict(self, batch: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        return self.answer(batch["x"])  # type: ignore[no-any-return]


class ToOne(headway.Model[int, int]):
    async def predict(self, items: list[int]) -> list[int]:  # type: ignore[override]
        return [sum(items), 0, 0]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Fixed(lambda x: {"q": x}), r"m returned outputs \['q'\], not \['y'\]"),
        (Fixed(lambda x: 7), "m returned int; named arrays were expected"),
        (Fixed(lambda x: {"y": numpy.float32(7)}), r"m returned 'y' with shape \[\]"),
        (Fixed(lambda x: {"y": numpy.ones((7, 2), "f4")}), r"shape \[7, 2\] for 1 rows"),
        (Fixed(lambda x: {"y": x.astype("f8")}), "m returned 'y' as float64"),
        (ToOne(), "m returned 3 results for 1 inputs"),
    ],
)
async def test_a_model_whose_results_can_be_no_answers_is_never_ready(
    model: Any, says: str
) -> None:
    served = Served(ModelConfig(name="m", target="tests:None"), model=model)
    with pytest.raises(ModelFailed, match=says):
        await served.start()
    assert not served.is_ready
    await served.close()


async def test_a_model_that_raises_on_a_made_up_sample_is_served(
    origin: ModelOrigin, caplog: pytest.LogCaptureFixture
) -> None:
    def picky(x: Any) -> Any:
        raise ValueError("ones are no measurements")

    served = await started(Fixed(picky), origin)
    assert served.is_ready
    assert "m is served without a warm-up: m raised ValueError: ones" in caplog.text
    await served.close()


# ---- beside others who are served


async def warmed_beside(
    model: Counting, *, is_asked: bool, before: CostTable | None
) -> tuple[Served, float]:
    """And how long it took."""
    config = ModelConfig(name="m", target="tests:None", max_batch_size=8)
    served = Served(config, model=model)
    await served.load()
    started_at = now()
    await served.warm(Beside(lambda: is_asked, before))
    return served, now() - started_at


def table_of(row_s: float) -> CostTable:
    rows = (1, 2, 4, 8)
    return CostTable(rows, None, tuple((row_s * count,) for count in rows))


async def test_while_others_are_served_the_times_of_a_version_alike_are_taken_over() -> None:
    before, model = table_of(0.015), Counting(row_s=0.01)
    served, _ = await warmed_beside(model, is_asked=True, before=before)
    assert set(model.batches) == {1}  # no large batch takes the cores from anybody
    assert served.costs == before
    await served.close()


@pytest.mark.parametrize("row_s", [0.003, 0.05])
async def test_a_version_that_is_not_alike_is_measured_with_rests(row_s: float) -> None:
    model = Counting(row_s=0.01)
    served, took_s = await warmed_beside(model, is_asked=True, before=table_of(row_s))
    assert max(model.batches) == 8
    assert served.costs is not None
    assert served.costs.seconds[-1][0] == pytest.approx(0.08)
    assert took_s > 4 * 0.01 * (sum(model.batches) - 8)  # after the last there is none
    await served.close()


async def test_a_first_version_beside_others_is_measured_with_rests() -> None:
    model = Counting()
    served, took_s = await warmed_beside(model, is_asked=True, before=None)
    assert max(model.batches) == 8
    assert took_s > 4 * 0.001 * (sum(model.batches) - 8)  # after the last there is none
    await served.close()


async def test_where_nobody_is_served_there_is_no_need_to_rest_or_guess() -> None:
    model = Counting()
    served, took_s = await warmed_beside(model, is_asked=False, before=table_of(0.001))
    assert max(model.batches) == 8
    assert took_s == pytest.approx(0.001 * sum(model.batches))
    await served.close()


# ---- leaving


class Slow(headway.Model[int, int]):
    def prepare(self, raw: int) -> int:
        return raw

    async def predict(self, items: list[int]) -> list[int]:  # type: ignore[override]
        await asyncio.sleep(1.0)
        return items

    async def stream(self, items: list[int]) -> Any:
        for step in range(3):
            await asyncio.sleep(1.0)
            yield [step for _ in items]
        yield [headway.END for _ in items]


async def test_a_retired_model_answers_everyone_who_has_found_it() -> None:
    served = await started(Slow(), ModelOrigin(), warm_up=False, max_batch_size=1, max_queue=1000)
    name = served.inputs[0].name
    many = {name: numpy.arange(10)}  # more than are queued at a time

    async def chunks() -> list[Any]:
        return [chunk async for chunk in served.stream(7, ASK)]

    async def later() -> Any:
        with served.held():  # as a handler that creates tasks
            await asyncio.sleep(0.5)
            return await served.predict(3, ASK)

    asking = [
        asyncio.create_task(each)
        for each in (served.infer(many, ASK), served.predict(1, ASK), chunks(), later())
    ]
    await asyncio.sleep(0.1)
    await served.retire(drain_s=None)
    rows, one, streamed, held = await asyncio.gather(*asking)
    assert rows[served.outputs[0].name].tolist() == list(range(10))
    assert (one, streamed, held) == (1, [0, 1, 2], 3)
    assert not served.is_ready


async def test_who_never_leaves_is_not_waited_for_longer_than_the_drain() -> None:
    served = await started(Slow(), ModelOrigin(), warm_up=False)
    with served.held():
        await served.retire(drain_s=2.0)
    assert not served.is_ready
