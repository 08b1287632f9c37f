"""Embeddings as Cohere's clients ask for them, `/v1/embed` and `/v2/embed`: an unmodified `cohere`
client works. Its reranking is in `openai/rerank.py`, since Jina's and vLLM's clients share it."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias, TypedDict

import msgspec
import numpy
from msgspec import Meta

from headway.errors import InvalidInput
from headway.hosting.registry import ServedModel
from headway.server.auth.access import Access
from headway.server.bodies.encoding import encode_json
from headway.server.service.inference import ServiceRoutes
from headway.server.service.options import ask_of, find_for_task
from headway.server.service.routes import ErrorFormat, Gives, Handler, Route, Takes
from headway.server.service.vectors import Array, base64_of, bits_of, shortened, texts_of, tokens_in
from headway.signature.foreign import plain_of
from headway.wire.messages import Request, Response

_InputType: TypeAlias = Literal["search_document", "search_query", "classification", "clustering"]
# The prompts of sentence-transformers' folders that they mean: the first that the model has.
_PROMPTS: dict[_InputType, tuple[str, ...]] = {
    "search_query": ("query",),
    "search_document": ("document", "passage", "corpus"),
    "classification": ("classification",),
    "clustering": ("clustering",),
}
# int8 and uint8 would need a calibration that no model here brings.
_FORMS: dict[str, Callable[[Array], Any]] = {
    "float": lambda values: values,
    "binary": lambda values: (bits_of(values).astype(numpy.int16) - 128).astype(numpy.int8),
    "ubinary": bits_of,
    "base64": base64_of,
}


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    content: str | list[_Part]


class CohereEmbedRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`input_type` chooses the model's prompt; it changes nothing for a model without one of that
    name. `priority` changes nothing: it is a number for Cohere's own queue, and ours is a
    header."""

    model: str
    texts: list[str] | None = None
    inputs: list[_Content] | None = None  # of v2
    input_type: _InputType | None = None
    embedding_types: list[str] | None = None
    truncate: Literal["NONE", "END"] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    output_dimension: Annotated[int, Meta(ge=1)] | None = None
    priority: int | None = None


class BilledUnits(TypedDict):
    input_tokens: int


class EmbedMeta(TypedDict):
    billed_units: BilledUnits


class CohereEmbedAnswer(TypedDict):
    id: str
    response_type: Literal["embeddings_floats", "embeddings_by_type"]
    embeddings: list[list[float]] | dict[str, list[Any]]
    texts: list[str]
    meta: EmbedMeta


class Cohere(ServiceRoutes):
    def routes(self) -> list[Route]:
        return [
            self._row("/v1/embed", self.embed, ErrorFormat.OPENAI),
            self._row("/v2/embed", self.embed_v2, ErrorFormat.TEXT),
        ]

    def _row(self, path: str, handler: Handler, errors: ErrorFormat) -> Route:
        example = {"texts": ["hello"], "input_type": "search_query"}
        return Route(
            *("POST", path, handler, Access.INFER, errors),
            tag="cohere",
            summary="Texts as vectors, in Cohere's format",
            takes=Takes(CohereEmbedRequest, example, names_model=True),
            gives=Gives(CohereEmbedAnswer),
            task="feature-extraction",
        )

    async def embed(self, request: Request, asked: CohereEmbedRequest) -> Response:
        """Embed texts. The answer has only floats, unless types are asked for."""
        return await self._embed(request, asked, always_by_type=False)

    async def embed_v2(self, request: Request, asked: CohereEmbedRequest) -> Response:
        return await self._embed(request, asked, always_by_type=True)

    async def _embed(
        self, request: Request, asked: CohereEmbedRequest, *, always_by_type: bool
    ) -> Response:
        texts = _texts(asked)
        types = _types(asked.embedding_types)
        served = await find_for_task(self._inference, request, asked.model, "feature-extraction")
        parameters: dict[str, Any] = {}
        if asked.truncate is not None or served.takes_parameter("truncate"):
            parameters["truncate"] = asked.truncate != "NONE"  # Cohere's models cut by default
        if asked.max_tokens is not None:
            parameters["max_tokens"] = asked.max_tokens
        prompt = _prompt_name(served, asked.input_type)
        if prompt is not None:
            parameters["prompt_name"] = prompt
        ask = ask_of(parameters, request)
        results = await served.predict_many(texts_of(list(texts), "texts"), ask)
        vectors = [shortened(each, asked.output_dimension, "output_dimension") for each in results]
        is_by_type = always_by_type or asked.embedding_types is not None
        embeddings: Any = vectors  # arrays, which the encoder writes as lists
        if is_by_type:
            embeddings = {name: [_FORMS[name](each) for each in vectors] for name in types}
        answer: CohereEmbedAnswer = {
            "id": request.id,
            "response_type": "embeddings_by_type" if is_by_type else "embeddings_floats",
            "embeddings": embeddings,
            "texts": texts,
            "meta": {"billed_units": {"input_tokens": tokens_in(results)}},
        }
        return Response(await encode_json(answer, plain_of), headers=ask.headers())


def _prompt_name(served: ServedModel, input_type: _InputType | None) -> str | None:
    """None: the model's usual prompt, if it has one."""
    if input_type is None or not served.takes_parameter("prompt_name"):
        return None
    prompts = getattr(getattr(served, "model", None), "prompts", ())
    return next((name for name in _PROMPTS[input_type] if name in prompts), None)


def _texts(asked: CohereEmbedRequest) -> list[str]:
    if (asked.texts is None) == (asked.inputs is None):
        raise InvalidInput("texts: either texts or inputs is expected")
    if asked.texts is not None:
        return asked.texts
    assert asked.inputs is not None
    return [_text(each, index) for index, each in enumerate(asked.inputs)]


def _text(given: _Content, index: int) -> str:
    if isinstance(given.content, str):
        return given.content
    if len(given.content) != 1:
        raise InvalidInput(f"inputs[{index}].content: one text is expected")
    return given.content[0].text


def _types(given: list[str] | None) -> list[str]:
    for each in given or ():
        if each not in _FORMS:
            raise InvalidInput(
                f"embedding_types: {each!r} is not served; there are {', '.join(_FORMS)}"
            )
    return list(dict.fromkeys(given or ("float",)))
