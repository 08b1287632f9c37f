"""The same over numbers that are written out."""

from typing import Any

import numpy

import headway


class Simple(headway.TensorModel):
    inputs = [headway.Tensor(name, "object", (-1, 16)) for name in ("INPUT0", "INPUT1")]
    outputs = [headway.Tensor(name, "object", (-1, 16)) for name in ("OUTPUT0", "OUTPUT1")]

    def predict(self, batch: Any) -> Any:
        first, second = batch["INPUT0"].astype(int), batch["INPUT1"].astype(int)
        return {"OUTPUT0": written(first + second), "OUTPUT1": written(first - second)}


def written(numbers: Any) -> Any:
    return numpy.array([[b"%d" % each for each in row] for row in numbers], object)
