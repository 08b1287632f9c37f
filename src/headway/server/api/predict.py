"""The plain JSON route: one value in, one result out, for models written in Python.

`POST /v1/predict/{model}` with `3.0`, `"text"` or `{…}` answers the result; with
`{"items": […]}` it answers `{"results": […]}`, each a result or `{"error": …}`. Parameters for the
model stand in the query: `?language=de`.
"""

from typing import Any, Literal
from urllib.parse import parse_qsl

import msgspec
import numpy

from headway.errors import HeadwayError, InvalidInput, ModelFailed
from headway.hosting.registry import Ask, Registry, ServedModel
from headway.server.api.v2.asking import ask_of, find_or_wake
from headway.server.api.v2.tensors import NORMAL, too_many_rows
from headway.server.net.messages import Request, Response

ROUTES: list[tuple[Literal["GET", "POST"], str, str]] = [
    ("POST", "/v1/predict/{model}", "predict"),
]
_NO_PARAMETERS: dict[str, str] = {}


class Plain:
    """The handlers that ROUTES names, over one registry."""

    def __init__(self, registry: Registry, *, max_rows: int = NORMAL.rows) -> None:
        self._registry = registry
        self._max_rows = max_rows

    async def predict(self, request: Request, model: str) -> Response:
        served = await find_or_wake(self._registry, request, model)
        try:
            value = msgspec.json.decode(request.body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            is_what = f"not JSON: {error}" if request.body else "empty: JSON is expected"
            raise InvalidInput(f"the body is {is_what}") from error
        ask = ask_of(_parameters(request.query), request.headers)
        answer = Response(json_of(await _answer(served, value, ask, self._max_rows)))
        if ask.story is not None:
            answer.headers = ask.story.headers()
        return answer


def _parameters(query: str) -> dict[str, str]:
    """For the model, from `?language=de`; of one given twice the last counts."""
    return dict(parse_qsl(query, keep_blank_values=True)) if query else _NO_PARAMETERS


async def _answer(served: ServedModel, value: Any, ask: Ask, max_rows: int) -> Any:
    if not (isinstance(value, dict) and value.keys() == {"items"}):
        return await served.predict(value, ask)
    if not isinstance(value["items"], list):
        raise InvalidInput("items: a list is expected")
    if len(value["items"]) > max_rows:
        raise too_many_rows(len(value["items"]), max_rows)
    calls = [(item, ask) for item in value["items"]]
    results = await served.predict_many(calls, keep_errors=True)
    return {"results": [_or_error(each) for each in results]}


def _or_error(result: Any) -> Any:
    return {"error": str(result)} if isinstance(result, HeadwayError) else result


def json_of(result: Any) -> bytes:
    """A result as it goes out; arrays are lists."""
    try:
        return msgspec.json.encode(result, enc_hook=_plain)
    except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError) as error:
        raise ModelFailed(f"the result is not JSON: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, numpy.ndarray | numpy.generic):
        return value.tolist()
    if isinstance(value, str):  # of a class of its own, which says more than the text
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")
