"""Every exception Headway raises. The classes say who is at fault:

HeadwayError
├── ConfigError             the process must not start (exit 2)
├── RequestError            the caller must change the request
│   ├── InvalidInput
│   │   └── ContextLengthExceeded
│   ├── UnknownModel, InputTooLarge, Poison, NotFound, Unprocessable
│   └── Unauthenticated, Forbidden
├── Unavailable             the request was fine; later may work (Retry-After)
│   ├── QueueFull, Shed, NotReady, Closed, QuotaExceeded
│   └── DeadlineExceeded
├── NotInstalled            the request was fine; this server lacks a library for it
└── ModelFailed             the model raised (__cause__) or broke its contract

Errors carry fields, not only text: an error about a limit has `error.limit`, one that a later
attempt may cure has `error.retry_after_s`.
"""

import difflib
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar

E = TypeVar("E", bound=BaseException)
_MOST_CAUSES = 16
_TRACEBACK, _CONTEXT, _CAUSE = (
    vars(BaseException)[name] for name in ("__traceback__", "__context__", "__cause__")
)


class HeadwayError(Exception):
    """The root of every error of ours."""

    code: ClassVar[str] = "error"  # one word, stable: it travels on the wire and in metrics

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors are pickled with all their fields: some constructors take fields by name only."""
        return _made_again, (type(self), self.args, self.__dict__)

    def with_text(self, text: str) -> "HeadwayError":
        """A copy of this error with another text."""
        return _made_again(type(self), (text,), self.__dict__)


def _made_again(
    kind: type[HeadwayError], args: tuple[Any, ...], fields: dict[str, Any]
) -> HeadwayError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class ConfigError(HeadwayError):
    """A setting is wrong. The message starts with the setting's name."""

    code = "config"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


class RequestError(HeadwayError):
    """The request itself is at fault: sent again unchanged, it fails again."""

    code = "request"


class InvalidInput(RequestError):
    code = "invalid_input"


class ContextLengthExceeded(InvalidInput):
    """A prompt is too long for its model: InputTooLarge, with the code and status that OpenAI's
    routes have for it."""

    code = "context_length_exceeded"


class UnknownModel(RequestError):
    code = "unknown_model"


class InputTooLarge(RequestError):
    code = "input_too_large"

    def __init__(self, message: str, *, limit: int) -> None:
        super().__init__(message)
        self.limit = limit


class Poison(RequestError):
    """A worker has died twice while it ran this input, or an equal one, alone."""

    code = "poison"


class NotFound(RequestError):
    """A model's own refusal: what the request asks for is not there."""

    code = "not_found"


class Unprocessable(RequestError):
    """A model's own refusal: it cannot use what the request holds."""

    code = "unprocessable"


class Unauthenticated(RequestError):
    """`needs_key`: whether a key of this server would help; False for a model's own refusal."""

    code = "unauthenticated"

    def __init__(self, message: str, *, needs_key: bool = True) -> None:
        super().__init__(message)
        self.needs_key = needs_key


class Forbidden(RequestError):
    code = "forbidden"


class Unavailable(HeadwayError):
    """The request was fine; the server could not take it now."""

    code = "unavailable"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotInstalled(HeadwayError):
    """The request was fine, but the server lacks a library for it: trying again changes nothing."""

    code = "not_installed"


class QueueFull(Unavailable):
    code = "queue_full"

    def __init__(self, message: str, *, limit: int, retry_after_s: float | None = None) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.limit = limit


class Shed(Unavailable):
    """The answer would have missed the SLO: it is refused early, so that others are in time."""

    code = "shed"


class NotReady(Unavailable):
    code = "not_ready"


class Closed(Unavailable):
    """The batcher stops or has stopped."""

    code = "closed"


class QuotaExceeded(Unavailable):
    code = "quota_exceeded"


class DeadlineExceeded(Unavailable):
    """The caller's own deadline has passed, or can no longer be met."""

    code = "deadline_exceeded"


class ModelFailed(HeadwayError):
    """The model raised (see `__cause__`) or broke its contract."""

    code = "model_failed"


def called(name: str) -> str:
    """An input as messages name it. Most models have one input, with a name that says nothing."""
    return "the input" if name == "input" else f"input {name!r}"


def without_frames(error: E, *, with_causes: bool = True) -> E:
    """The same error without its traceback, and without those of its causes and contexts: for an
    error that is kept or has been answered with, and is not raised again.

    A traceback holds every frame that the error came through, with a request's body and values.
    A frame that waited for the future which the error was set on holds the error in turn; such a
    cycle lives until the garbage collector runs, hundreds of requests later.
    """
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left and len(seen) < _MOST_CAUSES:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        _TRACEBACK.__set__(each, None)  # past what its class makes of an assignment
        if with_causes:  # both: an error raised `from` another, while a third was handled, has two
            left += (_CONTEXT.__get__(each), _CAUSE.__get__(each))
    return error


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: `; did you mean …?`, or nothing."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""
