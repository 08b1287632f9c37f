"""Answers in Anthropic's dialect: a message of blocks, whole or as events in their order."""

import uuid
from typing import Any, Literal, TypedDict

import msgspec

from headway.errors import HeadwayError
from headway.hosting.generation.pieces import AnswerPiece
from headway.hosting.registry import Ask
from headway.server.families.openai.answers import UsageCount
from headway.server.families.openai.chat import ChatRequest
from headway.server.families.openai.writer import Writer
from headway.server.service.anthropic_errors import anthropic_error
from headway.server.service.errors import status_of

_encode = msgspec.json.Encoder().encode


class MessageUsage(TypedDict):
    input_tokens: int  # without those that came from the cache
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class TextBlock(TypedDict):
    type: Literal["text"]
    text: str


class Message(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


def named_event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **fields}))


def error_event(error: HeadwayError) -> bytes:
    body = anthropic_error(status_of(error).http, str(error), code=error.code)
    return b"event: error\ndata: " + _encode(body) + b"\n\n"


class MessageWriter(Writer):
    error_of = staticmethod(error_event)

    def __init__(self, asked: ChatRequest, model: str, usage: UsageCount, ask: Ask) -> None:
        super().__init__(asked, {}, usage, ask)
        self._asked = asked
        self._model = model
        self._last: AnswerPiece | None = None
        self._delta = b""  # the beginning of each event of a text; empty: there was none yet

    def piece(self, piece: AnswerPiece) -> bytes:
        if piece.finish_reason is None and self._delta:  # the hot path
            return self._delta + _encode(piece.text) + b"}}\n\n"
        written = b"" if self._delta else self._start()
        if piece.text:
            written += self._delta + _encode(piece.text) + b"}}\n\n"
        if piece.finish_reason is not None:
            self._usage.add(piece)
            self._last = piece
        return written

    def _start(self) -> bytes:
        self._delta = (
            b"event: content_block_delta\n"
            b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":'
        )
        block = {"type": "text", "text": ""}
        return (
            named_event("message_start", message=self._message([], None))
            + named_event("content_block_start", index=0, content_block=block)
            + named_event("ping")
        )

    def tail(self) -> bytes:
        told = {} if self._story is None else {"headway": self._usage.headway()}
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": self._stop_sequence()}
        return (
            named_event("content_block_stop", index=0)
            + named_event("message_delta", delta=delta, usage=self._counted(), **told)
            + named_event("message_stop")
        )

    def answer(self, pieces: list[AnswerPiece]) -> Message:
        for piece in pieces:
            self._usage.add(piece)
        self._last = pieces[-1]
        text = "".join(piece.text for piece in pieces)
        return self._message([{"type": "text", "text": text}], self._stop_reason())

    def _message(self, content: list[TextBlock], reason: str | None) -> Message:
        return {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": self._stop_sequence(),
            "usage": self._counted(),
        }

    def _stop_reason(self) -> str:
        assert self._last is not None
        if self._stop_sequence() is not None:
            return "stop_sequence"
        if self._last.finish_reason == "stop":
            return "end_turn"
        is_cut = self._usage.completion_tokens < (self._asked.max_tokens or 0)
        return "model_context_window_exceeded" if is_cut else "max_tokens"

    def _stop_sequence(self) -> str | None:
        return None if self._last is None else self._last.stopped_by

    def _counted(self) -> MessageUsage:
        usage = self._usage.as_json()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": usage["completion_tokens"],
        }
