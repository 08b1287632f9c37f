"""What mosec runs: the same bodies and the same models as ours."""

from typing import Any

import numpy
from mosec import Worker

from benchmarks.served import DECODER, answer_of, encode_answer, sleep_for


class Zero(Worker):  # type: ignore[misc]
    """With mosec's own JSON, as its documentation shows it."""

    def forward(self, data: list[Any]) -> list[Any]:
        batch = numpy.array([each["inputs"][0]["data"] for each in data], numpy.float32)
        self.run_model(len(batch))
        return [answer_of(row) for row in batch.tolist()]

    def run_model(self, rows: int) -> None:
        pass


class Sleep(Zero):
    def run_model(self, rows: int) -> None:
        sleep_for(rows)


class Records(Worker):  # type: ignore[misc]
    """With mosec's own JSON; nothing is checked."""

    def forward(self, data: list[Any]) -> list[Any]:
        return [{"y": each["x"]} for each in data]


class Embed(Worker):  # type: ignore[misc]
    """The same MiniLM, on batches in order of arrival."""

    def __init__(self) -> None:
        from headway.models.ready.embed import MiniLM

        self._model = MiniLM()
        self._model.setup()
        self._model.load()

    def forward(self, data: list[Any]) -> list[Any]:
        items = [self._model.prepare(each["input"]) for each in data]
        return [{"embedding": vector.values.tolist()} for vector in self._model.predict(items)]


class FastZero(Worker):  # type: ignore[misc]
    """With msgspec in place of mosec's own JSON: what an expert would write."""

    def deserialize(self, data: bytes) -> Any:
        return DECODER.decode(data).inputs[0].data

    def serialize(self, data: Any) -> bytes:
        return encode_answer(data)

    def forward(self, data: list[Any]) -> list[Any]:
        batch = numpy.array(data, numpy.float32)
        self.run_model(len(batch))
        rows: list[Any] = batch.tolist()
        return rows

    def run_model(self, rows: int) -> None:
        pass


class FastSleep(FastZero):
    def run_model(self, rows: int) -> None:
        sleep_for(rows)
