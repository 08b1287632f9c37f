"""Triton's `generate` and `generate_stream`: JSON keys in, text out, at once or as events."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from headway.errors import HeadwayError, InvalidInput, ModelFailed
from headway.hosting.explaining import Story
from headway.hosting.registry import Ask, ServedModel
from headway.server.bodies.encoding import encode_json
from headway.server.bodies.json_body import decode_json, in_words
from headway.server.service.event_stream import Events, close
from headway.server.service.options import check_count
from headway.server.service.requests import Parameters
from headway.signature.foreign import plain_of
from headway.wire.messages import EVENT_HEADERS, Request, Response, StreamResponse

_TEXT = "text_input"
_NO_TEXT = b'""}\n\n'
_encode = msgspec.json.Encoder().encode


class GenerateRequest(TypedDict, total=False):
    """Every other key is an input by its own name, or a parameter."""

    text_input: Annotated[Any, Meta(description="the input, where the model has one")]
    id: str | None
    parameters: Parameters | None


class GenerateResponse(TypedDict):
    """Besides these fields, the model's outputs by name."""

    id: NotRequired[str]
    model_name: str
    model_version: str


class Body(msgspec.Struct, frozen=True):
    """A decoded body: the model's value, and the other options."""

    id: str
    value: Any
    parameters: dict[str, Any]


async def parse(request: Request, model: ServedModel, *, streams: bool = False) -> Body:
    """A model of one input gets that key's value (or `text_input`), another gets all of its inputs.
    All other fields are parameters, wherever they are: as in Triton."""
    try:
        keys = await decode_json(request, dict[str, Any])
        beside = keys.get("parameters")
        check_count(len(keys) + (len(beside) if isinstance(beside, dict) else 0))
        named = msgspec.convert(keys, GenerateRequest)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidInput(f"the body is not as expected: {in_words(error)}") from error
    parameters = dict(named.get("parameters") or {})
    for name in ("id", "parameters"):
        keys.pop(name, None)
    if len(model.inputs) > 1:
        names = [each.name for each in model.inputs]
        value: Any = {name: keys.pop(name) for name in names if name in keys}
    else:
        value = _only_input(keys, model)
    for each in (keys, parameters):
        _check_streams(each, model, streams=streams)
    for name in keys.keys() & parameters.keys():
        raise InvalidInput(f"{name!r} is given twice: as a key, and in parameters")
    return Body(named.get("id") or "", value, {**parameters, **keys})


def _only_input(keys: dict[str, Any], model: ServedModel) -> Any:
    name = model.inputs[0].name if model.inputs else _TEXT
    found = [key for key in dict.fromkeys((name, _TEXT)) if key in keys]
    if not found:
        raise InvalidInput(f"the body has no {_TEXT!r}")
    if len(found) > 1:
        raise InvalidInput(f"{name!r} and {_TEXT!r} are the same input: give one of them")
    return keys.pop(found[0])


def _check_streams(keys: dict[str, Any], model: ServedModel, *, streams: bool) -> None:
    """Refuse a `stream` that contradicts the route: some clients send it as well."""
    if "stream" not in keys or model.takes_parameter("stream"):
        return
    if keys.pop("stream") not in (streams, None):
        route = "generate" if streams else "generate_stream"
        raise InvalidInput(f"stream: the route decides it; use {route!r} instead")


async def answer(model: ServedModel, body: Body, ask: Ask) -> Response:
    if not model.streams:
        return await _response(model, body, await model.predict(body.value, ask))
    return await _response(model, body, await whole(model, body.value, ask))


async def whole(model: ServedModel, value: Any, ask: Ask) -> Any:
    """The whole result of a stream: texts are joined."""
    chunks = []
    stream = model.stream(value, ask)
    try:
        async for chunk in stream:
            chunks.append(chunk)
    finally:
        await close(stream)
    return _join(chunks)


async def _response(model: ServedModel, body: Body, result: Any) -> Response:
    with _not_json():
        return Response(await encode_json(_named(model, body, result), plain_of))


async def answer_stream(model: ServedModel, body: Body, ask: Ask) -> StreamResponse:
    """Stream the answer as events. An error before the first event is an ordinary one; later it is
    an event."""
    stream = model.stream(body.value, ask) if model.streams else single(model, body.value, ask)

    start = _event(_message(model, body, "")).removesuffix(_NO_TEXT)

    def event_of(chunk: Any) -> bytes:
        if type(chunk) is str:
            with suppress(UnicodeError):  # half of a surrogate pair: refused below
                return b"%b%b}\n\n" % (start, _encode(chunk))
        return _event(_message(model, body, chunk))

    events = Events(stream, event_of, _error_event, partial(_story_event, model, body, ask.story))
    await events.start()
    return StreamResponse(events, headers=EVENT_HEADERS)


def _story_event(model: ServedModel, body: Body, story: Story | None) -> bytes:
    """The event with the answer's batches and times, if the caller asked for them."""
    answers = [] if story is None else story.answers()
    return _event(_message(model, body, {"headway": answers})) if answers else b""


def _error_event(error: HeadwayError) -> bytes:
    return _event(msgspec.json.encode({"error": str(error)}))


async def single(model: ServedModel, value: Any, ask: Ask) -> AsyncIterator[Any]:
    """The stream of a model that does not stream."""
    yield await model.predict(value, ask)


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _join(chunks: list[Any]) -> Any:
    if all(isinstance(chunk, str) for chunk in chunks):
        return "".join(chunks)
    return chunks[0] if len(chunks) == 1 else chunks


def _message(model: ServedModel, body: Body, result: Any) -> bytes:
    with _not_json():
        return msgspec.json.encode(_named(model, body, result), enc_hook=plain_of)


def _named(model: ServedModel, body: Body, result: Any) -> dict[str, Any]:
    named: GenerateResponse = {"model_name": model.name, "model_version": model.version}
    if body.id:
        named = {"id": body.id, **named}
    if isinstance(result, bytes):
        result = result.decode(errors="replace")
    outputs = result if isinstance(result, dict) else {_output_name(model, result): result}
    return {**named, **outputs}


@contextmanager
def _not_json() -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError) as error:
        raise ModelFailed(f"the result cannot be written as JSON: {error}") from error


def _output_name(model: ServedModel, result: Any) -> str:
    """The output's name. Text is always `text_output`: tools that read generated text expect
    that."""
    is_named = len(model.outputs) == 1 and not isinstance(result, str)
    return model.outputs[0].name if is_named else "text_output"
