"""What mosec runs: the same bodies and models as ours.

msgspec decodes and encodes them, which is faster than what mosec brings itself.
"""

from typing import Any

import numpy
from mosec import Worker

from benchmarks.served import DECODER, encode_answer, sleep_for


class Zero(Worker):  # type: ignore[misc]
    def deserialize(self, data: bytes) -> Any:
        return DECODER.decode(data).inputs[0].data

    def serialize(self, data: Any) -> bytes:
        return encode_answer(data)

    def forward(self, data: list[Any]) -> list[Any]:
        return numpy.array(data, numpy.float32).tolist()


class Sleep(Zero):
    def forward(self, data: list[Any]) -> list[Any]:
        batch = numpy.array(data, numpy.float32)
        sleep_for(len(batch))
        return batch.tolist()
