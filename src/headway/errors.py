"""Every exception Headway raises. The tree says whose fault it is:

HeadwayError
├── ConfigError             the process must not start (exit 2)
├── RequestError            the caller must change the request
│   ├── InvalidInput
│   │   └── ContextLengthExceeded
│   ├── UnknownModel, InputTooLarge, Poison
│   └── Unauthenticated, Forbidden
├── Unavailable             the request was fine; later may work (Retry-After)
│   ├── QueueFull, Shed, NotReady, Closed, QuotaExceeded
│   └── DeadlineExceeded
└── ModelFailed             the model raised (__cause__) or broke its contract

Errors carry fields, not only text: an error that knows a limit has `error.limit`, one that
knows when to come back has `error.retry_after_s`.
"""

from typing import Any, ClassVar, TypeVar

E = TypeVar("E", bound=BaseException)
_MOST_CAUSES = 16


class HeadwayError(Exception):
    """The root of every error of ours."""

    code: ClassVar[str] = "error"  # one word, stable: it travels on the wire and in metrics

    def __reduce__(self) -> tuple[Any, ...]:
        """With its fields, which a constructor may want by name: errors cross processes."""
        return _made_again, (type(self), self.args, self.__dict__)


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
    """What is InputTooLarge elsewhere, in the word and with the status of OpenAI's routes."""

    code = "context_length_exceeded"


class UnknownModel(RequestError):
    code = "unknown_model"


class InputTooLarge(RequestError):
    code = "input_too_large"

    def __init__(self, message: str, *, limit: int) -> None:
        super().__init__(message)
        self.limit = limit


class Poison(RequestError):
    """This input, alone on a worker, has taken it down twice; or one equal to it has, lately."""

    code = "poison"


class Unauthenticated(RequestError):
    code = "unauthenticated"


class Forbidden(RequestError):
    code = "forbidden"


class Unavailable(HeadwayError):
    """The request was fine; the server could not take it now."""

    code = "unavailable"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFull(Unavailable):
    code = "queue_full"

    def __init__(self, message: str, *, limit: int, retry_after_s: float | None = None) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.limit = limit


class Shed(Unavailable):
    """It would have been late: refused early, so that others are not."""

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
    """As messages call an input: most models have one, whose name says nothing."""
    return "the input" if name == "input" else f"input {name!r}"


def without_frames(error: E, *, with_causes: bool = True) -> E:
    """An error that is kept or has been told, not raised on: the same, without its traceback.

    That holds every frame the error came through, and their callers', with a request's body and
    values in them; and it is held by them, where one of them waited for the future that the error
    was set on. Such a circle ends with a collection of garbage, hundreds of requests later.
    """
    found: BaseException | None = error
    for _ in range(_MOST_CAUSES if with_causes else 1):
        if found is None:
            break
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
    return error
