"""`/tokenize` and `/detokenize`, as vLLM has them."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from headway.errors import InputTooLarge, InvalidInput
from headway.hosting.generation.language import Language
from headway.models.chat.chats import ChatPrompt
from headway.server.auth.access import Access
from headway.server.bodies.background import background
from headway.server.bodies.encoding import encode_json
from headway.server.families.openai.chat_messages import checked_messages
from headway.server.families.openai.generation_request import language_of
from headway.server.service.adapters import book_of
from headway.server.service.inference import ServiceRoutes
from headway.server.service.options import ask_of, find_generator
from headway.server.service.routes import ErrorFormat, Gives, Route, Takes
from headway.signature.foreign import plain_of
from headway.wire.messages import Request, Response

_MOST_TOKENS = 2**20
_AT_ONCE = 2**12  # tokens: about a millisecond
T = TypeVar("T")


class TokenizeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A prompt as it is, or a chat's messages through the template."""

    model: str | None = None  # absent: the only model
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None  # of a prompt; a chat's are its template's
    add_generation_prompt: bool | None = None  # of a chat
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    model: str | None = None  # absent: the only model
    tokens: list[int]


class Tokenized(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(msgspec.Struct, frozen=True):
    prompt: str


class Tokens(ServiceRoutes):
    def routes(self) -> list[Route]:
        return [
            Route(
                *("POST", "/tokenize", self.tokenize, Access.INFER, ErrorFormat.OPENAI),
                tag="plain",
                summary="The tokens of a prompt or of messages",
                takes=Takes(TokenizeRequest, {"prompt": "hello"}, names_model=True),
                gives=Gives(Tokenized),
                task="text-generation",
            ),
            Route(
                *("POST", "/detokenize", self.detokenize, Access.INFER, ErrorFormat.OPENAI),
                tag="plain",
                summary="The text of tokens",
                takes=Takes(DetokenizeRequest, {"tokens": [1]}, names_model=True),
                gives=Gives(Detokenized),
                task="text-generation",
            ),
        ]

    async def tokenize(self, request: Request, asked: TokenizeRequest) -> Response:
        language = await self._language(request, asked.model)
        ids = await _ids_of(asked, language)
        strings = None
        if asked.return_token_strs:
            strings = await _run(len(ids), lambda: [language.name_of(each) for each in ids])
        return await _json(Tokenized(len(ids), language.max_context, ids, strings))

    async def detokenize(self, request: Request, asked: DetokenizeRequest) -> Response:
        language = await self._language(request, asked.model)
        if len(asked.tokens) > _MOST_TOKENS:
            raise InputTooLarge(
                f"tokens: {len(asked.tokens)} token ids; at most {_MOST_TOKENS} are allowed",
                limit=_MOST_TOKENS,
            )
        tokens = asked.tokens
        text = await _run(len(tokens), lambda: _text_of(tokens, language))
        return await _json(Detokenized(text))

    async def _language(self, request: Request, name: str | None) -> Language:
        served = await find_generator(self._inference, request, name)
        language = language_of(served)
        adapter = ask_of({}, request).adapter
        if adapter:  # it has the model's tokens; but it must be there
            book_of(served).key_of(adapter)
        return language


async def _ids_of(asked: TokenizeRequest, language: Language) -> list[int]:
    if asked.messages is None and asked.prompt is not None:
        if asked.add_generation_prompt is not None:
            raise InvalidInput("add_generation_prompt: is for messages, not for a prompt")
        special = asked.add_special_tokens is not False
        return await language.encode(asked.prompt, add_special_tokens=special)
    if asked.messages is None or asked.prompt is not None:
        raise InvalidInput("prompt: either prompt or messages is expected")
    if asked.add_special_tokens:
        raise InvalidInput(
            "add_special_tokens: is for a prompt; the chat template adds those of messages"
        )
    adds_prompt = asked.add_generation_prompt is not False
    chat = ChatPrompt(checked_messages(asked.messages), add_generation_prompt=adds_prompt)
    return (await language.render(chat)).ids


async def _run(count: int, work: Callable[[], T]) -> T:
    """Do `work` in the event loop, or in a thread if there are many tokens."""
    return work() if count <= _AT_ONCE else await background.run(work)


def _text_of(ids: Sequence[int], language: Language) -> str:
    language.check_ids(ids, "tokens")
    return language.decode(ids)


async def _json(value: msgspec.Struct) -> Response:
    return Response(await encode_json(msgspec.structs.asdict(value), plain_of))
