"""The plain JSON route: one value in, one result out, for models written in Python.

`POST /v1/predict/{model}` with `3.0`, `"text"` or `{…}` answers the result; with
`{"items": […]}` it answers `{"results": […]}`, each a result or `{"error": …}`. Parameters for the
model stand in the query: `?language=de`.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Literal
from urllib.parse import parse_qsl

import msgspec

from headway.errors import HeadwayError, InvalidInput, ModelFailed
from headway.hosting.registry import Ask, ServedModel
from headway.server.api.v2.asking import ask_of, find_or_wake
from headway.server.api.v2.tensors import too_many_rows
from headway.server.inference import Inference
from headway.server.json.body import decode_json
from headway.server.json.encoding import encode_json
from headway.server.net.messages import Request, Response
from headway.server.net.plain_json import plain_of

ROUTES: list[tuple[Literal["GET", "POST"], str, str]] = [
    ("POST", "/v1/predict/{model}", "predict"),
]
_NO_PARAMETERS: dict[str, str] = {}
_NOT_JSON = (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError)


class Plain:
    """The handlers that ROUTES names, over one service."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference

    async def predict(self, request: Request, model: str) -> Response:
        served = await find_or_wake(self._inference, request, model)
        try:
            value = await decode_json(request)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            is_what = f"not JSON: {error}" if request.body else "empty: JSON is expected"
            raise InvalidInput(f"the body is {is_what}") from error
        ask = ask_of(_parameters(request.query), request)
        if isinstance(value, dict) and value.keys() == {"items"}:
            results = await _answer_items(served, value["items"], ask, self._inference.limits.rows)
            answer = Response(await _encoded({"results": results}, _plain_or_error))
        else:
            answer = Response(await _encoded(await served.predict(value, ask), plain_of))
        if ask.story is not None:
            answer.headers = ask.story.headers()
        return answer


def _parameters(query: str) -> dict[str, str]:
    """For the model, from `?language=de`."""
    if not query:
        return _NO_PARAMETERS
    pairs = parse_qsl(query, keep_blank_values=True)
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise InvalidInput(f"query parameter {twice!r} is given twice")
    return found


async def _answer_items(served: ServedModel, items: Any, ask: Ask, max_rows: int) -> list[Any]:
    if not isinstance(items, list):
        raise InvalidInput("items: a list is expected")
    if len(items) > max_rows:
        raise too_many_rows(len(items), max_rows)
    return await served.predict_many(items, ask, keep_errors=True)


def _plain_or_error(value: Any) -> Any:
    """For results that may stand beside errors: one that failed is told in its place."""
    return {"error": str(value)} if isinstance(value, HeadwayError) else plain_of(value)


def json_of(result: Any) -> bytes:
    """A result as it goes out; arrays are lists."""
    try:
        return msgspec.json.encode(result, enc_hook=plain_of)
    except _NOT_JSON as error:
        raise ModelFailed(f"the result is not JSON: {error}") from error


async def _encoded(result: Any, hook: Callable[[Any], Any]) -> bytes:
    """The same, whatever its size."""
    try:
        return await encode_json(result, hook)
    except _NOT_JSON as error:
        raise ModelFailed(f"the result is not JSON: {error}") from error
