"""A result as it goes out: JSON, or a file as it is with its media type."""

from collections.abc import Callable
from typing import Any

import msgspec

from headway.errors import HeadwayError, ModelFailed
from headway.hosting.registry import Ask, ServedModel
from headway.runtime.calling.threads import run_in_thread
from headway.server.bodies.encoding import encode_json
from headway.server.families.v2.text_generation import single
from headway.server.service.event_stream import Events
from headway.signature.foreign import encode_plain, is_image, plain_of, png_of
from headway.wire.messages import EVENT_HEADERS, JSON, Request, Response, StreamResponse

NOT_JSON = (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError)
EVENTS = "text/event-stream"
_UNKNOWN = "application/octet-stream"
# By their first bytes: (offset, bytes, media type).
_KINDS = (
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"GIF8", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (8, b"WAVE", "audio/wav"),
    (0, b"fLaC", "audio/flac"),
    (0, b"OggS", "audio/ogg"),
    (0, b"ID3", "audio/mpeg"),
    (0, b"\xff\xfb", "audio/mpeg"),
    (4, b"ftyp", "video/mp4"),
    (0, b"%PDF-", "application/pdf"),
)


def wants_events(request: Request) -> bool:
    return EVENTS in request.headers.get("accept", "")


def wants_json(request: Request) -> bool:
    """Whether the client accepts JSON and nothing else: most accept anything."""
    accept = request.headers.get("accept", "")
    return JSON in accept and "*/*" not in accept


async def answer_of(result: Any, media_type: str, *, as_json: bool) -> Response:
    """`media_type`: of the model's files and texts, where it says so. Raises ModelFailed."""
    if not as_json:
        if isinstance(result, bytes | bytearray | memoryview):
            body = bytes(result)
            return Response(body, content_type=media_type or media_type_of(body))
        if is_image(type(result)):
            return Response(await run_in_thread(png_of, result), content_type="image/png")
        if media_type and isinstance(result, str):
            return Response(result.encode(), content_type=f"{media_type}; charset=utf-8")
    return Response(await encoded(result, plain_of))


def media_type_of(content: bytes) -> str:
    """The media type that the first bytes show."""
    for at, mark, kind in _KINDS:
        if content[at : at + len(mark)] == mark:
            return kind
    return _UNKNOWN


async def encoded(result: Any, hook: Callable[[Any], Any]) -> bytes:
    """A result of any size as JSON. Raises ModelFailed."""
    try:
        return await encode_json(result, hook)
    except NOT_JSON as error:
        raise ModelFailed(f"the result is not JSON: {error}") from error


async def answer_events(served: ServedModel, value: Any, ask: Ask) -> StreamResponse:
    """Stream the result as events. An error before the first chunk is an ordinary one; later it is
    an event `error`."""
    stream = served.stream(value, ask) if served.streams else single(served, value, ask)
    events = Events(stream, _event_of, _error_event)
    await events.start()
    return StreamResponse(events, headers=EVENT_HEADERS)


def _event_of(chunk: Any) -> bytes:
    try:
        return b"data: %b\n\n" % encode_plain(chunk)
    except NOT_JSON as error:
        raise ModelFailed(f"a chunk is not JSON: {error}") from error


def _error_event(error: HeadwayError) -> bytes:
    text = msgspec.json.encode({"error": str(error), "code": error.code})
    return b"event: error\ndata: %b\n\n" % text
