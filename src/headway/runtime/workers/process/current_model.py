"""The model of the worker that this thread belongs to: jobs call it instead of the model."""

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.runtime.workers.process.handle import ModelProcess


class _Here(threading.local):
    process: "Callable[[], ModelProcess]"  # raises WorkerLost if there is none


_here = _Here()


def settle(process: "Callable[[], ModelProcess]") -> None:
    """This thread is a worker's; `process` returns its process."""
    _here.process = process


def process() -> "ModelProcess":
    """The process of this thread's worker. Raises WorkerLost if there is none."""
    return _here.process()


def predict(value: Any, /, **keywords: Any) -> Any:
    return _here.process().predict(value, **keywords)


def stream(value: Any, /, **keywords: Any) -> Iterator[Any]:
    return _here.process().stream(value, **keywords)
