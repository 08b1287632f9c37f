"""Texts and other bytes, as they came."""

from typing import Any

import headway


class Identity(headway.TensorModel):
    inputs = [headway.Tensor("INPUT0", "object", (-1, -1))]
    outputs = [headway.Tensor("OUTPUT0", "object", (-1, -1))]

    def predict(self, batch: Any) -> Any:
        return {"OUTPUT0": batch["INPUT0"]}
