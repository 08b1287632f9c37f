"""An error in Anthropic's words. Its status: `server/service/errors.py`."""

from typing import Any

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
