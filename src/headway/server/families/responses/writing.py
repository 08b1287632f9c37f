"""Answers of `/v1/responses`: an object with output items, whole or as events in their order."""

import time
import uuid
from typing import Any, Literal, TypeAlias, TypedDict

import msgspec

from headway.errors import HeadwayError
from headway.hosting.generation.pieces import AnswerPiece
from headway.server.families.openai.answer_blocks import AnswerBlocks, Block, BlockEvent
from headway.server.families.openai.chat import BegunChat, ChatRequest
from headway.server.families.openai.writer import DONE, Writer
from headway.server.families.responses.reading import ResponsesRequest
from headway.server.service.errors import status_of

_encode = msgspec.json.Encoder().encode
Status = Literal["in_progress", "completed", "incomplete", "failed"]


class InputDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class OutputMessage(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    status: Status
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class ReasoningText(TypedDict):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    id: str
    status: Status
    content: list[ReasoningText]
    summary: list[Any] = []  # the thoughts themselves are there


class FunctionCall(msgspec.Struct, tag_field="type", tag="function_call"):
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str  # a JSON object


OutputItem: TypeAlias = OutputMessage | ReasoningItem | FunctionCall


class ResponseObject(TypedDict):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Status
    error: dict[str, str] | None
    incomplete_details: dict[str, str] | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    text: dict[str, Any]
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    reasoning: dict[str, Any] | None
    metadata: dict[str, str]
    prompt_cache_key: str | None
    safety_identifier: str | None
    user: str | None
    background: bool
    store: bool
    previous_response_id: str | None
    service_tier: str
    truncation: str


_EVENTS = {  # of each kind of block
    "text": "response.output_text",
    "reasoning": "response.reasoning_text",
    "call": "response.function_call_arguments",
}
_IDS = {"text": "msg", "reasoning": "rs", "call": "fc"}


class ResponseWriter(Writer):
    def __init__(
        self, asked: ResponsesRequest, chat: ChatRequest, model: str, begun: BegunChat
    ) -> None:
        super().__init__(chat, {}, begun.usage, begun.ask)
        self._response = _response(asked, model, begun)
        self._blocks = AnswerBlocks(begun.reading, begun.usage)
        self._unique = uuid.uuid4().hex  # the answer's, in the ids of its items
        self._status: Status = "in_progress"
        self._events = 0

    def piece(self, piece: AnswerPiece) -> bytes:
        written = b"" if self._events else self._start()
        for event in self._blocks.read(piece):
            written += self._event_of(event)
        if piece.finish_reason is not None:
            self._end(piece)
        return written

    def _start(self) -> bytes:
        return self._event("response.created", response=self._response) + self._event(
            "response.in_progress", response=self._response
        )

    def _end(self, piece: AnswerPiece) -> None:
        self._usage.add(piece)
        self._status = "completed" if piece.finish_reason == "stop" else "incomplete"

    def _event_of(self, event: BlockEvent) -> bytes:
        block, kind = event.block, _EVENTS[event.block.kind]
        place: dict[str, Any] = {"item_id": self._id_of(block), "output_index": block.index}
        more: dict[str, Any] = {}
        if block.kind != "call":
            place["content_index"] = 0
            more = {"logprobs": []} if block.kind == "text" else {}
        if event.kind == "text":
            return self._event(f"{kind}.delta", **place, delta=event.text, **more)
        if event.kind == "open":
            item = self._item(block, "in_progress")
            begun = self._event("response.output_item.added", output_index=block.index, item=item)
            if block.kind == "call":
                return begun
            return begun + self._event(
                "response.content_part.added", **place, part=_part(block.kind, "")
            )
        return self._close(block, kind, place, more)

    def _close(self, block: Block, kind: str, place: dict[str, Any], more: dict[str, Any]) -> bytes:
        text = block.text
        if block.kind == "call":
            written = self._event(f"{kind}.done", **place, name=block.name, arguments=text)
        else:
            part = _part(block.kind, text)
            written = self._event(f"{kind}.done", **place, text=text, **more)
            written += self._event("response.content_part.done", **place, part=part)
        item = self._item(block, self._status_of(block))
        return written + self._event(
            "response.output_item.done", output_index=block.index, item=item
        )

    def tail(self) -> bytes:
        told = {} if self._story is None else {"headway": self._usage.headway()}
        closed = b"".join(self._event_of(each) for each in self._blocks.finish())
        done = self._ended()
        return closed + self._event(f"response.{self._status}", response=done, **told) + DONE

    def error_of(self, error: HeadwayError) -> bytes:
        """The last event, for an error after the answer has begun."""
        self._status = "failed"
        status = status_of(error).http
        code = "rate_limit_exceeded" if status == 429 else "server_error"
        failed = self._ended() | {"error": {"code": code, "message": str(error)}}
        return self._event("response.failed", response=failed)

    def answer(self, pieces: list[AnswerPiece]) -> ResponseObject:
        self._blocks.read_all(pieces)
        self._end(pieces[-1])
        return self._ended()

    def _ended(self) -> ResponseObject:
        ended = self._response.copy()
        ended["status"] = self._status
        ended["output"] = [self._item(each, self._status_of(each)) for each in self._blocks.blocks]
        if self._status == "completed":
            ended["completed_at"] = int(time.time())
        elif self._status == "incomplete":
            ended["incomplete_details"] = {"reason": "max_output_tokens"}
        usage = self._usage.as_json()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        thinking = usage.get("completion_tokens_details", {"reasoning_tokens": 0})
        ended["usage"] = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": thinking["reasoning_tokens"]},
            "total_tokens": usage["total_tokens"],
        }
        return ended

    def _status_of(self, block: Block) -> Status:
        """Of one that is closed: only the last may be cut off."""
        is_last = block.index == len(self._blocks.blocks) - 1
        is_cut = is_last and self._status in ("incomplete", "failed")
        return "incomplete" if is_cut else "completed"

    def _id_of(self, block: Block) -> str:
        return f"{_IDS[block.kind]}_{self._unique}{block.index}"

    def _item(self, block: Block, status: Status) -> OutputItem:
        text, item_id = block.text, self._id_of(block)
        if block.kind == "call":
            return FunctionCall(item_id, status, block.id, block.name, text)
        is_begun = status != "in_progress"
        if block.kind == "reasoning":
            thought: ReasoningText = {"type": "reasoning_text", "text": text}
            return ReasoningItem(item_id, status, [thought] if is_begun else [])
        return OutputMessage(item_id, status, [_text_part(text)] if is_begun else [])

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = _encode({"type": kind, "sequence_number": self._events, **fields})
        self._events += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _part(kind: str, text: str) -> OutputText | ReasoningText:
    return {"type": "reasoning_text", "text": text} if kind == "reasoning" else _text_part(text)


def _text_part(text: str) -> OutputText:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """As the answer shows it: all fields."""
    shown = {"description": None, "parameters": None, **tool}
    return {**shown, "strict": tool.get("strict") is not False}


def _response(asked: ResponsesRequest, model: str, begun: BegunChat) -> ResponseObject:
    """The object as it begins: what was asked, and what counts where nothing was."""
    sampling = begun.options.sampling
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "usage": None,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": None,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "top_logprobs": 0,
        "text": {"format": {"type": "text"}} | (asked.text or {}),
        "tools": [_tool(each) for each in asked.tools or () if each["type"] == "function"],
        "tool_choice": asked.tool_choice or "auto",
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "reasoning": asked.reasoning,
        "metadata": asked.metadata or {},
        "prompt_cache_key": asked.prompt_cache_key,
        "safety_identifier": asked.safety_identifier,
        "user": asked.user,
        "background": False,
        "store": False,
        "previous_response_id": None,
        "service_tier": "default",
        "truncation": "disabled",
    }
