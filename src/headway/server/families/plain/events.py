"""A stream on the plain route: each chunk as a server-sent event, `data: ` and its JSON."""

from typing import Any

import msgspec

from headway.errors import HeadwayError, ModelFailed
from headway.hosting.registry import Ask, ServedModel
from headway.server.families.plain.answers import NOT_JSON
from headway.server.families.v2.text_generation import single
from headway.server.service.event_stream import Events
from headway.signature.foreign import encode_plain
from headway.wire.messages import EVENT_HEADERS, StreamResponse


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
