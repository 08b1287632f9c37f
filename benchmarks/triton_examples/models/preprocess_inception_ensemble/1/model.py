"""The same for the bytes of an image file."""

import io
from typing import Any

import numpy
from PIL import Image

import headway


class Ensemble(headway.TensorModel):
    inputs = [headway.Tensor("INPUT", "object", (-1, 1))]
    outputs = [headway.Tensor("OUTPUT", "float32", (-1, 3))]
    labels = {"OUTPUT": ["red", "green", "blue"]}

    def predict(self, batch: Any) -> Any:
        images = [Image.open(io.BytesIO(each)).convert("RGB") for (each,) in batch["INPUT"]]
        means = [numpy.asarray(image, numpy.float32).mean(axis=(0, 1)) for image in images]
        return {"OUTPUT": numpy.stack(means)}
