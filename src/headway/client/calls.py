"""Builds a client's requests and reads the answers. Pure: it knows no sockets and no clock.

One call becomes one HTTP request; an error's status and message become the exception that the
server raised. This also decides when to try again.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypedDict
from urllib.parse import quote, urlencode

from headway.errors import (
    Closed,
    DeadlineExceeded,
    Forbidden,
    HeadwayError,
    InputTooLarge,
    InvalidInput,
    ModelFailed,
    NotInstalled,
    NotReady,
    Poison,
    QuotaExceeded,
    RequestError,
    Shed,
    Unauthenticated,
    Unavailable,
    UnknownModel,
)

Priority = Literal["high", "normal", "low"]


class Asking(TypedDict, total=False):
    """The arguments that every call takes besides its value."""

    parameters: Mapping[str, Any] | None  # for the model: all that it takes
    deadline_ms: float | None
    priority: Priority | None


_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 30.0
_RETRIED = frozenset([429, 503])  # busy, not ready, over a quota: later may work
_ERRORS: dict[int, Callable[[str], HeadwayError]] = {
    400: InvalidInput,
    401: Unauthenticated,
    403: Forbidden,
    404: UnknownModel,
    422: Poison,
    500: ModelFailed,
    501: NotInstalled,
    504: DeadlineExceeded,
}
_BY_CODE = {
    kind.code: kind
    for kind in (InvalidInput, DeadlineExceeded, ModelFailed, Poison, Closed, NotReady, Shed)
}


@dataclass(frozen=True, slots=True)
class RequestOptions:
    deadline_ms: float | None = None
    priority: Priority | None = None
    tenant: str = ""
    key: str = ""

    def headers(self, left_s: float | None = None, *, of: Any = None) -> dict[str, str]:
        """`left_s`: the rest of the caller's time; of that and the deadline the shorter counts.
        `of`: the value that is sent; bytes are sent as they are."""
        times_ms = [] if self.deadline_ms is None else [self.deadline_ms]
        if left_s is not None:
            times_ms.append(max(left_s * 1e3, 1.0))
        is_file = isinstance(of, bytes)
        found = {"Content-Type": "application/octet-stream" if is_file else "application/json"}
        if times_ms:
            found["Headway-Timeout-Ms"] = f"{min(times_ms):.3f}"
        if self.priority is not None:
            found["Headway-Priority"] = self.priority
        if self.tenant:
            found["Headway-Tenant"] = self.tenant
        if self.key:
            found["Authorization"] = f"Bearer {self.key}"
        return found


@dataclass(frozen=True, slots=True)
class ClientAnswer:
    """An answer as it was received."""

    status: int
    body: bytes
    media_type: str = "application/json"
    retry_after: str | None = None
    load: str | None = None  # the server's, as it was asked for


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a call that was refused, or met no server, is tried again, and after how long."""

    most: int = 2

    def wait_s(
        self, attempt: int, answer: ClientAnswer | None, *, elsewhere: bool = False
    ) -> float | None:
        """The seconds before the next attempt; None: do not try again. `answer` is None if there
        was none; `elsewhere`: the next one is for another server, which has asked for no pause."""
        if attempt >= self.most or (answer is not None and answer.status not in _RETRIED):
            return None
        if elsewhere:
            return 0.0
        asked = None if answer is None else seconds_of(answer.retry_after)
        if asked is not None:
            return asked if asked <= _LONGEST_WAIT_S else None
        wait_s: float = min(_FIRST_WAIT_S * 2**attempt, _LONGEST_WAIT_S)
        return wait_s * random.uniform(0.5, 1.0)


@dataclass(frozen=True, slots=True)
class ClientCall:
    """An HTTP request, and how its answer is read."""

    method: Literal["GET", "POST"]
    path: str
    options: RequestOptions
    read: Callable[[ClientAnswer], Any]
    value: Any = None
    model: str = ""

    def request(self, left_s: float, *, is_stream: bool) -> dict[str, Any]:
        """The arguments for httpx. The server learns of `left_s`, the time that the caller still
        has; for a stream only of the call's own deadline, since a stream may last longer."""
        own = {"Accept-Encoding": "identity"}  # what is packed small may be large
        return {
            "method": self.method,
            "url": self.path,
            "content": body_of(self.value) if self.method == "POST" else None,
            "headers": own | self.options.headers(None if is_stream else left_s, of=self.value),
            "timeout": left_s,
        }


