"""An answer as it comes, as OpenAI's server-sent events; or whole, once all of it is there.

Both take pieces from a stream that hands over all that has come, once a step. What an event of a
token says is the route's own (`ChatWriter.piece` in `chat.py`);
`server/service/event_stream.py` writes it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from headway.errors import HeadwayError, InputTooLarge
from headway.hosting.generation.pieces import AnswerPiece
from headway.hosting.registry import Ask
from headway.hosting.streaming import ServedStream
from headway.server.families.openai.answers import UsageCount
from headway.server.families.openai.generation_request import GenerationRequest, too_long
from headway.server.service.error_words import openai_error
from headway.server.service.errors import param_of, status_of
from headway.server.service.event_stream import Events, Pumping
from headway.wire.messages import (
    EVENT_HEADERS,
    EVENT_STREAM,
    Answer,
    Headers,
    Response,
    StreamResponse,
)

DONE = b"data: [DONE]\n\n"


def event_of(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def error_event(error: HeadwayError) -> bytes:
    """The event for an error after the answer has begun: OpenAI's client raises it."""
    status = status_of(error).http
    body = openai_error(status, str(error), code=error.code, param=param_of(error))
    return event_of({"error": body})


class Writer:
    """Encodes one request's answers: as events, or whole."""

    error_of = staticmethod(error_event)
    content_type = EVENT_STREAM

    def __init__(
        self, asked: GenerationRequest, head: Mapping[str, Any], usage: UsageCount, ask: Ask
    ) -> None:
        """`head`: what every event begins with."""
        self._includes_usage = asked.includes_usage
        self._event_head = head
        self._usage = usage
        self._story = ask.story

    def begin(self) -> None:
        """The first piece of an answer that is written whole has come."""

    def piece(self, piece: AnswerPiece) -> bytes:
        raise NotImplementedError

    def answer(self, pieces: list[AnswerPiece]) -> Any:
        """The answer of all pieces as one JSON value. Counts the pieces."""
        raise NotImplementedError

    def tail(self) -> bytes:
        """The bytes after the last event."""
        last = b""
        head = {**self._event_head, "choices": []}
        if self._story is not None:
            more = {"usage": None} if self._includes_usage else {}
            last += event_of({**head, **more, "headway": self._usage.headway()})
        if self._includes_usage:
            last += event_of({**head, "usage": self._usage.as_json()})
        return last + DONE

    def whole(self, pieces: list[AnswerPiece]) -> Response:
        body = msgspec.json.encode(self.answer(pieces))
        headers: Headers = ()
        if self._story is not None:
            self._story.tell(self._usage.met.values())
            headers = self._story.headers()
        return Response(body, headers=headers)


async def answered(stream: ServedStream, writer: Writer, *, as_events: bool) -> Answer:
    try:
        if as_events:
            events = Events(stream, writer.piece, writer.error_of, writer.tail)
            await events.start()
            return StreamResponse(events, content_type=writer.content_type, headers=EVENT_HEADERS)
        pieces = await gathered(stream, writer.begin)
    except InputTooLarge as error:
        raise too_long(error) from None
    return writer.whole(pieces)


async def gathered(
    stream: ServedStream, begin: Callable[[], None] = lambda: None
) -> list[AnswerPiece]:
    """All pieces of a stream. No task has a turn before the last piece has come; `begin` is called
    when the first has."""
    try:
        pieces = [await anext(stream)]
        begin()
        await Pumping(stream, pieces).wait_done()
        return pieces
    finally:
        await stream.aclose()
