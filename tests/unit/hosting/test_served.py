"""A model on its batcher, as the front ends see it; on virtual time."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import numpy
import pytest

import headway
from headway import ConfigError, InvalidInput, ModelFailed, Tensor
from headway.config import Config, ModelConfig, ServerConfig
from headway.errors import Closed, DeadlineExceeded, NotReady
from headway.hosting.hosted import Served
from headway.hosting.registry import Ask, Registry, ServedModel
from headway.server.run import serving
from headway.testing import now

ASK = Ask()


class Double(headway.Model[int, int]):
    """0 is a bad number, and each row takes a millisecond."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    async def predict(self, items: list[int]) -> list[int]:  # type: ignore[override]
        self.batches.append(items)
        await asyncio.sleep(0.001 * len(items))
        if 0 in items:
            raise ValueError("0 is a bad number")
        return [2 * item for item in items]


class Scale(headway.TensorModel):
    inputs: ClassVar = [Tensor("x", "float32", (-1, 2))]
    outputs: ClassVar = [Tensor("y", "float32", (-1, 2))]

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"y": batch["x"] * 2}


class Bare(headway.TensorModel):
    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        return batch


class Misnamed(Bare):
    inputs: ClassVar = [Tensor("x", "FP32", (-1, 2))]
    outputs: ClassVar = [Tensor("y", "FP32", (-1, 2))]


class Half(Bare):
    inputs: ClassVar = [Tensor("x", "bfloat16", (-1, 2))]
    outputs: ClassVar = [Tensor("x", "bfloat16", (-1, 2))]


class Letters(headway.Model[str, str]):
    def stream(self, items: list[str]) -> Iterator[list[Any]]:
        for step in range(max(map(len, items)) + 1):
            yield [item[step] if step < len(item) else headway.END for item in items]


def config(**settings: Any) -> ModelConfig:
    return ModelConfig(name="m", target="tests:None", **settings)


@asynccontextmanager
async def served(model: Any, **settings: Any) -> AsyncIterator[Served]:
    made = Served(config(**settings), model=model)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


def ints(*values: int) -> dict[str, Any]:
    return {"input": numpy.array(values)}


async def test_rows_of_an_item_model_are_batched_and_joined() -> None:
    model = Double()
    async with served(model, warm_up=False) as made:
        outputs = await made.infer(ints(1, 2, 3), ASK)
        assert outputs["output"].tolist() == [2, 4, 6]
        assert (await made.infer(ints(5), ASK))["output"].tolist() == [10]
    assert made.inputs == (Tensor("input", "int64", (-1,)),)


async def test_more_rows_than_a_batch_or_a_queue_holds_come_back_in_order() -> None:
    async with served(Double(), warm_up=False, max_batch_size=4, max_queue=8) as made:
        values = list(range(1, 101))
        outputs = await made.infer(ints(*values), ASK)
        assert outputs["output"].tolist() == [2 * value for value in values]


async def test_one_bad_row_fails_its_request_and_withdraws_the_others() -> None:
    model = Double()
    async with served(model, warm_up=False, max_batch_size=1) as made:
        with pytest.raises(ModelFailed, match="0 is a bad number"):
            await made.infer(ints(1, 0, 3, 4, 5), ASK)
        assert (await made.infer(ints(6), ASK))["output"].tolist() == [12]
    assert [5] not in model.batches


async def test_a_tensor_model_gets_its_arrays_as_they_are() -> None:
    async with served(Scale()) as made:
        outputs = await made.infer({"x": numpy.ones((3, 2), numpy.float32)}, ASK)
        assert outputs["y"].tolist() == [[2.0, 2.0]] * 3
        with pytest.raises(InvalidInput, match=r"'x' has shape \[3, 3\]"):
            await made.infer({"x": numpy.ones((3, 3), numpy.float32)}, ASK)
        with pytest.raises(InvalidInput, match=r"takes inputs \['x'\], not \['z'\]"):
            await made.infer({"z": numpy.ones((3, 2), numpy.float32)}, ASK)


async def test_a_bfloat16_tensor_is_float32_in_memory() -> None:
    async with served(Half()) as made:
        outputs = await made.infer({"x": numpy.ones((1, 2), numpy.float32)}, ASK)
        assert outputs["x"].tolist() == [[1.0, 1.0]]
        assert (await made.predict([1, 2], ASK)).dtype == numpy.float32


async def test_one_value_as_json_for_either_kind_of_model() -> None:
    async with served(Double()) as made:
        assert await made.predict(21, ASK) == 42
        with pytest.raises(InvalidInput, match="the input: Expected `int`"):
            await made.predict("21", ASK)
    async with served(Scale()) as made:
        assert (await made.predict([1, 2], ASK)).tolist() == [2, 4]
        assert (await made.predict({"x": [1, 2]}, ASK)).tolist() == [2, 4]
        for wrong in ([1, 2, 3], {"z": 1}, "text", {"x": "text"}, None):
            with pytest.raises(InvalidInput, match="'x'"):
                await made.predict(wrong, ASK)


