"""Answers in Anthropic's dialect: a message of blocks, whole or as events in their order."""

import uuid
from typing import Any, Literal, TypeAlias, TypedDict

import msgspec

from headway.errors import HeadwayError
from headway.hosting.generation.pieces import AnswerPiece
from headway.server.families.openai.answer_blocks import AnswerBlocks, Block, BlockEvent
from headway.server.families.openai.chat import BegunChat, ChatRequest
from headway.server.families.openai.writer import Writer
from headway.server.service.error_words import anthropic_error
from headway.server.service.errors import status_of

_encode = msgspec.json.Encoder().encode


class MessageUsage(TypedDict):
    input_tokens: int  # without those that came from the cache
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""  # nothing here checks one


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


ContentBlock: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class Message(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage


def named_event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **fields}))


def error_event(error: HeadwayError) -> bytes:
    body = anthropic_error(status_of(error).http, str(error), code=error.code)
    return b"event: error\ndata: " + _encode(body) + b"\n\n"


_DELTAS = {  # of each kind of block, up to the text
    "text": b'"text_delta","text":',
    "reasoning": b'"thinking_delta","thinking":',
    "call": b'"input_json_delta","partial_json":',
}


class MessageWriter(Writer):
    error_of = staticmethod(error_event)

    def __init__(
        self, asked: ChatRequest, model: str, begun: BegunChat, *, shows_thoughts: bool = True
    ) -> None:
        super().__init__(asked, {}, begun.usage, begun.ask)
        self._asked = asked
        self._model = model
        self._shows_thoughts = shows_thoughts  # otherwise their block is empty
        self._blocks = AnswerBlocks(begun.reading, begun.usage)
        self._last: AnswerPiece | None = None
        self._is_begun = False

    def piece(self, piece: AnswerPiece) -> bytes:
        written = b"" if self._is_begun else self._start(piece)
        for event in self._blocks.read(piece):
            written += self._event_of(event)
        if piece.finish_reason is not None:
            self._usage.add(piece)
            self._last = piece
        return written

    def _start(self, piece: AnswerPiece) -> bytes:
        self._is_begun = True
        self._usage.count(piece)  # what was cached is told at once, and again at the end
        return named_event("message_start", message=self._message([], None)) + named_event("ping")

    def tail(self) -> bytes:
        told = {} if self._story is None else {"headway": self._usage.headway()}
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": self._stop_sequence()}
        return (
            b"".join(map(self._event_of, self._blocks.finish()))
            + named_event("message_delta", delta=delta, usage=self._counted(), **told)
            + named_event("message_stop")
        )

    def answer(self, pieces: list[AnswerPiece]) -> Message:
        for piece in pieces:
            self._usage.add(piece)
        self._last = pieces[-1]
        blocks = [self._whole(block) for block in self._blocks.read_all(pieces)]
        return self._message([each for each in blocks if each is not None], self._stop_reason())

    def _event_of(self, event: BlockEvent) -> bytes:
        is_hidden = event.kind == "text" and event.block.kind == "reasoning"
        return b"" if is_hidden and not self._shows_thoughts else _event_of(event)

    def _whole(self, block: Block) -> ContentBlock | None:
        is_hidden = block.kind == "reasoning" and not self._shows_thoughts
        return ThinkingBlock("") if is_hidden else _whole(block)

    def _message(self, content: list[ContentBlock], reason: str | None) -> Message:
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
        if self._blocks.has_called and self._last.finish_reason == "stop":
            return "tool_use"
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


def _event_of(event: BlockEvent) -> bytes:
    block = event.block
    if event.kind == "text":
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":%b%b}}\n\n' % (block.index, _DELTAS[block.kind], _encode(event.text))
        )
    if event.kind == "close":
        return named_event("content_block_stop", index=block.index)
    begun: ContentBlock
    if block.kind == "call":
        begun = ToolUseBlock(block.id, block.name, {})
    elif block.kind == "reasoning":
        begun = ThinkingBlock("")
    else:
        begun = TextBlock("")
    return named_event("content_block_start", index=block.index, content_block=begun)


def _whole(block: Block) -> ContentBlock | None:
    """None: half a call, where the answer was cut off."""
    if block.kind == "text":
        return TextBlock(block.text)
    if block.kind == "reasoning":
        return ThinkingBlock(block.text)
    arguments = block.arguments
    if arguments is None:
        return None
    return ToolUseBlock(block.id, block.name, arguments)
