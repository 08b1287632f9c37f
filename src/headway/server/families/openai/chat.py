"""`/v1/chat/completions`: messages in, an answer out, whole or as it comes."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, cast

import msgspec
from msgspec import Meta

from headway.core.generation.options import GenerationOptions
from headway.core.generation.sampling import MOST_LOGPROBS
from headway.errors import InputTooLarge, InvalidInput
from headway.hosting.generation.language import Language
from headway.hosting.generation.pieces import AnswerPiece, Generation
from headway.hosting.registry import Ask, ServedModel
from headway.hosting.streaming import ServedStream
from headway.server.auth.access import Access
from headway.server.bodies.neutral import Neutral, is_neutral
from headway.server.families.openai.answers import (
    ChatChoice,
    ChatCompletion,
    UsageCount,
    chat_completion,
    chat_head,
)
from headway.server.families.openai.generation_request import (
    CHAT,
    MESSAGE,
    PART,
    GenerationRequest,
    check_room,
    language_of,
    too_long,
)
from headway.server.families.openai.logprobs import chat_entry, chat_logprobs
from headway.server.families.openai.own_chat import answer_own_chat, is_own_chat
from headway.server.families.openai.writer import Writer, answered, event_of
from headway.server.service.inference import Inference
from headway.server.service.options import ask_of, find_or_wake
from headway.server.service.routes import ErrorFormat, Gives, Route, Takes
from headway.wire.messages import Answer, Request

MOST_MESSAGES = 4096
_ROLES = {"developer": "system", "system": "system", "user": "user", "assistant": "assistant"}
_encode = msgspec.json.Encoder().encode


_UNSUPPORTED = ("reasoning_effort", "audio", "prediction", "web_search_options", "chat_template")


class ChatRequest(GenerationRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    UNSUPPORTED: ClassVar[Mapping[str, str]] = {
        **GenerationRequest.UNSUPPORTED,
        **dict.fromkeys(_UNSUPPORTED, ""),
        "prompt": "/v1/completions takes it; here a prompt is a message",
        "input": "this route takes messages",
    }

    NEUTRAL: ClassVar[Neutral] = CHAT

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None  # overrides max_tokens, its older name
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)] | None = None


class Chat:
    """The routes and their handlers, over one service."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference

    def routes(self) -> list[Route]:
        example = {
            "messages": [{"role": "user", "content": "hello"}],
            "max_completion_tokens": 64,
        }
        return [
            Route(
                *("POST", "/v1/chat/completions", self.chat, Access.INFER, ErrorFormat.OPENAI),
                tag="openai",
                summary="An answer to a chat's messages",
                takes=Takes(ChatRequest, example, names_model=True),
                gives=Gives(ChatCompletion, ("text/event-stream",)),
                task="text-generation",
            )
        ]

    async def chat(self, request: Request, asked: ChatRequest) -> Answer:
        served = await find_or_wake(self._inference, request, asked.model)
        with served.held():
            if is_own_chat(served):
                return await answer_own_chat(asked, served, ask_of({}, request))
            return await _answer(request, asked, served)


async def _answer(request: Request, asked: ChatRequest, served: ServedModel) -> Answer:
    begun = await begin_chat(request, asked, served, checked_messages(asked.messages))
    writer = ChatWriter(asked, served.name, begun.language, begun.usage, begun.ask)
    return await answered(begun.stream, writer, as_events=asked.stream)


class BegunChat(NamedTuple):
    """A chat whose answer is being computed, for the writer of any dialect."""

    language: Language
    usage: UsageCount
    ask: Ask
    stream: ServedStream
    options: GenerationOptions  # with those of the model, where none were asked for


async def begin_chat(
    request: Request,
    asked: ChatRequest,
    served: ServedModel,
    messages: list[dict[str, Any]],
    *,
    fills_context: bool = False,
) -> BegunChat:
    """Queue a chat, of whatever dialect. `fills_context`: an answer that may be longer than the
    context ends there, and is not refused."""
    language = language_of(served)
    ask = ask_of({}, request)
    generation = await _generation(asked, messages, language, fills_context=fills_context)
    usage = UsageCount(1, len(generation.prompts[0]), asked.n)
    stream = cast(ServedStream, served.stream(generation, ask))
    return BegunChat(language, usage, ask, stream, generation.options)


