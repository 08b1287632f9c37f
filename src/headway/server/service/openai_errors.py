"""An error in OpenAI's words: its type and code. Its status: `server/service/errors.py`."""

from typing import Any


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
