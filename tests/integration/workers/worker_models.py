"""Models that a worker process imports: well-behaved ones, and ones that do as their input says."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy

import headway

KEPT: list[Any] = []


def double(numbers: list[int]) -> list[int]:
    return [2 * number for number in numbers]


async def double_later(numbers: list[int]) -> list[int]:
    return [2 * number for number in numbers]


@headway.batched(worker="process")
def triple(numbers: list[int]) -> list[int]:
    return [3 * number for number in numbers]


class OddError(Exception):
    """One that cannot be made from its text alone."""

    def __init__(self, number: int, unit: str) -> None:
        super().__init__(f"{number} {unit}")


class Unsendable:
    def __reduce__(self) -> Any:
        raise TypeError("not for sending")


class Obeying(headway.Model[Any, Any]):
    """Does what an item says; else answers with the item and its process."""

    def load(self) -> None:
        self.calls = 0

    def predict(self, items: list[Any]) -> list[Any]:
        self.calls += 1
        return [self._obey(item) for item in items]

    def _obey(self, item: Any) -> Any:  # noqa: C901  a list
        match item:
            case "segfault":
                ctypes.string_at(0)
            case "exit":
                os._exit(3)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "hang":
                threading.Event().wait()
            case "hold the lock":
                ctypes.PyDLL(None).sleep(3600)
            case "sys.exit":
                sys.exit(4)
            case "odd":
                raise OddError(3, "feet")
            case "value":
                raise ValueError("a bad value")
            case "odd result":
                return OddError(5, "feet")
            case "unsendable":
                return Unsendable()
            case "memory":
                return len(bytearray(1 << 30))
            case "leak":
                self.leaked = [*getattr(self, "leaked", []), bytearray(64 << 20)]
                return "leaked"
            case "calls":
                return self.calls
            case "cores":
                return sorted(os.sched_getaffinity(0))
            case "device":
                return os.environ.get("CUDA_VISIBLE_DEVICES")
            case "print":
                sys.stdout.write("hello from the worker\n")
                sys.stderr.write("and from its stderr\n")
        return item, os.getpid()


class BrokenLoad(headway.Model[int, int]):
    def load(self) -> None:
        raise FileNotFoundError("no weights here")


class ExitingLoad(headway.Model[int, int]):
    def load(self) -> None:
        os._exit(7)


class HangingLoad(headway.Model[int, int]):
    def load(self) -> None:
        sys.stdout.write("loading\n")
        threading.Event().wait()


class OnceLoad(headway.Model[Any, Any]):
    """Loads as long as a file is there."""

    def __init__(self, path: str) -> None:
        self.path = path

    def load(self) -> None:
        if not os.path.exists(self.path):
            raise FileNotFoundError(self.path)

    def predict(self, items: list[Any]) -> list[Any]:
        if "exit" in items:
            os._exit(3)
        return items


class Echo(headway.TensorModel):
    """Its outputs are its inputs; it may keep them."""

    inputs = (headway.Tensor("x", "int64", (-1, -1)),)
    outputs = (headway.Tensor("y", "int64", (-1, -1)),)

    def predict(self, batch: "dict[str, numpy.ndarray[Any, Any]]") -> Any:
        return {"y": batch["x"]}


class Keeping(headway.TensorModel):
    """Answers with the sums of all batches that it has kept."""

    inputs = (headway.Tensor("x", "int64", (-1, -1)),)
    outputs = (headway.Tensor("sums", "int64", (-1, -1)),)

    def predict(self, batch: "dict[str, numpy.ndarray[Any, Any]]") -> Any:
        KEPT.append(batch["x"])
        sums = numpy.array([[kept[0, 0] for kept in KEPT]])
        return {"sums": numpy.repeat(sums, len(batch["x"]), axis=0)}


class Counting(headway.Model[int, int]):
    """Streams numbers; a negative one among the items ends the process at the third step."""

    def predict(self, items: list[int]) -> list[int]:
        return items

    def stream(self, items: list[int]) -> Iterator[list[Any]]:
        for number in range(max(map(abs, items)) + 1):
            if min(items) < 0 and number == 2:
                os._exit(1)
            yield [number if number < abs(item) else headway.END for item in items]


class CountingLater(headway.Model[int, int]):
    async def stream(self, items: list[int]) -> AsyncIterator[list[Any]]:
        for number in range(max(items) + 1):
            yield [number if number < item else headway.END for item in items]


class Patient(headway.Model[str, Any]):
    """Computes for as long as anybody waits, and tells how often nobody did in the end."""

    def load(self) -> None:
        self.unwanted = 0

    def predict(self, items: list[str], *, cancel: headway.Cancel) -> list[Any]:
        if items == ["how often"]:
            return [self.unwanted]
        while not cancel.is_set:
            time.sleep(0.001)
        self.unwanted += 1
        return items

    def stream(self, items: list[str], *, cancel: headway.Cancel) -> Iterator[list[Any]]:
        try:
            yield ["begun"] * len(items)
            while not cancel.is_set:
                time.sleep(0.001)
        finally:  # it may be closed right there
            self.unwanted += 1


class SlowLoad(headway.Model[Any, Any]):
    def load(self) -> None:
        time.sleep(0.1)

    def predict(self, items: list[Any]) -> list[Any]:
        time.sleep(0.002)
        return items