async def _generation(
    asked: ChatRequest, messages: list[dict[str, Any]], language: Language, *, fills_context: bool
) -> Generation:
    if asked.max_completion_tokens is not None:
        asked = msgspec.structs.replace(asked, max_tokens=_most(asked))
    if asked.top_logprobs is not None and not asked.logprobs:
        raise InvalidInput("top_logprobs: needs logprobs = true")
    sampling = await asked.sampling(
        language, logprobs=(asked.top_logprobs or 0) if asked.logprobs else None
    )
    ids = await encoded_chat(language, messages)
    if fills_context and len(ids) + (sampling.max_tokens or 1) > language.max_context:
        sampling = dataclasses.replace(sampling, max_tokens=None)
    check_room(language, len(ids), sampling, "messages")
    return Generation((tuple(ids),), sampling, asked.n, shows_empty=asked.counts_always)


async def encoded_chat(language: Language, messages: list[dict[str, Any]]) -> list[int]:
    try:
        return await language.encode_chat(messages)
    except InputTooLarge as error:
        raise too_long(error) from None


def _most(asked: ChatRequest) -> int:
    most = asked.max_completion_tokens
    assert most is not None
    if most < 1:
        raise InvalidInput(f"max_completion_tokens: must be at least 1, not {most}")
    return most


# ---- messages


def checked_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, each with its role and its text as one string. Raises InvalidInput, which names
    the place."""
    if not messages:
        raise InvalidInput("messages: at least one is expected")
    if len(messages) > MOST_MESSAGES:
        raise InvalidInput(
            f"messages: {len(messages)} messages; at most {MOST_MESSAGES} are allowed"
        )
    return [_checked(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _checked(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    known = _ROLES.get(role) if isinstance(role, str) else None
    if known is None:
        served = ", ".join(_ROLES)
        if role in ("tool", "function"):
            raise InvalidInput(f"{where}.role: {role!r} is not supported; there are {served}")
        raise InvalidInput(f"{where}.role: {role!r:.40} is unknown; there are {served}")
    for name, value in message.items():
        if name not in ("role", "content", "name") and not is_neutral(name, value, MESSAGE):
            raise InvalidInput(f"{where}.{name}: this field is not supported")
    if role != "assistant" and message.get("content") is None:
        raise InvalidInput(f"{where}.content: a text is expected")
    checked = {"role": known, "content": _text(message.get("content"), f"{where}.content")}
    named = message.get("name")
    if named is not None:
        if not isinstance(named, str):
            raise InvalidInput(f"{where}.name: a text is expected")
        checked["name"] = named
    return checked


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidInput(f"{where}: a text, a list of parts, or null is expected")
    return "".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise InvalidInput(f"{where}: an object with a type is expected")
    if part.get("type") != "text":
        raise InvalidInput(f"{where}.type: {part.get('type')!r:.40} is not supported; only text is")
    for name, value in part.items():
        if name not in ("type", "text") and not is_neutral(name, value, PART):
            raise InvalidInput(f"{where}.{name}: there is no such field")
    text = part.get("text")
    if not isinstance(text, str):
        raise InvalidInput(f"{where}.text: a text is expected")
    return text


# ---- answers


class ChatWriter(Writer):
    def __init__(
        self, asked: ChatRequest, model: str, language: Language, usage: UsageCount, ask: Ask
    ) -> None:
        self._head = chat_head(model)
        chunk_head = {**self._head, "object": "chat.completion.chunk"}
        super().__init__(asked, chunk_head, usage, ask)
        self._asked = asked
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
        choice, text, _, logprobs, reason, _, _, _ = piece
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

    def answer(self, pieces: list[AnswerPiece]) -> ChatCompletion:
        for piece in pieces:
            self._usage.add(piece)
        choices = [self._choice(index, pieces) for index in range(self._asked.n)]
        return chat_completion(self._head, choices, self._usage.as_json())

    def _choice(self, index: int, pieces: list[AnswerPiece]) -> ChatChoice:
        own = [piece for piece in pieces if piece.choice == index]
        text = "".join(piece.text for piece in own)
        logprobs = chat_logprobs(own, self._language) if self._asked.logprobs else None
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": logprobs,
            "finish_reason": own[-1].finish_reason,
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
