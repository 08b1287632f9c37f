"""Reranking as Cohere's, Jina's and vLLM's clients ask for it: an unmodified `cohere` client works.

A request becomes one item for each of its documents; they share batches with everybody else's.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from headway.errors import InvalidInput
from headway.hosting.registry import ServedModel
from headway.server.api.openai.handlers import decoded
from headway.server.api.v2.asking import ask_of, find_or_wake, no_query
from headway.server.inference import Inference
from headway.server.json.encoding import encode_json
from headway.server.net.messages import Request, Response
from headway.server.net.plain_json import plain_of

ROUTES: list[tuple[Literal["GET", "POST"], str, str]] = [
    ("POST", "/v1/rerank", "rerank"),
    ("POST", "/v2/rerank", "rerank"),  # of Cohere's newer client; the answer is the same
]
MAX_DOCUMENTS = 2048  # in one request, as many as texts to embed: they wait together


class Document(msgspec.Struct, frozen=True):
    text: str


class RerankRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`user` is whom the answer is for; it changes nothing."""

    model: str
    query: str
    documents: list[str | Document]
    top_n: Annotated[int, Meta(ge=1)] | None = None
    return_documents: bool = False
    max_tokens_per_doc: Annotated[int, Meta(ge=1)] | None = None
    truncate: bool | None = None  # as all of them do; false: a document too long is refused
    user: str | None = None


class Reranking:
    """The handlers that ROUTES names, over one service."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference

    async def rerank(self, request: Request) -> Response:
        no_query(request)
        asked = _checked(await decoded(request, RerankRequest))
        served = await find_or_wake(self._inference, request, asked.model)
        _check_ranks(served)
        wishes: dict[str, Any] = {}
        if asked.truncate is not None or served.takes_parameter("truncate"):
            wishes["truncate"] = asked.truncate is not False
        if asked.max_tokens_per_doc is not None:
            wishes["max_tokens_per_doc"] = asked.max_tokens_per_doc
        ask = ask_of(wishes, request)
        texts = [each if isinstance(each, str) else each.text for each in asked.documents]
        pairs = [{"query": asked.query, "document": text} for text in texts]
        scores = await served.predict_many(pairs, ask)
        answer = {
            "id": request.id,
            "model": served.name,
            "results": _results(asked, texts, scores),
            "usage": {"total_tokens": sum(getattr(score, "tokens", 0) for score in scores)},
        }
        more = () if ask.story is None else ask.story.headers()
        return Response(await encode_json(answer, plain_of), headers=more)


def _checked(asked: RerankRequest) -> RerankRequest:
    if not asked.query:
        raise InvalidInput("query: a text is expected, not nothing")
    if not asked.documents:
        raise InvalidInput("documents: at least one is expected")
    if len(asked.documents) > MAX_DOCUMENTS:
        raise InvalidInput(
            f"documents: {len(asked.documents)} of them; at most {MAX_DOCUMENTS} are allowed"
        )
    for index, each in enumerate(asked.documents):
        if not (each if isinstance(each, str) else each.text):
            raise InvalidInput(f"documents[{index}] is empty")
    return asked


def _check_ranks(served: ServedModel) -> None:
    takes = {each.name: each.dtype for each in served.inputs}
    gives = [(each.dtype[:5], len(each.shape)) for each in served.outputs]
    if takes != {"query": "object", "document": "object"} or gives != [("float", 1)]:
        raise InvalidInput(f"model {served.name!r} does not rank documents")


def _results(asked: RerankRequest, texts: list[str], scores: list[Any]) -> list[dict[str, Any]]:
    """Best first; of equals, the one that came first."""
    order = sorted(range(len(scores)), key=lambda index: -float(scores[index]))
    results: list[dict[str, Any]] = []
    for index in order[: asked.top_n]:
        result: dict[str, Any] = {"index": index, "relevance_score": float(scores[index])}
        if asked.return_documents:
            result["document"] = {"text": texts[index]}
        results.append(result)
    return results
