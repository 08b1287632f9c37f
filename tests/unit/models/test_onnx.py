"""ONNX files as tensor models, on the small ones that onnxruntime brings along."""

from pathlib import Path
from typing import Any

import numpy
import pytest

from headway import Batcher, ConfigError, InvalidInput, Tensor
from headway.backends.onnx import OnnxModel

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
