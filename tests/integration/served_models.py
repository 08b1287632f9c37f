"""The small models that the client tests are served with."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, TypeAlias, TypedDict

import numpy

import headway
from headway import Tensor

MOST_S = 20.0  # no test waits that long: a mistake ends as a failure, not as a hang
Vector: TypeAlias = Annotated[Any, Tensor("embedding", "float32", (-1, 4))]


class Double(headway.TensorModel):
    def __init__(self, width: int = 16) -> None:
        self.inputs = [Tensor("x", "float32", (-1, width))]
        self.outputs = [Tensor("y", "float32", (-1, width))]

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"y": batch["x"] * 2}


class Arithmetic(headway.TensorModel):
    """Two inputs, two outputs."""

    inputs: ClassVar = [Tensor("a", "int64", (-1, 2)), Tensor("b", "int64", (-1, 2))]
    outputs: ClassVar = [Tensor("sum", "int64", (-1, 2)), Tensor("difference", "int64", (-1, 2))]

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        a, b = batch["a"], batch["b"]
        return {"sum": a + b, "difference": a - b}


class Half(headway.TensorModel):
    inputs: ClassVar = [Tensor("x", "float16", (-1, 4))]
    outputs: ClassVar = [Tensor("y", "float16", (-1, 4))]

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"y": batch["x"] / 2}


class Upper(headway.Model[str, str]):
    def predict(self, items: list[str]) -> list[str]:
        return [item.upper() for item in items]


class Root(headway.Model[float, float]):
    """Fails on what has no root, and only for who asked for it."""

    def predict(self, items: list[float]) -> list[float]:
        for item in items:
            if item < 0:
                raise ValueError(f"{item} is a number without a root")
        return [item**0.5 for item in items]


class Letters(headway.Model[str, str]):
    """Streams one letter at a time; breaks off at an exclamation mark. A question mark is half of a
    surrogate pair."""

    def stream(self, items: list[str]) -> Iterator[list[Any]]:
        for step in range(max(map(len, items)) + 1):
            if any(item[step : step + 1] == "!" for item in items):
                raise ValueError("no shouting")
            yield [_letter(item, step) if step < len(item) else headway.END for item in items]


def _letter(item: str, step: int) -> str:
    return "\ud800" if item[step] == "?" else item[step]


class Gate(headway.Model[float, float]):
    """As slow as a test wants: a batch stands at a closed gate until it is opened."""

    last: ClassVar["Gate | None"] = None  # made in this process, for its gatekeeper

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.is_open = threading.Event()
        self.is_open.set()
        self.seen: list[Any] = []
        Gate.last = self

    def predict(self, items: list[float]) -> list[float]:
        self.pass_through(items)
        return items

    def pass_through(self, items: list[Any]) -> None:
        self.seen += items
        self.entered.set()
        assert self.is_open.wait(MOST_S), "nobody opened the gate"

    def close(self) -> None:
        self.entered.clear()
        self.is_open.clear()

    @contextmanager
    def closed(self) -> Iterator[None]:
        self.close()
        try:
            yield
        finally:
            self.is_open.set()


class Gatekeeper(headway.Model[str, bool]):
    """Works the gate of a server in another process."""

    def predict(self, items: list[str]) -> list[bool]:
        assert Gate.last is not None
        return [self._do(item, Gate.last) for item in items]

    def _do(self, what: str, gate: Gate) -> bool:
        match what:
            case "close":
                gate.close()
            case "wait":  # until a batch stands at the gate
                return gate.entered.wait(MOST_S)
            case "open":
                gate.is_open.set()
        return True


class Words(headway.Model[str, Vector]):
    """A text as a vector: v2, gRPC, OpenAI and plain JSON can all ask for it. May have a gate."""

    def __init__(self, gate: Gate | None = None) -> None:
        self.gate = gate

    def predict(self, items: list[str]) -> list[Vector]:
        if self.gate is not None:
            self.gate.pass_through(items)
        if "fail" in items:
            raise ValueError("this text makes it fail")
        if "refuse" in items:
            raise headway.InvalidInput("this text is not taken")
        return [vector_of(item) for item in items]


class FewWords(headway.TensorModel):
    """The same over tensors, where a request of many rows is one item."""

    inputs: ClassVar = [Tensor("input", "object", (-1,))]
    outputs: ClassVar = [Tensor("embedding", "float32", (-1, 4))]

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        texts = [each.decode() if isinstance(each, bytes) else each for each in batch["input"]]
        return {"embedding": numpy.stack([vector_of(text) for text in texts])}


class Flip(headway.TensorModel):
    """A byte a row."""

    inputs: ClassVar = [Tensor("x", "int8", (-1, 1))]
    outputs: ClassVar = [Tensor("y", "int8", (-1, 1))]

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"y": ~batch["x"]}


class Pair(TypedDict):
    query: str
    document: str


class Pairs(headway.Model[Pair, float]):
    """How many letters of the query are in the document."""

    def predict(self, items: list[Pair]) -> list[float]:
        return [
            float(sum(letter in item["document"] for letter in item["query"])) for item in items
        ]


def vector_of(text: str) -> Any:
    return numpy.array([len(text), text.count("a"), text.count("b"), 1], numpy.float32)


class Stubborn(headway.Model[float, float]):
    """Never comes back from a number below zero."""

    def predict(self, items: list[float]) -> list[float]:
        if min(items) < 0:
            threading.Event().wait()
        return items


class Crashing(headway.Model[float, float]):
    """A number below zero breaks this process's schedulers, as a bug of ours would."""

    def predict(self, items: list[float]) -> list[float]:
        if min(items) < 0:
            from headway.core.batching.scheduler import Scheduler

            def broken(*_: Any, **__: Any) -> None:
                raise RuntimeError("a bug")

            Scheduler.finish = broken  # type: ignore[method-assign]
        return items


class Unloadable(headway.Model[float, float]):
    def load(self) -> None:
        raise OSError("torn")

    def predict(self, items: list[float]) -> list[float]:
        return items