def predict(
    model: str, value: Any, returns: Any, asking: Asking, options: RequestOptions
) -> ClientCall:
    path = _predict_path(model, asking)
    read = lambda answer: result_of(answer, returns)  # noqa: E731
    return ClientCall("POST", path, options, read, value, model)


def predict_many(
    model: str, values: Sequence[Any], returns: Any, asking: Asking, options: RequestOptions
) -> ClientCall:
    path = _predict_path(model, asking, "/batch")
    items = {"items": list(values)}
    read = lambda answer: results_of(answer.body, returns)  # noqa: E731
    return ClientCall("POST", path, options, read, items, model)


def models(options: RequestOptions) -> ClientCall:
    return ClientCall("GET", "/v2/models", options, lambda answer: result_of(answer, Any)["models"])


def _predict_path(model: str, asking: Asking, end: str = "") -> str:
    path, parameters = f"/v1/predict/{quote(model, safe='')}{end}", asking.get("parameters")
    return f"{path}?{urlencode(_texts(parameters))}" if parameters else path


def body_of(value: Any) -> bytes:
    """The body for a value: bytes as they are; JSON of plain values, dataclasses, pydantic models
    and numpy arrays."""
    import msgspec

    return value if isinstance(value, bytes) else msgspec.json.encode(value, enc_hook=_plain)


def result_of(answer: ClientAnswer, returns: Any) -> Any:
    """A file as its bytes, anything else as `returns` says. Raises InvalidInput where the server
    answered with something else."""
    import msgspec

    body = answer.body
    if not answer.media_type.startswith("application/json"):
        return body
    try:
        return msgspec.json.decode(body, type=returns)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the answer is not of the type `returns`: {error}") from error


def results_of(body: bytes, returns: Any) -> list[Any]:
    """The results of several values. Raises the first error among them."""
    import msgspec

    found: Sequence[Any] = msgspec.json.decode(body)["results"]
    results = []
    for each in found:
        if isinstance(each, dict) and each.keys() == {"error"}:
            raise ModelFailed(str(each["error"]))
        results.append(each if returns is Any else msgspec.convert(each, returns))
    return results


def error_of(answer: ClientAnswer) -> HeadwayError:
    """The one that the server meant."""
    status = answer.status
    message = _message(answer.body) or f"HTTP {status}"
    after_s = seconds_of(answer.retry_after)
    if status == 413:
        return InputTooLarge(message, limit=0)
    if status == 429:
        return QuotaExceeded(message, retry_after_s=after_s)
    if status in _ERRORS:
        return _ERRORS[status](message)
    if status >= 500:
        return Unavailable(message, retry_after_s=after_s)
    return RequestError(message)


@contextmanager
def as_expected() -> Iterator[None]:
    """Reads an answer of a server that may be any program."""
    import msgspec

    try:
        yield
    except (msgspec.DecodeError, LookupError, TypeError, UnicodeError, RecursionError) as error:
        raise InvalidInput(f"the answer is not one of Headway's: {error!r:.200}") from error


class EventReader:
    """Server-sent events, line by line."""

    def __init__(self) -> None:
        self._is_error = False

    def read(self, line: str) -> list[Any]:
        """The chunk that a line carries, or none. Raises the stream's error."""
        with as_expected():
            return self._read(line)

    def _read(self, line: str) -> list[Any]:
        import msgspec

        name, _, text = line.partition(":")
        if name == "event":
            self._is_error = text.strip() == "error"
        if name != "data":
            return []
        found = msgspec.json.decode(text)
        if self._is_error:
            message, code = str(found["error"]), found.get("code", "")
            raise _BY_CODE.get(code, ModelFailed)(message)
        return [found]


def _message(body: bytes) -> str:
    """Plain routes say `{"error": text}`, OpenAI's an object with a message."""
    import msgspec

    try:
        error = msgspec.json.decode(body)["error"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return body[:500].decode("utf-8", "replace")
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def seconds_of(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:  # a date: nobody of ours sends one
        return None


def _texts(parameters: Mapping[str, Any]) -> dict[str, str]:
    import msgspec

    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in parameters.items()
    }


def _plain(value: Any) -> Any:
    for method in ("model_dump", "tolist"):  # pydantic's, numpy's
        if hasattr(value, method):
            return getattr(value, method)()
    raise TypeError(f"{type(value).__name__} has no JSON form")
