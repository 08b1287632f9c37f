"""The small models that the client tests are served with."""

import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import headway
from headway import Tensor

_entered = threading.Event()
_open = threading.Event()
_open.set()
_MOST_S = 20.0  # no test waits that long: a mistake ends as a failure, not as a hang


class Double(headway.TensorModel):
    inputs: ClassVar = [Tensor("x", "float32", (-1, 16))]
    outputs: ClassVar = [Tensor("y", "float32", (-1, 16))]

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
                raise ValueError(f"secret detail: {item} is negative")
        return [item**0.5 for item in items]


class Letters(headway.Model[str, str]):
    """Streams one letter at a time; breaks off at an exclamation mark."""

    def stream(self, items: list[str]) -> Iterator[list[Any]]:
        for step in range(max(map(len, items)) + 1):
            if any(item[step : step + 1] == "!" for item in items):
                raise ValueError("no shouting")
            yield [item[step] if step < len(item) else headway.END for item in items]


class Gate(headway.Model[float, float]):
    """As slow as a test wants: runs until the gatekeeper opens it."""

    def predict(self, items: list[float]) -> list[float]:
        _entered.set()
        assert _open.wait(_MOST_S), "nobody opened the gate"
        return items


class Gatekeeper(headway.Model[str, bool]):
    def predict(self, items: list[str]) -> list[bool]:
        return [self._do(item) for item in items]

    def _do(self, what: str) -> bool:
        match what:
            case "close":
                _open.clear()
                _entered.clear()
            case "wait":  # until a batch stands at the gate
                return _entered.wait(_MOST_S)
            case "open":
                _open.set()
        return True
