"""Answers in Ollama's dialect: one JSON object, or a line for each piece."""

import datetime
import time
from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

import msgspec

from headway.errors import HeadwayError
from headway.hosting.generation.pieces import AnswerPiece
from headway.server.families.openai.answer_blocks import AnswerBlocks, Block, BlockEvent
from headway.server.families.openai.chat import BegunChat, ChatRequest
from headway.server.families.openai.writer import Writer

_encode = msgspec.json.Encoder().encode
LINES = "application/x-ndjson"


class OllamaFunction(TypedDict):
    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCall(TypedDict):
    function: OllamaFunction


class OllamaMessage(TypedDict):
    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[OllamaCall]]


class OllamaHead(TypedDict):
    model: str
    created_at: str
    done: bool
    done_reason: NotRequired[str]
    total_duration: NotRequired[int]  # nanoseconds, as all of them
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]
    prompt_eval_duration: NotRequired[int]
    eval_count: NotRequired[int]
    eval_duration: NotRequired[int]
    headway: NotRequired[list[dict[str, Any]]]


class OllamaChatAnswer(OllamaHead):
    message: OllamaMessage


class GeneratedAnswer(OllamaHead):
    response: str
    thinking: NotRequired[str]


def error_line(error: HeadwayError) -> bytes:
    return _encode({"error": str(error)}) + b"\n"


def now_text() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")


def loaded(model: str, *, is_chat: bool) -> dict[str, Any]:
    """The answer to no prompt at all: the model is there."""
    return {**_line(model, {"content": ""}, is_chat=is_chat), "done": True, "done_reason": "load"}


def _line(model: str, said: Mapping[str, Any], *, is_chat: bool) -> dict[str, Any]:
    """`said`: fields of a message. A text alone has its fields beside the others."""
    content: dict[str, Any] = {"message": {"role": "assistant", **said}}
    if not is_chat:
        content = {"response" if name == "content" else name: each for name, each in said.items()}
    return {"model": model, "created_at": now_text(), **content, "done": False}


class LineWriter(Writer):
    """Of `/api/chat`, or of `/api/generate`."""

    error_of = staticmethod(error_line)
    content_type = LINES

    def __init__(self, chat: ChatRequest, model: str, begun: BegunChat, *, is_chat: bool) -> None:
        super().__init__(chat, {}, begun.usage, begun.ask)
        self._model = model
        self._is_chat = is_chat
        self._blocks = AnswerBlocks(begun.reading, begun.usage)
        self._reason = ""
        self._began_s = time.monotonic()
        self._first_s = 0.0  # when its first piece came

    def begin(self) -> None:
        self._first_s = self._first_s or time.monotonic()

    def piece(self, piece: AnswerPiece) -> bytes:
        self.begin()
        written = b"".join(self._line_of(event) for event in self._blocks.read(piece))
        if piece.finish_reason is not None:
            self._end(piece)
        return written

    def _line_of(self, event: BlockEvent) -> bytes:
        """A call is written when it is complete."""
        block = event.block
        said: dict[str, Any] | None = None
        if block.kind == "call" and event.kind == "close" and block.arguments is not None:
            said = _message_of([block], self._first_call(block))
        elif block.kind != "call" and event.kind == "text":
            said = {"content": event.text}
            if block.kind == "reasoning":
                said = {"content": "", "thinking": event.text}
        if said is None:
            return b""
        return _encode(_line(self._model, said, is_chat=self._is_chat)) + b"\n"

    def _first_call(self, block: Block) -> int:
        return sum(each.kind == "call" for each in self._blocks.blocks[: block.index])

    def _end(self, piece: AnswerPiece) -> None:
        self._usage.add(piece)
        self._reason = piece.finish_reason or ""

    def tail(self) -> bytes:
        told = {} if self._story is None else {"headway": self._usage.headway()}
        written = b"".join(self._line_of(event) for event in self._blocks.finish())
        return written + _encode(self._last({"content": ""}) | told) + b"\n"

    def answer(self, pieces: list[AnswerPiece]) -> dict[str, Any]:
        blocks = self._blocks.read_all(pieces)
        self._end(pieces[-1])
        return self._last(_message_of(blocks, 0))

    def _last(self, said: Mapping[str, Any]) -> dict[str, Any]:
        now_s = time.monotonic()
        first_s = self._first_s or now_s
        usage = self._usage.as_json()
        return {
            **_line(self._model, said, is_chat=self._is_chat),
            "done": True,
            "done_reason": self._reason,
            "total_duration": _nanoseconds(now_s - self._began_s),
            "load_duration": 0,
            "prompt_eval_count": usage["prompt_tokens"],
            "prompt_eval_duration": _nanoseconds(first_s - self._began_s),
            "eval_count": usage["completion_tokens"],
            "eval_duration": _nanoseconds(now_s - first_s),
        }


def _message_of(blocks: list[Block], first_call: int) -> dict[str, Any]:
    """Without a call that was cut off."""
    said: dict[str, Any] = {"content": "".join(each.text for each in blocks if each.kind == "text")}
    thought = "".join(each.text for each in blocks if each.kind == "reasoning")
    if thought:
        said["thinking"] = thought
    calls: list[OllamaCall] = []
    for block in blocks:
        arguments = block.arguments if block.kind == "call" else None
        if arguments is not None:
            index = first_call + len(calls)
            calls.append({"function": {"index": index, "name": block.name, "arguments": arguments}})
    if calls:
        said["tool_calls"] = calls
    return said


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
