"""FastAPI's HTTPException of 400 to 499 becomes the caller's error. It is known by its attributes:
neither FastAPI nor Starlette need be installed."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from headway.errors import (
    Forbidden,
    HeadwayError,
    InvalidInput,
    NotFound,
    QuotaExceeded,
    RequestError,
    Unauthenticated,
    Unavailable,
    Unprocessable,
)

_ERRORS: Mapping[int, Callable[[str], HeadwayError]] = {
    403: Forbidden,
    404: NotFound,
    422: Unprocessable,
}


@contextmanager
def refusing() -> Iterator[None]:
    """Runs user code. Raises the refusal in place of the HTTPException."""
    try:
        yield
    except Exception as error:  # user code
        refusal = refusal_of(error)
        if refusal is None:
            raise
        raise refusal from error


def own_refusal(error: Exception) -> HeadwayError | None:
    """The error for one request's result; None: the error may concern the other requests, too."""
    return error if isinstance(error, RequestError | Unavailable) else refusal_of(error)


def refusal_of(error: Exception) -> HeadwayError | None:
    """None: it does not say that the request was wrong. An error of a client library that the
    model uses has a `status_code`, too, but no `detail`: that is not about this request."""
    status, detail = getattr(error, "status_code", None), getattr(error, "detail", None)
    if not isinstance(status, int) or isinstance(status, bool) or detail is None:
        return None
    if not 400 <= status <= 499:
        return None
    text = detail if isinstance(detail, str) else json.dumps(detail, default=str)
    refusal = _refusal(int(status), text, getattr(error, "headers", None))
    refusal.__cause__ = error
    return refusal


def _refusal(status: int, text: str, headers: object) -> HeadwayError:
    if status == 401:
        return Unauthenticated(text, needs_key=False)
    if status == 429:
        return QuotaExceeded(text, retry_after_s=_retry_after_s(headers))
    return _ERRORS.get(status, InvalidInput)(text)


def _retry_after_s(headers: object) -> float | None:
    """None: not given, or not a number of seconds."""
    if not isinstance(headers, Mapping):
        return None
    for name, value in headers.items():
        if str(name).lower() == "retry-after":
            try:
                seconds = float(value)
            except (TypeError, ValueError):
                return None
            return seconds if math.isfinite(seconds) and seconds >= 0 else None
    return None
