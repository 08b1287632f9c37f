"""Which error is which status: the only place that knows, for HTTP and for gRPC."""

import math
import re
from typing import NamedTuple

from headway import errors


class Status(NamedTuple):
    http: int
    grpc: str  # a name of grpc.StatusCode, so that this file needs no grpc


_STATUS: dict[type[errors.HeadwayError], Status] = {
    errors.InvalidInput: Status(400, "INVALID_ARGUMENT"),
    errors.Unauthenticated: Status(401, "UNAUTHENTICATED"),
    errors.Forbidden: Status(403, "PERMISSION_DENIED"),
    errors.UnknownModel: Status(404, "NOT_FOUND"),
    errors.InputTooLarge: Status(413, "INVALID_ARGUMENT"),
    errors.Poison: Status(422, "INVALID_ARGUMENT"),
    errors.RequestError: Status(400, "INVALID_ARGUMENT"),
    errors.QuotaExceeded: Status(429, "RESOURCE_EXHAUSTED"),
    errors.DeadlineExceeded: Status(504, "DEADLINE_EXCEEDED"),
    errors.Unavailable: Status(503, "UNAVAILABLE"),
    errors.ModelFailed: Status(500, "INTERNAL"),
}
INTERNAL = Status(500, "INTERNAL")


def status_of(error: BaseException) -> Status:
    for kind in type(error).__mro__:
        status = _STATUS.get(kind)
        if status is not None:
            return status
    return INTERNAL


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
    """Whole seconds for a `Retry-After` header, where coming back later may help."""
    if isinstance(error, errors.DeadlineExceeded) or not isinstance(error, errors.Unavailable):
        return None
    # Upwards: who comes back when it was told to must not be told so again.
    return max(1, math.ceil(round(error.retry_after_s or 1.0, 6)))


def headers_of(error: BaseException) -> tuple[tuple[str, str], ...]:
    """What an error says in headers: when to come back, or how to say who one is."""
    if isinstance(error, errors.Unauthenticated):
        return (("WWW-Authenticate", 'Bearer realm="headway"'),)
    seconds = retry_after_s(error)
    return () if seconds is None else (("Retry-After", str(seconds)),)
