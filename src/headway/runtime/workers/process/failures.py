"""An exception on its way from the model's process to its callers."""

import pickle
import traceback
from typing import Any, NamedTuple

from headway.runtime.calling.faults import UnreadableError, name_of, readable, text_of

_MOST_CHARACTERS = 20_000  # of a traceback
_MOST_BYTES = 64 * 2**10


class Failure(NamedTuple):
    """An exception in transit, if it cannot be pickled itself."""

    type_name: str
    text: str
    traceback: str
    pickled: bytes | None  # the exception itself; None: it cannot be pickled


class RemoteError(Exception):
    """Replaces an exception that exists only in the model's process; its class has that name."""


def failure_of(error: BaseException) -> Failure:
    """The failure to send for an exception. Never raises: an exception is user code, too."""
    name, text, error = name_of(error), text_of(error), readable(error)
    return Failure(
        name,
        text,
        "".join(traceback.format_exception(error))[-_MOST_CHARACTERS:],
        None if type(error) is UnreadableError else _pickled(error),
    )


def error_of(failure: Failure) -> BaseException:
    """The exception, made again in the batcher's process, with the traceback as a note."""
    error = _unpickled(failure) or type(failure.type_name, (RemoteError,), {})(failure.text)
    error.add_note(f"in the worker process:\n{failure.traceback}")
    return error


def _pickled(error: BaseException) -> bytes | None:
    """None if it cannot be unpickled (many constructors need more arguments), or is too large:
    it may carry a batch or a model."""
    try:
        data = pickle.dumps(error, 5)
        if len(data) > _MOST_BYTES:
            return None
        same: Any = pickle.loads(data)
        return data if type(same) is type(error) and str(same) == str(error) else None
    except BaseException:  # noqa: BLE001  as above
        return None


def _unpickled(failure: Failure) -> BaseException | None:
    if failure.pickled is None:
        return None
    try:
        error = pickle.loads(failure.pickled)
    except BaseException:  # noqa: BLE001  its class cannot be imported here, or its __init__ raises
        return None
    return error if isinstance(error, BaseException) else None
