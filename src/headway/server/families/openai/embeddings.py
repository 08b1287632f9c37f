"""OpenAI's route for embeddings: an unmodified `openai` client works."""

from typing import Annotated, Any, Literal, TypedDict

import msgspec
from msgspec import Meta

from headway.server.auth.access import Access
from headway.server.bodies.encoding import encode_json
from headway.server.service.inference import ServiceRoutes
from headway.server.service.options import ask_of, find_for_task
from headway.server.service.routes import ErrorFormat, Gives, Route, Takes
from headway.server.service.vectors import base64_of, check_ids, shortened, texts_of, tokens_in
from headway.signature.foreign import plain_of
from headway.wire.messages import Request, Response


class EmbeddingsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`user` names the end user; it changes nothing."""

    model: str
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    truncate: bool | None = None  # not OpenAI's: cut a text that is too long, or refuse it
    user: str | None = None


class EmbeddingObject(TypedDict):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str  # base64


class EmbeddingsUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(TypedDict):
    object: Literal["list"]
    model: str
    data: list[EmbeddingObject]
    usage: EmbeddingsUsage


class EmbeddingsRoutes(ServiceRoutes):
    def routes(self) -> list[Route]:
        return [
            Route(
                *("POST", "/v1/embeddings", self.embeddings, Access.INFER, ErrorFormat.OPENAI),
                tag="openai",
                summary="Texts, or lists of token ids, as vectors",
                takes=Takes(EmbeddingsRequest, {"input": ["hello", "world"]}, names_model=True),
                gives=Gives(EmbeddingsAnswer),
                task="feature-extraction",
            )
        ]

    async def embeddings(self, request: Request, asked: EmbeddingsRequest) -> Response:
        served = await find_for_task(self._inference, request, asked.model, "feature-extraction")
        parameters = {} if asked.truncate is None else {"truncate": asked.truncate}
        ask = ask_of(parameters, request)
        texts = texts_of(asked.input, "input")
        check_ids(texts, served, "input")
        vectors = await served.predict_many(texts, ask)
        tokens = tokens_in(vectors)
        answer: EmbeddingsAnswer = {
            "object": "list",
            "model": served.name,
            "data": [
                {"object": "embedding", "index": index, "embedding": _encoded(vector, asked)}
                for index, vector in enumerate(vectors)
            ],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        return Response(await encode_json(answer, plain_of), headers=ask.headers())


def _encoded(vector: Any, asked: EmbeddingsRequest) -> Any:
    """An array, which the encoder writes as a list, or a text."""
    values = shortened(vector, asked.dimensions, "dimensions")
    return base64_of(values) if asked.encoding_format == "base64" else values
