"""Each number of a sequence; the first is one more."""

from typing import Any

import headway


class Sequence(headway.TensorModel):
    inputs = [headway.Tensor("INPUT", "int32", (-1, 1))]
    outputs = [headway.Tensor("OUTPUT", "int32", (-1, 1))]
    batch_parameters = ["sequence_id", "sequence_start", "sequence_end"]

    def predict(
        self,
        batch: Any,
        *,
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
    ) -> Any:
        return {"OUTPUT": batch["INPUT"] + int(sequence_start)}