async def test_the_json_of_a_model_is_described() -> None:
    most = 3.4028234663852886e38
    number = {"type": "number", "minimum": -most, "maximum": most}
    pair = {"type": "array", "items": number, "minItems": 2, "maxItems": 2}
    assert Served(config(), model=Scale()).json_schemas() == (pair, pair)
    number = {"type": "integer"}
    assert Served(config(), model=Double()).json_schemas() == (number, number)


async def test_streams_come_in_chunks() -> None:
    async with served(Letters()) as made:
        assert made.streams
        assert [chunk async for chunk in made.stream("abc", ASK)] == ["a", "b", "c"]
        with pytest.raises(InvalidInput, match="only streams"):
            await made.predict("abc", ASK)
    async with served(Double()) as made:
        assert not made.streams
        with pytest.raises(InvalidInput, match="does not stream"):
            _ = [chunk async for chunk in made.stream(1, ASK)]


async def test_what_a_caller_asks_for_reaches_the_scheduler() -> None:
    async with served(Double(), warm_up=False, max_batch_size=1) as made:
        busy = asyncio.create_task(made.infer(ints(1), ASK))
        await asyncio.sleep(0)
        with pytest.raises(DeadlineExceeded):
            await made.infer(ints(2), Ask(deadline_ms=0.5))
        with pytest.raises(InvalidInput, match="priority"):
            await made.infer(ints(2), Ask(priority="urgent"))  # type: ignore[arg-type]
        await busy


async def test_ready_only_between_start_and_close() -> None:
    made = Served(config(), model=Double())
    registry = Registry()
    registry.add(made)
    assert not made.is_ready
    with pytest.raises(NotReady):
        registry.find_ready("m")
    await made.start()
    face: ServedModel = registry.find_ready("m")
    assert face is made
    await made.close()
    assert not made.is_ready
    with pytest.raises(Closed):
        await made.infer(ints(1), ASK)


async def test_times_by_rows_are_known_before_traffic() -> None:
    async with served(Double(), max_batch_size=4) as made:
        assert made.costs is not None
        assert made.costs.rows == (1, 2, 3, 4)
        assert [line[0] * 1e3 for line in made.costs.seconds] == pytest.approx([1, 2, 3, 4])


async def test_times_by_size_go_as_far_as_time_allows() -> None:
    class Texts(headway.Model[str, int]):
        def size(self, item: str) -> int:
            return len(item.split())

        async def predict(self, items: list[str]) -> list[int]:  # type: ignore[override]
            await asyncio.sleep(0.001 * len(items) * max(len(item.split()) for item in items))
            return [len(item) for item in items]

    async with served(Texts(), max_batch_size=64) as made:
        assert made.costs is not None
        assert made.costs.sizes == (1, 8, 32, 128)
        assert made.costs.rows[-1] >= 16
        assert [cell * 1e3 for cell in made.costs.seconds[0]] == pytest.approx([1, 8, 32, 128])
        assert now() < 5.0


