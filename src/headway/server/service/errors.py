"""The status and the text of each error, for HTTP and gRPC."""

import asyncio
import logging
import math
import re
import traceback
from typing import NamedTuple

from headway import errors
from headway.observe.tally import ErrorTally
from headway.runtime.calling.faults import readable

_log = logging.getLogger(__name__)


class ErrorStatus(NamedTuple):
    http: int
    grpc: str  # a name of gRPC's statuses


_STATUS: dict[type[errors.HeadwayError], ErrorStatus] = {
    errors.InvalidInput: ErrorStatus(400, "INVALID_ARGUMENT"),
    errors.Unauthenticated: ErrorStatus(401, "UNAUTHENTICATED"),
    errors.Forbidden: ErrorStatus(403, "PERMISSION_DENIED"),
    errors.UnknownModel: ErrorStatus(404, "NOT_FOUND"),
    errors.NotFound: ErrorStatus(404, "NOT_FOUND"),
    errors.InputTooLarge: ErrorStatus(413, "INVALID_ARGUMENT"),
    errors.Poison: ErrorStatus(422, "INVALID_ARGUMENT"),
    errors.Unprocessable: ErrorStatus(422, "INVALID_ARGUMENT"),
    errors.RequestError: ErrorStatus(400, "INVALID_ARGUMENT"),
    errors.QuotaExceeded: ErrorStatus(429, "RESOURCE_EXHAUSTED"),
    errors.DeadlineExceeded: ErrorStatus(504, "DEADLINE_EXCEEDED"),
    errors.QueueFull: ErrorStatus(503, "UNAVAILABLE"),
    errors.Unavailable: ErrorStatus(503, "UNAVAILABLE"),
    errors.NotInstalled: ErrorStatus(501, "UNIMPLEMENTED"),
    errors.ModelFailed: ErrorStatus(500, "INTERNAL"),
}
INTERNAL = ErrorStatus(500, "INTERNAL")


def status_of(error: BaseException) -> ErrorStatus:
    for kind in type(error).__mro__:
        status = _STATUS.get(kind)
        if status is not None:
            return status
    return INTERNAL


class ErrorReport(NamedTuple):
    """An error as its caller hears of it."""

    error: BaseException
    status: ErrorStatus
    code: str
    message: str


def tell(error: BaseException, tally: ErrorTally, *, debug: bool, **context: str) -> ErrorReport:
    """The report of an error. Only our own faults are logged, and only our own messages are passed
    on. `context`: whose error it was, for the log."""
    error = readable(error)
    if isinstance(error, asyncio.CancelledError):
        # What the handler waited for was cancelled, not the handler: its caller gets an answer.
        error = _because(errors.Closed("the work was cancelled"), error)
    status = status_of(error)
    is_ours = isinstance(error, errors.HeadwayError)
    code = error.code if isinstance(error, errors.HeadwayError) else "internal"
    tally.count(code)
    if not is_ours or status.http == 500:
        _log.error("a request failed", exc_info=error, extra=context)
    message = str(error) if is_ours else "internal error"
    if debug and (not is_ours or error.__cause__ is not None):
        message += "\n" + "".join(traceback.format_exception(error))
    # The causes of a failed batch are its other callers' as well.
    errors.without_frames(error, with_causes=is_ours and status.http != 500)
    return ErrorReport(error, status, code, message)


def _because(error: errors.Closed, cause: BaseException) -> errors.Closed:
    error.__cause__ = cause
    return error


_FIELD = re.compile(
    r"(?P<own>[a-z]\w*(\[\d+\])?(\.\w+(\[\d+\])?)*): "  # as our own messages begin
    r"|.*unknown field `(?P<unknown>\w+)`|.*required field `(?P<missing>\w+)`"  # as msgspec says it
    r"|.* - at `\$\.(?P<path>[\w.\[\]]+)`",
    re.DOTALL,
)


def param_of(error: BaseException) -> str | None:
    """The field that a request's error is about, where one is named."""
    if isinstance(error, errors.UnknownModel):
        return "model"
    if not isinstance(error, errors.InvalidInput):
        return None
    found = _FIELD.match(str(error))
    if found is None:
        return None
    return found["own"] or found["unknown"] or found["missing"] or found["path"]


def retry_after_s(error: BaseException) -> int | None:
    """Whole seconds for a `Retry-After` header, if trying again later may help."""
    if isinstance(error, errors.DeadlineExceeded) or not isinstance(error, errors.Unavailable):
        return None
    # Rounded up: a client that obeys Retry-After must not be refused again for it.
    return max(1, math.ceil(round(error.retry_after_s or 1.0, 6)))


def headers_of(error: BaseException) -> tuple[tuple[str, str], ...]:
    """The headers of an error's answer: when to try again, or how to authenticate."""
    if isinstance(error, errors.Unauthenticated) and error.needs_key:
        return (("WWW-Authenticate", 'Bearer realm="headway"'),)
    seconds = retry_after_s(error)
    return () if seconds is None else (("Retry-After", str(seconds)),)
