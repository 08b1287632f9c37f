"""In the place of an image classifier: the brightness of each colour, among 1001 classes."""

from typing import Any

import numpy

import headway


class Classifier(headway.TensorModel):
    inputs = [headway.Tensor("input", "float32", (-1, 299, 299, 3))]
    outputs = [headway.Tensor("InceptionV3/Predictions/Softmax", "float32", (-1, 1001))]
    labels = {"InceptionV3/Predictions/Softmax": ["red", "green", "blue", *["nothing"] * 998]}

    def predict(self, batch: Any) -> Any:
        scores = numpy.zeros((len(batch["input"]), 1001), numpy.float32)
        scores[:, :3] = batch["input"].mean(axis=(1, 2))
        return {"InceptionV3/Predictions/Softmax": scores}
