"""ONNX files as tensor models, on the small ones that onnxruntime brings along."""

import asyncio
from pathlib import Path
from typing import Any

import numpy
import pytest

from headway import Batcher, ConfigError, InvalidInput, Tensor
from headway.backends.onnx import OnnxModel
from headway.testing import Recorder

pytest.importorskip("onnxruntime")


def example(name: str) -> Path:
    from onnxruntime.datasets import get_example

    return Path(get_example(name))


def test_the_signature_is_the_files() -> None:
    model = OnnxModel(example("sigmoid.onnx"))
    assert model.inputs == (Tensor("x", "float32", (-1, 4, 5)),)
    assert model.outputs == (Tensor("y", "float32", (-1, 4, 5)),)


async def test_a_file_is_served_in_batches() -> None:
    rows = numpy.random.default_rng(0).normal(size=(3, 4, 5)).astype(numpy.float32)
    async with Batcher[Any, Any](OnnxModel(example("sigmoid.onnx"), threads=2)) as batcher:
        result = await batcher.submit({"x": rows})
        numpy.testing.assert_allclose(result["y"], 1 / (1 + numpy.exp(-rows)), rtol=1e-5)
        with pytest.raises(InvalidInput, match="'x' has dtype float64"):
            await batcher.submit({"x": rows.astype(float)})


def test_what_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    junk = tmp_path / "junk.onnx"
    junk.write_bytes(b"junk")
    with pytest.raises(ConfigError, match=r"junk.onnx: onnxruntime cannot load it"):
        OnnxModel(junk)
    with pytest.raises(ConfigError, match=r"absent.onnx: there is no such file"):
        OnnxModel(tmp_path / "absent.onnx")
    with pytest.raises(ConfigError, match="threads: must be a whole number"):
        OnnxModel(example("sigmoid.onnx"), threads=0)


# --- weights in a file beside the model. A model with one such, as bytes: y = x + w.


def varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def part(field: int, data: bytes | str) -> bytes:
    data = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(data)) + data


def tensor(name: str) -> bytes:
    shape = part(1, part(2, "rows")) + part(1, number(1, 4))
    return part(1, name) + part(2, part(1, number(1, 1) + part(2, shape)))


def with_weights_at(location: str) -> bytes:
    where = part(13, part(1, "location") + part(2, location))
    weights = number(1, 4) + number(2, 1) + part(8, "w") + where + number(14, 1)
    add = part(1, "x") + part(1, "w") + part(2, "y") + part(4, "Add")
    graph = part(1, add) + part(2, "g") + part(5, weights)
    graph += part(11, tensor("x")) + part(12, tensor("y"))
    return number(1, 8) + part(8, part(1, "") + number(2, 13)) + part(7, graph)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    weights = numpy.arange(4, dtype="<f4").tobytes()
    (tmp_path / "secret.bin").write_bytes(weights)
    (made / "weights.bin").write_bytes(weights)
    (made / "link.bin").symlink_to(tmp_path / "secret.bin")
    (made / "up").symlink_to(tmp_path)
    return made


def test_weights_beside_the_model_are_read(folder: Path) -> None:
    (folder / "m.onnx").write_bytes(with_weights_at("weights.bin"))
    rows = numpy.zeros((1, 4), numpy.float32)
    result = OnnxModel(folder / "m.onnx").predict({"x": rows})
    assert numpy.asarray(result["y"]).tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    "location", ["../secret.bin", "up/secret.bin", "link.bin", "/etc/passwd", "a/../../secret.bin"]
)
def test_weights_outside_the_models_folder_are_not(folder: Path, location: str) -> None:
    (folder / "m.onnx").write_bytes(with_weights_at(location))
    with pytest.raises(ConfigError, match="onnxruntime cannot load it"):
        OnnxModel(folder / "m.onnx")


async def test_texts_of_different_lengths_are_padded_without_being_told() -> None:
    """A real encoder: its mask is found, padding shown to be harmless, and answers are as alone."""
    from headway.models.ready.embed import MINILM_WEIGHTS

    if not MINILM_WEIGHTS.is_installed:
        pytest.skip(f"the weights are not installed: {MINILM_WEIGHTS.requirement}")
    model = OnnxModel(MINILM_WEIGHTS.find() / "onnx" / "model.onnx")
    recorder, rng = Recorder(), numpy.random.default_rng(0)
    values = [
        {
            "input_ids": rng.integers(1000, 20_000, (1, length)),
            "attention_mask": numpy.ones((1, length), numpy.int64),
            "token_type_ids": numpy.zeros((1, length), numpy.int64),
        }
        for length in (5, 30, 17, 9)
    ]
    async with Batcher[Any, Any](model, compose="fifo", observers=[recorder]) as batcher:
        alone = [await batcher.submit(value) for value in values]
        batched = await asyncio.gather(*(batcher.submit(value) for value in values))
    assert recorder.batches[-1].batch.rows == 4
    for one, other, value in zip(alone, batched, values, strict=True):
        state, same = one["last_hidden_state"], other["last_hidden_state"]
        assert same.shape == (1, value["input_ids"].shape[1], 384)
        numpy.testing.assert_allclose(state, same, atol=1e-4)
