"""Writes the answers of `/v1/chat/completions`, as events or whole."""

from collections.abc import Sequence
from typing import Any

import msgspec

from headway.hosting.generation.language import Language
from headway.hosting.generation.pieces import AnswerPiece
from headway.hosting.registry import Ask
from headway.models.chat.answer_reader import AnswerReader, AnswerReading
from headway.models.chat.chats import AnswerPart, CallArguments, CallBegin, ReasoningPart, TextPart
from headway.server.families.openai.answers import (
    CalledFunction,
    ChatChoice,
    ChatCompletion,
    ChatMessage,
    ToolCall,
    UsageCount,
    chat_completion,
    chat_head,
)
from headway.server.families.openai.generation_request import GenerationRequest
from headway.server.families.openai.logprobs import chat_entry, chat_logprobs, cut, prompt_scores
from headway.server.families.openai.writer import Writer, event_of

_encode = msgspec.json.Encoder().encode


class ChatWriter(Writer):
    def __init__(
        self,
        asked: GenerationRequest,
        model: str,
        language: Language,
        usage: UsageCount,
        ask: Ask,
        *,
        reading: AnswerReading | None,
        shows_logprobs: bool,
        top_logprobs: int | None = None,
        prompt: Sequence[int] = (),
    ) -> None:
        """`prompt`: for its own log-probabilities."""
        self._head = chat_head(model)
        chunk_head = {**self._head, "object": "chat.completion.chunk"}
        super().__init__(asked, chunk_head, usage, ask)
        self._asked = asked
        self._shows_logprobs = shows_logprobs
        self._top_logprobs = top_logprobs
        self._prompt = prompt
        self._readers: dict[int, AnswerReader] = {}
        if reading is not None:
            self._readers = {index: reading.reader() for index in range(asked.n)}
        self._language = language
        self._begun: dict[int, bytes] = {}  # by choice: the beginning of each of its texts
        # A chunk with a text in it, the commonest one, up to the choice's number and to the text.
        self._start = b"data: " + _encode(chunk_head)[:-1] + b',"choices":[{"index":'
        self._counts = asked.counts_always
        self._set_end()

    def _set_end(self) -> None:
        usage_part = b""
        if self._counts:
            usage_part = b',"usage":' + _encode(self._usage.so_far())
        elif self._asked.includes_usage:
            usage_part = b',"usage":null'
        self._end = b',"logprobs":null,"finish_reason":null}]' + usage_part + b"}\n\n"
        self._text_end = b"}" + self._end

    def piece(self, piece: AnswerPiece) -> bytes:
        if self._counts:
            self._usage.count(piece)
            self._set_end()
        if self._readers:
            return self._read(piece, self._readers[piece.choice])
        choice, text, _, logprobs, reason, _, _, _, _ = piece
        if reason is None and logprobs is None and choice in self._begun:  # the hot path
            return self._begun[choice] + _encode(text) + self._text_end
        return self._rare(piece)

    def _rare(self, piece: AnswerPiece) -> bytes:
        """The first of a choice, the last, or one with log-probabilities."""
        begin = b""
        if piece.choice not in self._begun:
            self._begun[piece.choice] = self._start + b'%d,"delta":{"content":' % piece.choice
            begin = self._delta(piece.choice, b'{"role":"assistant","content":""}')
        if piece.finish_reason is None and piece.logprobs is None:
            return begin + self._delta(piece.choice, b'{"content":' + _encode(piece.text) + b"}")
        self._usage.add(piece)
        entry = chat_entry(piece, self._language)
        logprobs = None if entry is None else {"content": [entry], "refusal": None}
        written = begin
        if piece.text or entry is not None:
            written += self._chunk(piece.choice, {"content": piece.text}, logprobs, None)
        if piece.finish_reason is not None:
            written += self._chunk(piece.choice, {}, None, piece.finish_reason)
        return written

    def _read(self, piece: AnswerPiece, reader: AnswerReader) -> bytes:
        """The events of a piece that may be more than text."""
        choice, written = piece.choice, b""
        if choice not in self._begun:
            self._begun[choice] = b""
            written += self._delta(choice, b'{"role":"assistant","content":""}')
        deltas = [_delta_of(part) for part in parts_of(piece, reader, self._usage)]
        entry = chat_entry(piece, self._language)
        logprobs = None if entry is None else {"content": [entry], "refusal": None}
        if not deltas and (logprobs is not None or self._counts):
            deltas = [{}]
        for delta in deltas:
            if logprobs is None:
                written += self._delta(choice, _encode(delta))
            else:
                written += self._chunk(choice, delta, logprobs, None)
                logprobs = None
        if piece.finish_reason is not None:
            self._usage.add(piece)
            written += self._chunk(choice, {}, None, _reason(piece, reader))
        return written

    def answer(self, pieces: list[AnswerPiece]) -> ChatCompletion:
        for piece in pieces:
            self._usage.add(piece)
        most, own = self._asked.prompt_logprobs, pieces
        if most is not None:
            pieces = cut(pieces, self._top_logprobs or 0)
        choices = [self._choice(index, pieces) for index in range(self._asked.n)]
        answer = chat_completion(self._head, choices, self._usage.as_json())
        if most is not None:
            answer["prompt_logprobs"] = prompt_scores(self._prompt, own, self._language, most)
        return answer

    def _choice(self, index: int, pieces: list[AnswerPiece]) -> ChatChoice:
        own = [piece for piece in pieces if piece.choice == index]
        reader = self._readers.get(index)
        message: ChatMessage
        if reader is None:
            text = "".join(piece.text for piece in own)
            message = {"role": "assistant", "content": text, "refusal": None}
        else:
            message = message_of(
                [part for piece in own for part in parts_of(piece, reader, self._usage)]
            )
        return {
            "index": index,
            "message": message,
            "logprobs": chat_logprobs(own, self._language) if self._shows_logprobs else None,
            "finish_reason": _reason(own[-1], reader),
        }

    def _delta(self, choice: int, delta: bytes) -> bytes:
        return b'%b%d,"delta":%b%b' % (self._start, choice, delta, self._end)

    def _chunk(
        self, choice: int, delta: dict[str, Any], logprobs: Any, reason: str | None
    ) -> bytes:
        made: dict[str, Any] = {
            **self._event_head,
            "choices": [
                {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
            ],
        }
        if self._counts:
            made["usage"] = self._usage.so_far()
        elif self._asked.includes_usage:
            made["usage"] = None
        return event_of(made)


def parts_of(piece: AnswerPiece, reader: AnswerReader, usage: UsageCount) -> list[AnswerPart]:
    parts = reader.read(piece.text, int(piece.token is not None))
    if piece.finish_reason is not None:
        parts += reader.finish()
    if reader.thinks:
        usage.thinking[piece.choice] = reader.thinking_tokens
    return parts


def _reason(piece: AnswerPiece, reader: AnswerReader | None) -> str | None:
    has_called = reader is not None and reader.has_called
    return "tool_calls" if has_called and piece.finish_reason == "stop" else piece.finish_reason


def _delta_of(part: AnswerPart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"content": part.text}
    if isinstance(part, ReasoningPart):
        return {"reasoning_content": part.text}
    call: dict[str, Any] = {"index": part.call}
    if isinstance(part, CallBegin):
        function = {"name": part.name, "arguments": ""}
        call |= {"id": part.id, "type": "function", "function": function}
    else:
        call["function"] = {"arguments": part.text}
    return {"tool_calls": [call]}


def message_of(parts: list[AnswerPart]) -> ChatMessage:
    text = "".join(part.text for part in parts if isinstance(part, TextPart))
    thought = "".join(part.text for part in parts if isinstance(part, ReasoningPart))
    calls: list[ToolCall] = []
    for part in parts:
        if isinstance(part, CallBegin):
            function: CalledFunction = {"name": part.name, "arguments": ""}
            calls.append({"id": part.id, "type": "function", "function": function})
        elif isinstance(part, CallArguments):
            calls[part.call]["function"]["arguments"] += part.text
    is_null = not text and bool(calls)
    message: ChatMessage = {
        "role": "assistant",
        "content": None if is_null else text,
        "refusal": None,
    }
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    return message
