"""Errors of a call that are not the model's own: a lost worker, or exhausted memory."""

import asyncio
import gc
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from headway.errors import HeadwayError

_LONGEST_CHAIN = 32
MOST_TEXT = 8192  # characters of an exception's text: it goes into answers, logs and events
_TEXT_END = 1024  # of which this many are kept from the end
_CLASS_NAME = vars(type)["__name__"].__get__
_TRACEBACK = vars(BaseException)["__traceback__"].__get__
_OUT_OF_MEMORY = (
    "Failed to allocate memory",  # onnxruntime
    "bad allocation",
    "std::bad_alloc",
    "can't allocate memory",  # torch on a CPU
    "not enough memory: you tried",  # the same on Windows
    "CUDA out of memory",
    "CUDA error: out of memory",
    "STATUS_ALLOC_FAILED",  # of CUDA's libraries
)
# Of a process that has ended: Python's own error, and what C++ and the kernel leave there.
_LAST_WORDS = ("MemoryError", "bad_alloc", "out of memory", "Cannot allocate memory")
_DEVICE_LOST = ("CUDA error", "CUDA driver error", "CUBLAS_STATUS_EXECUTION_FAILED")


class WorkerLost(Exception):
    """The worker ended, or was ended, while it had this batch: no result will come.

    Callers never see it. Their items run again, or are refused with an error that gives the reason.
    """

    def __init__(self, reason: str, *, out_of_memory: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason  # for people: "killed by SIGKILL", "no answer for 30 s"
        self.out_of_memory = out_of_memory


def is_error(result: Any) -> bool:
    """Is a model's result an item's error? Not by `isinstance`, which would run user code: the
    result's `__class__`, which may be a property, or that of a dead weak reference."""
    return issubclass(type(result), Exception)


def text_of(error: BaseException) -> str:
    """The error's text, shortened if it is long. Never raises: `__str__` is user code."""
    try:
        return shortened(str(error))
    except BaseException as again:  # noqa: BLE001  as it says
        return f"(its text cannot be made: {name_of(again)})"


def shortened(text: str) -> str:
    if len(text) <= MOST_TEXT:
        return text
    start, end = text[: MOST_TEXT - 2 * _TEXT_END], text[-_TEXT_END:]
    return f"{start} … ({len(text)} characters) … {end}"


def name_of(error: BaseException) -> str:
    """The name of the error's class, read past any metaclass, which may be user code."""
    name: str = _CLASS_NAME(type(error))
    return name


def readable(error: BaseException) -> BaseException:
    """The error, or a safe substitute. Everything that a model raises comes through here first: a
    `__class__` that raises would break `isinstance`, and a text of megabytes would be written once
    for each caller of the batch."""
    if type(error) is UnreadableError:
        return error
    try:
        is_plain = error.__class__ is type(error)
        text = str(error)
    except BaseException:  # noqa: BLE001  as above
        is_plain, text = False, ""
    if is_plain and len(text) <= MOST_TEXT:
        return error
    if is_plain and isinstance(error, HeadwayError):  # its kind must be kept: callers act on it
        return error.with_text(shortened(text))
    stand_in = UnreadableError(f"{name_of(error)}: {text_of(error)}")
    return stand_in.with_traceback(_TRACEBACK(error))


class UnreadableError(Exception):
    """Replaces a model's exception that cannot be inspected, or that has too long a text."""


def is_stopped(error: BaseException, task: "asyncio.Task[Any] | None") -> bool:
    """Was the call cancelled or closed from outside, or did user code raise such an error itself?
    `task`: the calling task; it is not running if its coroutine is being closed."""
    kind = type(error)
    if issubclass(kind, asyncio.CancelledError):
        return task is not None and task.cancelling() > 0
    return issubclass(kind, GeneratorExit) and running_task() is not task


def running_task() -> "asyncio.Task[Any] | None":
    return None if asyncio._get_running_loop() is None else asyncio.current_task()


def is_out_of_memory(error: BaseException | None) -> bool:
    """Is it, or was it caused by, an out-of-memory error of Python, torch or onnxruntime?"""
    return any(_says_so(each) for each in _chain(error))


def ended_out_of_memory(last_words: str) -> bool:
    """Did a process run out of memory, judging by its last output?"""
    return any(sign in last_words for sign in (*_OUT_OF_MEMORY, *_LAST_WORDS))


def is_device_lost(error: BaseException | None) -> bool:
    """Is CUDA unusable in this process from now on? It is after most of its errors."""
    signs = _DEVICE_LOST
    return not is_out_of_memory(error) and any(
        name_of(each) == "AcceleratorError" or any(sign in text_of(each) for sign in signs)
        for each in _chain(error)
    )


def _says_so(error: BaseException) -> bool:
    if issubclass(type(error), MemoryError) or name_of(error) == "OutOfMemoryError":
        return True
    text = text_of(error)
    return any(sign in text for sign in _OUT_OF_MEMORY)


def release_memory(error: BaseException) -> None:
    """Free the memory of the failed call: its frames hold arrays, and torch has a cache."""
    for each in _chain(error):
        traceback.clear_frames(each.__traceback__)
    gc.collect()
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        with suppress(Exception):  # after some errors CUDA is unusable
            cuda.empty_cache()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its chain of causes. (Bounded: user code may have made a cycle.)"""
    for _ in range(_LONGEST_CHAIN):
        if error is None:
            return
        yield error
        error = error.__context__ if error.__cause__ is None else error.__cause__
