"""The sum of a sequence so far; at its end, its number is added."""

from typing import Any

import numpy

import headway


class Sequence(headway.TensorModel):
    inputs = [headway.Tensor("INPUT", "int32", (-1, 1))]
    outputs = [headway.Tensor("OUTPUT", "int32", (-1, 1))]
    batch_parameters = ["sequence_id", "sequence_start", "sequence_end"]
    rerun = False  # a sum must not be added to twice

    def load(self) -> None:
        self.sums: dict[int | str, int] = {}

    def predict(
        self,
        batch: Any,
        *,
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
    ) -> Any:
        if sequence_start:
            self.sums[sequence_id] = 0
        sums = self.sums.get(sequence_id, 0) + numpy.cumsum(batch["INPUT"], axis=0)
        self.sums[sequence_id] = int(sums[-1, 0])
        if sequence_end:
            del self.sums[sequence_id]
            sums[-1] += int(sequence_id)
        return {"OUTPUT": sums.astype(numpy.int32)}