async def test_a_tensor_model_whose_axes_vary_is_timed_at_several_lengths() -> None:
    class Tokens(headway.TensorModel):
        inputs: ClassVar = [Tensor("ids", "int64", (-1, -1)), Tensor("mask", "int64", (-1, -1))]
        outputs: ClassVar = [Tensor("n", "int64", (-1,))]

        async def predict(self, batch: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
            rows, length = batch["ids"].shape
            await asyncio.sleep(1e-4 * rows * length)
            return {"n": (batch["ids"] * batch["mask"]).sum(axis=1)}

    async with served(Tokens(), max_batch_size=8) as made:
        assert made.costs is not None
        assert made.costs.sizes == (8, 32, 128, 512)  # the length that both inputs have
        assert [cell * 1e4 for cell in made.costs.seconds[0]] == pytest.approx([8, 32, 128, 512])
        assert made.costs.rows[-1] >= 2


async def test_lengths_that_a_model_refuses_are_left_out() -> None:
    class Short(headway.TensorModel):
        inputs: ClassVar = [Tensor("ids", "int64", (-1, -1))]
        outputs: ClassVar = [Tensor("ids", "int64", (-1, -1))]

        async def predict(self, batch: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
            await asyncio.sleep(0.001)
            if batch["ids"].shape[1] > 100:
                raise ValueError("too long")
            return batch

    async with served(Short(), max_batch_size=2) as made:
        assert made.costs is not None
        assert made.costs.sizes == (8, 32)


async def test_a_slow_model_is_ready_soon_all_the_same() -> None:
    class Slow(headway.Model[int, int]):
        async def predict(self, items: list[int]) -> list[int]:  # type: ignore[override]
            await asyncio.sleep(60.0)
            return items

    async with served(Slow()) as made:
        assert now() <= 5.0
        assert made.is_ready
        assert made.costs is None


async def test_a_model_that_refuses_the_samples_is_served_without_times() -> None:
    class Picky(headway.Model[str, int]):
        async def predict(self, items: list[str]) -> list[int]:  # type: ignore[override]
            return [int(item) for item in items]

    async with served(Picky()) as made:
        assert made.costs is None
        assert await made.predict("3", ASK) == 3


async def test_a_model_that_cannot_load_fails_the_start() -> None:
    class Broken(headway.Model[int, int]):
        def load(self) -> None:
            raise OSError("no weights")

        def predict(self, items: list[int]) -> list[int]:
            return items

    made = Served(config(), model=Broken())
    with pytest.raises(OSError, match="no weights"):
        await made.start()
    assert not made.is_ready
    await made.close()


async def test_a_plain_model_can_run_inline() -> None:
    async with served(Scale(), worker="inline") as made:
        assert (await made.predict([1, 2], ASK)).tolist() == [2, 4]


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (Double(), {"worker": "thread"}, "worker: m is async"),
        (Letters(), {"worker": "inline"}, "worker: m streams"),
        (Scale(), {"policy": "window"}, "max_wait"),
        (Bare(), {}, "Bare must declare its inputs"),
        (Misnamed(), {}, "tensor 'x': dtype 'FP32' is not a name of numpy's"),
        (headway.TensorModel(), {}, "TensorModel does not define predict"),
    ],
)
def test_settings_that_do_not_fit_the_model_fail_at_start(
    model: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Served(config(**settings), model=model)


async def test_every_request_is_recorded_where_somebody_asks() -> None:
    class Records:
        def __init__(self) -> None:
            self.seen: list[tuple[int, float, str | None]] = []

        def record_request(self, *, rows: int, seconds: float, error: BaseException | None) -> None:
            self.seen.append((rows, round(seconds, 4), error and type(error).__name__))

    async with served(Double(), warm_up=False) as made:
        made.statistics = records = Records()
        await made.infer(ints(1, 2), ASK)
        with pytest.raises(ModelFailed):
            await made.predict(0, ASK)
        leaver = asyncio.create_task(made.infer(ints(3), ASK))
        await asyncio.sleep(0)
        leaver.cancel()
        await asyncio.wait([leaver])
    assert [(rows, code) for rows, _, code in records.seen] == [
        (2, None),
        (1, "ModelFailed"),
        (1, "CancelledError"),
    ]
    assert all(seconds >= 0.001 for _, seconds, _ in records.seen[:2])


async def test_an_onnx_file_with_fixed_rows_takes_any_number(tmp_path: Any) -> None:
    pytest.importorskip("onnxruntime")
    from onnxruntime.datasets import get_example

    made = Served(ModelConfig(name="sigmoid", target=get_example("sigmoid.onnx")))
    assert made.max_batch_size == 3
    await made.start()
    try:
        for rows in (1, 3, 7):
            outputs = await made.infer({"x": numpy.zeros((rows, 4, 5), numpy.float32)}, ASK)
            assert outputs["y"].shape == (rows, 4, 5)
            assert outputs["y"].max() == 0.5
    finally:
        await made.close()


async def test_all_models_of_a_configuration_are_served_and_closed() -> None:
    pytest.importorskip("onnxruntime")
    from onnxruntime.datasets import get_example

    path = get_example("sigmoid.onnx")
    models = tuple(ModelConfig(name=name, target=path) for name in ("a", "b"))
    async with serving(Config(server=ServerConfig(drain_s=1.0), models=models)) as registry:
        assert registry.names() == ["a", "b"]
        assert registry.is_ready
    assert not registry.is_ready


class Hanging(headway.Model[str, str]):
    def __init__(self) -> None:
        self.may_go_on = threading.Event()

    def prepare(self, value: str) -> str:
        assert value == "fine" or self.may_go_on.wait(20)
        return value

    def predict(self, items: list[str]) -> list[str]:
        return items


@pytest.mark.real_time
async def test_a_model_whose_callbacks_all_hang_is_not_ready_until_they_are_back() -> None:
    model = Hanging()
    config = ModelConfig(name="m", target="m:M", warm_up=False, execute_timeout_ms=100)
    served = Served(config, model=model)
    registry = Registry()
    registry.add(served)
    await served.start()
    try:
        hanging = [served.predict("hang", Ask()) for _ in range(20)]
        for error in await asyncio.gather(*hanging, return_exceptions=True):
            assert isinstance(error, headway.HeadwayError)
        with pytest.raises(NotReady):
            await served.predict("fine", Ask())
        assert (registry.is_ready, registry.is_live) == (False, False)
        model.may_go_on.set()
        async with asyncio.timeout(20):
            while not registry.is_ready:  # noqa: ASYNC110  nobody tells
                await asyncio.sleep(0.001)
        assert await served.predict("fine", Ask()) == "fine"
    finally:
        model.may_go_on.set()
        await served.close(drain_s=1)
