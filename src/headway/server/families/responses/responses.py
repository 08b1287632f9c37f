"""`/v1/responses`, OpenAI's newer chat, stateless: what agents such as Codex speak."""

from headway.server.auth.access import Access
from headway.server.families.openai.chat import begin_chat
from headway.server.families.openai.writer import answered
from headway.server.families.responses.reading import FIELDS, ResponsesRequest, chat_of
from headway.server.families.responses.writing import ResponseObject, ResponseWriter
from headway.server.service.error_words import renamed
from headway.server.service.inference import ServiceRoutes
from headway.server.service.options import find_or_wake
from headway.server.service.routes import ErrorFormat, Gives, Route, Takes
from headway.wire.messages import Answer, Request


class Responses(ServiceRoutes):
    def routes(self) -> list[Route]:
        example = {"input": "hello", "max_output_tokens": 64}
        return [
            Route(
                *("POST", "/v1/responses", self.create, Access.INFER, ErrorFormat.OPENAI),
                tag="openai",
                summary="An answer to input items, which the server does not keep",
                takes=Takes(ResponsesRequest, example, names_model=True),
                gives=Gives(ResponseObject, ("text/event-stream",)),
                task="text-generation",
            )
        ]

    async def create(self, request: Request, asked: ResponsesRequest) -> Answer:
        chat = chat_of(asked)
        served = await find_or_wake(self._inference, request, asked.model)
        with served.held(), renamed(FIELDS):
            begun = await begin_chat(request, chat, served, chat.messages, fills_context=True)
            writer = ResponseWriter(asked, chat, served.name, begun)
            return await answered(begun.stream, writer, as_events=asked.stream)
