"""Answers of `/v1/responses`: an object with output items, whole or as events in their order."""

import time
import uuid
from typing import Any, Literal, TypedDict

import msgspec

from headway.errors import HeadwayError
from headway.hosting.generation.pieces import AnswerPiece
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


class OutputMessage(TypedDict):
    type: Literal["message"]
    id: str
    status: Status
    role: Literal["assistant"]
    content: list[OutputText]


class ResponseObject(TypedDict):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Status
    error: dict[str, str] | None
    incomplete_details: dict[str, str] | None
    model: str
    output: list[OutputMessage]
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


class ResponseWriter(Writer):
    def __init__(
        self, asked: ResponsesRequest, chat: ChatRequest, model: str, begun: BegunChat
    ) -> None:
        super().__init__(chat, {}, begun.usage, begun.ask)
        self._response = _response(asked, model, begun)
        self._item_id = f"msg_{uuid.uuid4().hex}"
        self._place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        self._texts: list[str] = []
        self._status: Status = "in_progress"
        self._events = 0
        self._delta = b""  # the beginning of each event of a text; empty: there was none yet

    def piece(self, piece: AnswerPiece) -> bytes:
        written = b"" if self._delta else self._start()
        text = piece.text
        if text:
            self._texts.append(text)
            written += b'%b%b,"sequence_number":%d}\n\n' % (
                self._delta,
                _encode(text),
                self._events,
            )
            self._events += 1
        if piece.finish_reason is not None:
            self._end(piece)
        return written

    def _start(self) -> bytes:
        kind = b"response.output_text.delta"
        head = _encode({"type": kind.decode(), **self._place, "logprobs": []})
        self._delta = b"event: %b\ndata: %b,%b" % (kind, head[:-1], b'"delta":')
        return (
            self._event("response.created", response=self._response)
            + self._event("response.in_progress", response=self._response)
            + self._event("response.output_item.added", output_index=0, item=self._item([]))
            + self._event("response.content_part.added", **self._place, part=_part(""))
        )

    def _end(self, piece: AnswerPiece) -> None:
        self._usage.add(piece)
        self._status = "completed" if piece.finish_reason == "stop" else "incomplete"

    def tail(self) -> bytes:
        text = "".join(self._texts)
        told = {} if self._story is None else {"headway": self._usage.headway()}
        item = self._item([_part(text)])
        done = self._ended([item])
        return (
            self._event("response.output_text.done", **self._place, text=text, logprobs=[])
            + self._event("response.content_part.done", **self._place, part=_part(text))
            + self._event("response.output_item.done", output_index=0, item=item)
            + self._event(f"response.{self._status}", response=done, **told)
            + DONE
        )

    def error_of(self, error: HeadwayError) -> bytes:
        """The last event, for an error after the answer has begun."""
        self._status = "failed"
        status = status_of(error).http
        code = "rate_limit_exceeded" if status == 429 else "server_error"
        failed = self._ended([]) | {"error": {"code": code, "message": str(error)}}
        return self._event("response.failed", response=failed)

    def answer(self, pieces: list[AnswerPiece]) -> ResponseObject:
        self._texts = [piece.text for piece in pieces]
        self._end(pieces[-1])
        return self._ended([self._item([_part("".join(self._texts))])])

    def _ended(self, output: list[OutputMessage]) -> ResponseObject:
        ended = self._response.copy()
        ended["status"], ended["output"] = self._status, output
        if self._status == "completed":
            ended["completed_at"] = int(time.time())
        elif self._status == "incomplete":
            ended["incomplete_details"] = {"reason": "max_output_tokens"}
        usage = self._usage.as_json()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        ended["usage"] = {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }
        return ended

    def _item(self, content: list[OutputText]) -> OutputMessage:
        return {
            "type": "message",
            "id": self._item_id,
            "status": self._status,
            "role": "assistant",
            "content": content,
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = _encode({"type": kind, "sequence_number": self._events, **fields})
        self._events += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _part(text: str) -> OutputText:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


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
        "tools": asked.tools or [],
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
