"""`/tokenize` and `/detokenize`, as vLLM has them."""

from typing import Any

import msgspec

from headway.errors import InputTooLarge, InvalidInput
from headway.server.api.openai.asking import language_of
from headway.server.api.openai.chat import checked_messages
from headway.server.api.v2.asking import find_or_wake, no_query
from headway.server.auth.access import Access
from headway.server.inference import Inference
from headway.server.json.body import decode_fields
from headway.server.net.messages import Request, Response
from headway.server.routes import Route

_MOST_TOKENS = 2**20


class TokenizeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A prompt as it is, or a chat's messages through the template."""

    model: str
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    model: str
    tokens: list[int]


class Tokenized(msgspec.Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(msgspec.Struct, frozen=True):
    prompt: str


class Tokens:
    """Its routes and their handlers, over one service."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/tokenize", self.tokenize, Access.INFER),
            Route("POST", "/detokenize", self.detokenize, Access.INFER),
        ]

    async def tokenize(self, request: Request) -> Response:
        no_query(request)
        asked = await decode_fields(request, TokenizeRequest)
        language = language_of(await find_or_wake(self._inference, request, asked.model))
        if (asked.prompt is None) == (asked.messages is None):
            raise InvalidInput("prompt: either prompt or messages is expected")
        if asked.messages is not None:
            ids = await language.encode_chat(checked_messages(asked.messages))
        else:
            assert asked.prompt is not None
            special = asked.add_special_tokens
            ids = await language.encode(asked.prompt, add_special_tokens=special)
        strings = None
        if asked.return_token_strs:
            strings = [language.bytes_of(each).decode(errors="replace") for each in ids]
        return _json(Tokenized(len(ids), language.max_context, ids, strings))

    async def detokenize(self, request: Request) -> Response:
        no_query(request)
        asked = await decode_fields(request, DetokenizeRequest)
        language = language_of(await find_or_wake(self._inference, request, asked.model))
        if len(asked.tokens) > _MOST_TOKENS:
            raise InputTooLarge(
                f"tokens: {len(asked.tokens)}; at most {_MOST_TOKENS}", limit=_MOST_TOKENS
            )
        language.check_ids(asked.tokens, "tokens")
        return _json(Detokenized(language.decode(asked.tokens)))


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value))
