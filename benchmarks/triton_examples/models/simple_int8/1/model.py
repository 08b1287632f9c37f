"""The same over small numbers."""

from typing import Any

import headway


class Simple(headway.TensorModel):
    inputs = [headway.Tensor(name, "int8", (-1, 16)) for name in ("INPUT0", "INPUT1")]
    outputs = [headway.Tensor(name, "int8", (-1, 16)) for name in ("OUTPUT0", "OUTPUT1")]

    def predict(self, batch: Any) -> Any:
        first, second = batch["INPUT0"], batch["INPUT1"]
        return {"OUTPUT0": first + second, "OUTPUT1": first - second}
