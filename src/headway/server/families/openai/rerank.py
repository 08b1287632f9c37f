"""Reranking as Cohere's, Jina's and vLLM's clients ask for it: an unmodified `cohere` client works.

A request becomes one item for each of its documents; they share batches with other requests.
"""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from headway.errors import InvalidInput
from headway.server.auth.access import Access
from headway.server.bodies.encoding import encode_json
from headway.server.service.inference import ServiceRoutes
from headway.server.service.options import ask_of, find_for_task
from headway.server.service.routes import ErrorFormat, Gives, Route, Takes
from headway.signature.foreign import plain_of
from headway.wire.messages import Request, Response

MAX_DOCUMENTS = 2048  # in one request, as many as texts to embed: they wait together


class RerankRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`user` names the end user; it changes nothing."""

    model: str
    query: str
    documents: list[str | dict[str, Any]]
    rank_fields: Annotated[list[str], Meta(min_length=1)] | None = None  # of documents; ["text"]
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool = False
    max_tokens_per_doc: Annotated[int, Meta(ge=1)] | None = None
    max_chunks_per_doc: Literal[1] | None = None  # a document is never cut into several
    truncate: bool | None = None  # as all of them do; false: a document too long is refused
    user: str | None = None


class RankedDocument(TypedDict):
    index: int
    relevance_score: float
    document: NotRequired[dict[str, Any]]


class RerankUsage(TypedDict):
    total_tokens: int


class RerankAnswer(TypedDict):
    id: str
    model: str
    results: list[RankedDocument]  # best first
    usage: RerankUsage


class Reranking(ServiceRoutes):
    def routes(self) -> list[Route]:
        example = {
            "query": "what is the capital of France?",
            "documents": ["Paris is the capital of France.", "Berlin is a city."],
            "top_n": 1,
        }
        row = Route(
            *("POST", "/v1/rerank", self.rerank, Access.INFER, ErrorFormat.OPENAI),
            tag="openai",
            summary="Documents by how well they fit a query, in Cohere's format",
            takes=Takes(RerankRequest, example, names_model=True),
            gives=Gives(RerankAnswer),
            task="text-ranking",
        )
        # The second is for Cohere's newer client; the answer is the same.
        return [row, row._replace(template="/v2/rerank", errors=ErrorFormat.TEXT)]

    async def rerank(self, request: Request, asked: RerankRequest) -> Response:
        texts = _texts(asked)
        served = await find_for_task(self._inference, request, asked.model, "text-ranking")
        parameters: dict[str, Any] = {}
        if asked.truncate is not None or served.takes_parameter("truncate"):
            parameters["truncate"] = asked.truncate is not False
        if asked.max_tokens_per_doc is not None:
            parameters["max_tokens_per_doc"] = asked.max_tokens_per_doc
        ask = ask_of(parameters, request)
        pairs = [{"query": asked.query, "document": text} for text in texts]
        scores = await served.predict_many(pairs, ask)
        answer: RerankAnswer = {
            "id": request.id,
            "model": served.name,
            "results": _results(asked, scores),
            "usage": {"total_tokens": sum(getattr(score, "tokens", 0) for score in scores)},
        }
        return Response(await encode_json(answer, plain_of), headers=ask.headers())


def _texts(asked: RerankRequest) -> list[str]:
    """The part of each document that is read."""
    if not asked.query:
        raise InvalidInput("query: the text is empty")
    if not asked.documents:
        raise InvalidInput("documents: at least one is expected")
    if len(asked.documents) > MAX_DOCUMENTS:
        raise InvalidInput(
            f"documents: {len(asked.documents)} documents; at most {MAX_DOCUMENTS} are allowed"
        )
    fields = asked.rank_fields or ["text"]
    return [
        _text(each, fields, f"documents[{index}]") for index, each in enumerate(asked.documents)
    ]


def _text(document: str | dict[str, Any], fields: list[str], where: str) -> str:
    """An object's fields one after the other, as Cohere reads them."""
    if isinstance(document, str):
        text = document
    else:
        for name in fields:
            if not isinstance(document.get(name), str):
                raise InvalidInput(f"{where}.{name}: a text is expected")
        text = "\n".join(document[name] for name in fields)
    if not text.strip("\n"):
        raise InvalidInput(f"{where} is empty")
    return text


def _results(asked: RerankRequest, scores: list[Any]) -> list[RankedDocument]:
    """The results, best first; of equals, the one that came first."""
    order = sorted(range(len(scores)), key=lambda index: -float(scores[index]))
    results: list[RankedDocument] = []
    for index in order[: asked.top_n]:
        result: RankedDocument = {"index": index, "relevance_score": float(scores[index])}
        if asked.return_documents:
            document = asked.documents[index]
            result["document"] = {"text": document} if isinstance(document, str) else document
        results.append(result)
    return results
