"""What a model call may raise beside the model's own errors: the worker is gone, or the memory."""

import gc
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress

_LONGEST_CHAIN = 32
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

    Callers never see it. Their items run again, or are refused with an error that says why.
    """

    def __init__(self, reason: str, *, out_of_memory: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason  # for people: "killed by SIGKILL", "no answer for 30 s"
        self.out_of_memory = out_of_memory


def text_of(error: BaseException) -> str:
    """What it says. Never raises: an exception's `__str__` is user code."""
    try:
        return str(error)
    except Exception as again:  # noqa: BLE001  as it says
        return f"(its text cannot be made: {type(again).__name__})"


def is_out_of_memory(error: BaseException | None) -> bool:
    """Python's own, torch's and onnxruntime's way to say so, or an error that came of it."""
    return any(_says_so(each) for each in _chain(error))


def ended_out_of_memory(last_words: str) -> bool:
    """The same of a process, by what it wrote before it ended."""
    return any(sign in last_words for sign in (*_OUT_OF_MEMORY, *_LAST_WORDS))


def is_device_lost(error: BaseException | None) -> bool:
    """After most errors of CUDA nothing works any more in the process that had it."""
    signs = _DEVICE_LOST
    return not is_out_of_memory(error) and any(
        type(each).__name__ == "AcceleratorError" or any(sign in text_of(each) for sign in signs)
        for each in _chain(error)
    )


def _says_so(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = text_of(error)
    return any(sign in text for sign in _OUT_OF_MEMORY)


def release_memory(error: BaseException) -> None:
    """Let go of what the failed call held: its frames keep its arrays alive, torch its cache."""
    for each in _chain(error):
        traceback.clear_frames(each.__traceback__)
    gc.collect()
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        with suppress(Exception):  # after some errors nothing of CUDA works any more
            cuda.empty_cache()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what caused it, what caused that. (Bounded: user code may have tied a knot.)"""
    for _ in range(_LONGEST_CHAIN):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__
