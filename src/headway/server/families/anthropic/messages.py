"""`/v1/messages` and `/v1/messages/count_tokens`: Anthropic's API, on the chat of OpenAI's room."""

from typing import TypedDict

import msgspec

from headway.server.auth.access import Access
from headway.server.families.anthropic.reading import FIELDS, CountRequest, MessagesRequest, chat_of
from headway.server.families.anthropic.writing import Message, MessageWriter
from headway.server.families.openai.chat import begin_chat, chat_prompt, encoded_chat
from headway.server.families.openai.generation_request import language_of
from headway.server.families.openai.writer import answered
from headway.server.service.error_words import renamed
from headway.server.service.inference import ServiceRoutes
from headway.server.service.options import find_or_wake
from headway.server.service.routes import ErrorFormat, Gives, Route, Takes
from headway.wire.messages import Answer, Request, Response

_HELLO = {"messages": [{"role": "user", "content": "hello"}]}
_BETA = "beta=true"  # Anthropic's client asks so for its newer fields


class InputTokens(TypedDict):
    input_tokens: int


class Messages(ServiceRoutes):
    def routes(self) -> list[Route]:
        example = {**_HELLO, "max_tokens": 64}
        count = "/v1/messages/count_tokens"
        return [
            Route(
                *("POST", "/v1/messages", self.create, Access.INFER, ErrorFormat.ANTHROPIC),
                tag="anthropic",
                summary="An answer to a chat's messages, in Anthropic's format",
                takes=Takes(MessagesRequest, example, names_model=True, neutral_query=_BETA),
                gives=Gives(Message, ("text/event-stream",)),
                task="text-generation",
            ),
            Route(
                *("POST", count, self.count_tokens, Access.INFER, ErrorFormat.ANTHROPIC),
                tag="anthropic",
                summary="How many tokens a chat's messages are",
                takes=Takes(CountRequest, _HELLO, names_model=True, neutral_query=_BETA),
                gives=Gives(InputTokens),
                task="text-generation",
            ),
        ]

    async def create(self, request: Request, asked: MessagesRequest) -> Answer:
        chat = chat_of(asked)
        served = await find_or_wake(self._inference, request, asked.model)
        with served.held(), renamed(FIELDS):
            begun = await begin_chat(request, chat, served, chat.messages, fills_context=True)
            hides = (asked.thinking or {}).get("display") == "omitted"
            writer = MessageWriter(chat, served.name, begun, shows_thoughts=not hides)
            return await answered(begun.stream, writer, as_events=asked.stream)

    async def count_tokens(self, request: Request, asked: CountRequest) -> Response:
        chat = chat_of(asked)
        served = await find_or_wake(self._inference, request, asked.model)
        with served.held(), renamed(FIELDS):
            prompt = chat_prompt(chat, chat.messages)
            ids = await encoded_chat(language_of(served), prompt)
        counted: InputTokens = {"input_tokens": len(ids)}
        return Response(msgspec.json.encode(counted))
