"""The plain route: one value in, one result out, for models written in Python.

`POST /v1/predict/{model}` with `3.0`, `"text"` or `{…}` answers the result. A file, a text or a
form is a value, too; streams are answered as server-sent events. `{"items": […]}` is answered by
`{"results": […]}`, each a result or `{"error": …}`, unless that object may be a value of the model;
`/v1/predict/{model}/batch` takes it for every model. Parameters for the model are in the query:
`?language=de`.
"""

import json
from collections import Counter
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from headway.errors import HeadwayError, InvalidInput, ModelFailed
from headway.hosting.registry import Ask, ServedModel
from headway.server.auth.access import Access
from headway.server.bodies.json_body import decode_value
from headway.server.families.plain.answers import (
    NOT_JSON,
    answer_events,
    answer_of,
    encoded,
    wants_events,
    wants_json,
)
from headway.server.families.plain.direct import is_direct, plain_codec
from headway.server.families.plain.uploads import is_upload, read_upload
from headway.server.families.v2.text_generation import whole
from headway.server.service.direct_path import DirectPath
from headway.server.service.examples import example_of
from headway.server.service.inference import Inference
from headway.server.service.options import ask_of, find_or_wake
from headway.server.service.routes import Route
from headway.server.service.tensors import too_many_rows
from headway.signature.foreign import plain_of
from headway.signature.values import takes
from headway.wire.messages import Answer, Request, Response

_NO_PARAMETERS: dict[str, str] = {}
_FILES_HINT = (
    ". To send a file or a text as it is, name its type: -H 'Content-Type: image/png', audio/wav, "
    "text/plain, …"
)
_MOST_SHOWN = 100  # characters of an example


class Plain:
    """The routes and their handlers, over one service."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._direct = DirectPath(inference, plain_codec)

    def routes(self) -> list[Route]:
        one, batch = "/v1/predict/{model}", "/v1/predict/{model}/batch"
        direct = self._direct.start
        return [
            Route(
                *("POST", one, self.predict, Access.INFER),
                direct=direct,
                is_direct=is_direct,
                tag="plain",
                summary="One value, or several as `items`, through a model",
            ),
            Route(
                *("POST", batch, self.predict_batch, Access.INFER),
                tag="plain",
                summary="Several values as `items`, through a model",
            ),
        ]

    async def predict(self, request: Request, model: str) -> Answer:
        served = await find_or_wake(self._inference, request, model)
        parameters = _parameters(request.query)
        if is_upload(request, served):
            ask = ask_of(parameters, request)
            with served.held():  # it is queued later
                return await _answer(request, served, await read_upload(request, served), ask)
        with served.held():  # its items are queued later
            value = await decode_value(request, hint=_FILES_HINT)
            ask = ask_of(parameters, request)
            if served.meaning_of_items != "one" and _is_batch(value):
                if served.meaning_of_items == "unclear":
                    raise _unclear(served.name)
                return await self._answer_items(served, value["items"], ask)
            try:
                return await _answer(request, served, value, ask)
            except InvalidInput as error:
                error.args = (f"{error}{_hint(value, served.json_schemas()[0])}",)
                raise

    async def predict_batch(self, request: Request, model: str) -> Answer:
        """The same body for every model and every type of value."""
        served = await find_or_wake(self._inference, request, model)
        parameters = _parameters(request.query)
        with served.held():
            value = await decode_value(request, hint=_FILES_HINT)
            if not _is_batch(value):
                raise InvalidInput('an object with one field is expected: {"items": [...]}')
            return await self._answer_items(served, value["items"], ask_of(parameters, request))

    async def _answer_items(self, served: ServedModel, items: Any, ask: Ask) -> Response:
        most = self._inference.limits.rows
        if not isinstance(items, list):
            raise InvalidInput("items: a list is expected")
        if len(items) > most:
            raise too_many_rows(len(items), most)
        results = await served.predict_many(items, ask, keep_errors=True)
        body = await encoded({"results": results}, _plain_or_error)
        return Response(body, headers=ask.headers())


def _hint(value: Any, schema: dict[str, Any]) -> str:
    """What may have been meant by a value of the wrong kind: the end of a message."""
    if not schema:  # no kind is wrong
        return ""
    if type(value) is list and value:
        is_text = isinstance(value[0], str) and takes(schema, "string")
        if is_text or not takes(schema, "array"):
            return '; several at once are sent as {"items": [...]}'
    example = example_of(schema)
    if _innermost(example) is None:  # nothing is known of the values
        return ""
    if _is_of_rows(value, example):
        example_text = json.dumps({"items": [example, example]}, ensure_ascii=False)
        example_text = example_text if len(example_text) <= _MOST_SHOWN else '{"items": [...]}'
        return f"; several rows are sent as {example_text}"
    if type(value) is dict and not takes(schema, "object"):
        return f"; the body is the value itself, as in {json.dumps(example, ensure_ascii=False)}"
    return ""


def _is_of_rows(value: Any, example: Any) -> bool:
    """Whether it, or one of its fields, is a list of what the example has: the rows of an
    array, as the v2 routes and Python take them. The name of the one field may be too much."""
    if type(value) is dict and type(example) is dict:
        return any(_is_of_rows(value[name], example[name]) for name in value.keys() & example)
    if type(value) is dict and len(value) == 1:
        (value,) = value.values()
    is_known = type(example) is list and _innermost(example) is not None
    return is_known and _levels(value) == _levels(example) + 1


def _innermost(value: Any) -> Any:
    """The first value that is no list."""
    while type(value) is list and value:
        value = value[0]
    return value


def _levels(value: Any) -> int:
    """How deeply lists are nested in it, by the first element of each."""
    levels = 0
    while type(value) is list and value:
        levels, value = levels + 1, value[0]
    return levels


def _unclear(name: str) -> InvalidInput:
    return InvalidInput(
        f'{{"items": ...}} may be one value or several, and model {name!r} has no type hint that '
        f"tells. Several values: POST them to /v1/predict/{name}/batch. One value: annotate the "
        "model's input, as dict for example"
    )


def _is_batch(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"items"}


async def _answer(request: Request, served: ServedModel, value: Any, ask: Ask) -> Answer:
    as_json = wants_json(request)
    if wants_events(request) or (served.only_streams and not as_json):
        return await answer_events(served, value, ask)
    if served.only_streams:
        result = await whole(served, value, ask)
    else:
        result = await served.predict(value, ask)
    answer = await answer_of(result, served.media_type, as_json=as_json)
    answer.headers = ask.headers()
    return answer


def _parameters(query: str) -> dict[str, str]:
    """The model's parameters, such as `?language=de`."""
    if not query:
        return _NO_PARAMETERS
    pairs = parse_qsl(query, keep_blank_values=True)
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise InvalidInput(f"query parameter {twice!r} is given twice")
    return found


def _plain_or_error(value: Any) -> Any:
    """One entry of `results`: the result, or its error as an object."""
    return {"error": str(value)} if isinstance(value, HeadwayError) else plain_of(value)


def json_of(result: Any) -> bytes:
    """A result as it goes out; arrays are lists."""
    try:
        return msgspec.json.encode(result, enc_hook=plain_of)
    except NOT_JSON as error:
        raise ModelFailed(f"the result is not JSON: {error}") from error
