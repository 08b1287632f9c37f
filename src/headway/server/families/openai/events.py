"""An answer as it comes, as OpenAI's server-sent events; or whole, once all of it is there.

Both take pieces from a stream that hands over all that has come, once a step. What an event of a
token says is the route's own (`ChatWriter.piece` in `chat.py`);
`server/service/events.py` writes it.
"""

from typing import Any, Protocol

import msgspec

from headway.errors import HeadwayError, InputTooLarge
from headway.hosting.generation.pieces import AnswerPiece
from headway.hosting.streaming import ServedStream
from headway.server.families.openai.asking import too_long
from headway.server.service.errors import param_of, status_of
from headway.server.service.events import Events, Pumping
from headway.server.service.openai_errors import openai_error
from headway.wire.messages import EVENT_HEADERS, Answer, Response, StreamResponse

DONE = b"data: [DONE]\n\n"


def event_of(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def error_event(error: HeadwayError) -> bytes:
    """What went wrong after the answer had begun: OpenAI's client raises it."""
    status = status_of(error).http
    told = openai_error(status, str(error), code=error.code, param=param_of(error))
    return event_of({"error": told})


class Writer(Protocol):
    """Spells the pieces of one answer."""

    def piece(self, piece: AnswerPiece) -> bytes: ...

    def tail(self) -> bytes:
        """After the last."""
        ...

    def whole(self, pieces: list[AnswerPiece]) -> Response:
        """All of them at once."""
        ...


async def answered(stream: ServedStream, writer: Writer, *, as_events: bool) -> Answer:
    """As it comes, or whole."""
    try:
        if as_events:
            events = Events(stream, writer.piece, error_event, writer.tail)
            await events.start()
            return StreamResponse(events, headers=EVENT_HEADERS)
        pieces = await gathered(stream)
    except InputTooLarge as error:
        raise too_long(error) from None
    return writer.whole(pieces)


async def gathered(stream: ServedStream) -> list[AnswerPiece]:
    """All pieces. No task has a turn before the last has come."""
    try:
        pieces = [await anext(stream)]
        await Pumping(stream, pieces.extend).wait_done()
        return pieces
    finally:
        await stream.aclose()
