"""An error in the words of OpenAI, Anthropic or Triton, whose clients look for them. Its status:
`server/service/errors.py`."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headway.errors import HeadwayError, InvalidInput


def openai_error(status: int, message: str, *, code: str, param: str | None) -> dict[str, Any]:
    """The object under `error`."""
    if status == 404 and code == "unknown_model":
        code = "model_not_found"
    return {"message": message, "type": _openai_type(status), "param": param, "code": code}


def _openai_type(status: int) -> str:
    match status:
        case 401:
            return "authentication_error"
        case 403:
            return "permission_error"
        case 429:
            return "rate_limit_error"
        case 503:
            return "overloaded_error"
        case _:
            return "invalid_request_error" if status < 500 else "server_error"


_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def anthropic_error(status: int, message: str, *, code: str) -> dict[str, Any]:
    """The whole body, and the data of an `error` event."""
    if code == "context_length_exceeded":  # agents look for these words, and shorten the chat
        message = f"prompt is too long: {message}"
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


_UNKNOWN = "Request for unknown model: "
_NOT_LOADED = "failed to load"


def in_tritons_words(code: str, message: str) -> str:
    if code == "unknown_model" and not message.startswith(_NOT_LOADED):
        return _UNKNOWN + message
    return message


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Put Triton's words before the message of an error that keeps a model from being loaded."""
    try:
        yield
    except HeadwayError as error:
        if not str(error).startswith(_NOT_LOADED):
            error.args = (f"{_NOT_LOADED} {name!r}: {error}",)
        raise


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """`names`: patterns of OpenAI's fields, as errors begin with them, and the dialect's own. The
    first that fits counts."""
    try:
        yield
    except InvalidInput as error:
        text = str(error)
        for pattern, own in names.items():
            said, found = re.subn(rf"\A{pattern}(?=[:.\[])", own, text, count=1)
            if found:
                raise type(error)(said) from error.__cause__
        raise
