"""`/v1/chat/completions`: messages in, an answer out, whole or as it comes."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, cast

import msgspec
from msgspec import Meta

from headway.core.generation.options import GenerationOptions
from headway.core.generation.sampling import MOST_LOGPROBS
from headway.errors import InputTooLarge, InvalidInput
from headway.hosting.generation.language import Language
from headway.hosting.generation.pieces import Generation
from headway.hosting.registry import Ask, ServedModel
from headway.hosting.streaming import ServedStream
from headway.models.chat.answer_reader import AnswerReading
from headway.models.chat.chats import ChatPrompt
from headway.server.auth.access import Access
from headway.server.bodies.json_body import CHAT_VALUES
from headway.server.bodies.neutral import Neutral
from headway.server.families.openai.answers import ChatCompletion, UsageCount
from headway.server.families.openai.chat_messages import checked_messages
from headway.server.families.openai.chat_tools import tool_use
from headway.server.families.openai.chat_writer import ChatWriter
from headway.server.families.openai.generation_request import (
    CHAT,
    GenerationRequest,
    check_room,
    language_of,
    too_long,
)
from headway.server.families.openai.own_chat import answer_own_chat, is_own_chat
from headway.server.families.openai.writer import answered
from headway.server.service.inference import ServiceRoutes
from headway.server.service.options import ask_of, find_generator
from headway.server.service.routes import ErrorFormat, Gives, Route, Takes
from headway.wire.messages import Answer, Request

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_UNSUPPORTED = ("audio", "prediction", "web_search_options", "chat_template")


class ChatRequest(GenerationRequest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    MOST_VALUES: ClassVar[int] = CHAT_VALUES
    UNSUPPORTED: ClassVar[Mapping[str, str]] = {
        **GenerationRequest.UNSUPPORTED,
        **dict.fromkeys(_UNSUPPORTED, ""),
        "prompt": "/v1/completions takes it; here a prompt is a message",
        "input": "this route takes messages",
    }

    NEUTRAL: ClassVar[Neutral] = CHAT

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None  # none, auto, required, or a function
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None  # none: the model does not think first
    chat_template_kwargs: dict[str, Any] | None = None  # vLLM's: for the model's chat template
    max_completion_tokens: int | None = None  # overrides max_tokens, its older name
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)] | None = None


class Chat(ServiceRoutes):
    def routes(self) -> list[Route]:
        example = {"messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 64}
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
        served = await find_generator(self._inference, request, asked.model)
        with served.held():
            if is_own_chat(served):
                return await answer_own_chat(asked, served, ask_of({}, request))
            return await _answer(request, asked, served)


async def _answer(request: Request, asked: ChatRequest, served: ServedModel) -> Answer:
    begun = await begin_chat(request, asked, served, checked_messages(asked.messages))
    writer = ChatWriter(
        *(asked, served.name, begun.language, begun.usage, begun.ask),
        reading=begun.reading,
        shows_logprobs=asked.logprobs,
        top_logprobs=asked.top_logprobs,
        prompt=begun.prompt,
    )
    return await answered(begun.stream, writer, as_events=asked.stream)


class BegunChat(NamedTuple):
    """A chat whose answer is being computed, for the writer of any dialect."""

    language: Language
    usage: UsageCount
    ask: Ask
    stream: ServedStream
    options: GenerationOptions  # with those of the model, where none were asked for
    prompt: tuple[int, ...]
    reading: AnswerReading | None  # None: the answer is text (`headway.models.chat.chats`)


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
    chat = chat_prompt(asked, messages)
    ask = ask_of({}, request)
    generation = await _generation(asked, chat, language, fills_context=fills_context)
    usage = UsageCount(1, len(generation.prompts[0]), asked.n)
    stream = cast(ServedStream, served.stream(generation, ask))
    return BegunChat(
        *(language, usage, ask, stream, generation.options),
        *(generation.prompts[0], generation.reading),
    )


def chat_prompt(asked: ChatRequest, messages: list[dict[str, Any]]) -> ChatPrompt:
    """What the model's template gets. Raises InvalidInput."""
    variables = dict(asked.chat_template_kwargs or {})
    if asked.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", asked.reasoning_effort)
        if asked.reasoning_effort == "none":
            variables.setdefault("enable_thinking", False)
    use = tool_use(asked.tools, asked.tool_choice, asked.parallel_tool_calls)
    return ChatPrompt(messages, use, variables)


async def _generation(
    asked: ChatRequest, chat: ChatPrompt, language: Language, *, fills_context: bool
) -> Generation:
    if asked.max_completion_tokens is not None:
        asked = msgspec.structs.replace(asked, max_tokens=_most(asked))
    if asked.top_logprobs is not None and not asked.logprobs:
        raise InvalidInput("top_logprobs: needs logprobs = true")
    if chat.tools is not None and asked.ignore_eos:
        raise InvalidInput("tools: cannot be combined with ignore_eos")
    form = asked.form()
    logprobs = (asked.top_logprobs or 0) if asked.logprobs else None
    sampling = asked.sampling(language, logprobs=logprobs)
    grammar, field = ("", "") if form is None else form
    try:
        prepared = await language.prepare(chat, grammar, field)
    except InputTooLarge as error:
        raise too_long(error) from None
    ids, reading = prepared.ids, prepared.reading
    if fills_context and len(ids) + (sampling.max_tokens or 1) > language.max_context:
        sampling = dataclasses.replace(sampling, max_tokens=None)
    check_room(language, len(ids), sampling, "messages")
    counts = reading is not None and reading.thinking is not None
    return Generation(
        (tuple(ids),),
        sampling.with_grammar(prepared.grammar),
        asked.n,
        shows_empty=asked.counts_always or counts,
        shows_end=sampling.sampling.scores_prompt,
        reading=reading,
    )


async def encoded_chat(language: Language, chat: ChatPrompt) -> list[int]:
    """The tokens of a chat's prompt. Raises InvalidInput, ContextLengthExceeded."""
    try:
        return (await language.render(chat)).ids
    except InputTooLarge as error:
        raise too_long(error) from None


def _most(asked: ChatRequest) -> int:
    most = asked.max_completion_tokens
    assert most is not None
    if most < 1:
        raise InvalidInput(f"max_completion_tokens: must be at least 1, not {most}")
    return most
