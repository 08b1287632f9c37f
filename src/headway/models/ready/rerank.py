"""Reranking: a query and a document in, how well they fit out; higher is better.

A cross-encoder reads both together, and its score is what its training made of it. Where there is
none, an embedding model compares the two: the cosine of their vectors, from -1 to 1. The one at
hand is of that kind, on all-MiniLM-L6-v2.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypedDict

import numpy

from headway.errors import InvalidInput
from headway.model import Tensor
from headway.models.ready.embed import MINILM_WEIGHTS, check_width, without_prompt
from headway.models.ready.texts.encoders import Encoder, Head
from headway.models.ready.texts.pooling import Step, all_of, mean_of, sigmoid, through, unit
from headway.models.ready.texts.text import PinnedNetwork, TextModel, length_of, words

Array = numpy.ndarray[Any, Any]


class Pair(TypedDict):
    """A query and a document to be compared."""

    query: str
    document: str


class RelevanceScore(numpy.float32):
    """A number that remembers how many tokens were read for it, for `usage`."""

    tokens: int = 0


class _Scored(NamedTuple):
    """The scores as they come from the worker."""

    score: float
    tokens: int


class Reranker(TextModel):
    """The common part of both kinds of reranker. A query is never cut: that would change its
    meaning."""

    inputs: Sequence[Tensor] = ()  # those of Pair
    outputs: Sequence[Tensor] = (Tensor("score", "float32", (-1,)),)

    def samples(self) -> list[Any]:
        """Pairs to time the model with."""
        query, special = 3, 4  # tokens; of a pair no model has more special ones
        return [
            {"query": words(query), "document": words(tokens - query - special)}
            for tokens in self._sample_tokens()
        ]

    def finish(self, result: _Scored) -> RelevanceScore:
        score = RelevanceScore(result.score)
        score.tokens = result.tokens
        return score

    def _fitting(
        self, document: str, room: int, *, truncate: bool | None, asked: int | None
    ) -> str:
        """The beginning of a document that the model has room for and the caller wants to be
        read."""
        document = self._checked("document", document, truncate=truncate)
        tokens = self._plain_tokens(document)
        if asked is not None and asked < 1:
            raise InvalidInput(f"max_tokens_per_doc must be at least 1, not {asked}")
        if asked is None or asked > room:
            if len(tokens.ids) > room and not self._cuts(truncate):
                raise self._too_long("document", length_of(tokens), room)
            asked = room
        if len(tokens.ids) <= asked:
            return document
        if self._cut_side == "left":
            return document[tokens.offsets[len(tokens.ids) - asked][0] :]
        return document[: tokens.offsets[asked - 1][1]]


class _Both(NamedTuple):
    """A query and a document as one sequence."""

    ids: list[int]
    types: list[int]


class CrossEncoder(Reranker):
    """Reads query and document together. `activation` makes the score of its one logit."""

    def __init__(
        self, encoder: Encoder, *, activation: Callable[[Any], Any] = sigmoid, **options: Any
    ) -> None:
        super().__init__(encoder, **options)
        self._activation = activation

    def prepare(  # type: ignore[override]
        self, raw: Pair, *, truncate: bool | None = None, max_tokens_per_doc: int | None = None
    ) -> _Both:
        query = self._checked("query", raw["query"], truncate=False)
        of_query = length_of(self._plain_tokens(query))
        special = self._tokenizer.num_special_tokens_to_add(True)
        room = self._max_tokens - special - of_query
        if room < 1:
            raise self._too_long("query", of_query, self._max_tokens - special - 1)
        document = self._fitting(raw["document"], room, truncate=truncate, asked=max_tokens_per_doc)
        encoding = self._tokenizer.encode(query, document)
        return _Both(encoding.ids, encoding.type_ids)

    def size(self, item: _Both) -> int:
        return len(item.ids)

    def predict(self, items: list[_Both]) -> list[_Scored]:
        batch = self._batch([item.ids for item in items], [item.types for item in items])
        scores = self._activation(self._encoder.run(batch, all_of))[:, 0]
        return [_Scored(float(s), len(item.ids)) for s, item in zip(scores, items, strict=True)]

    def _check_width(self) -> None:
        batch = self._batch([[*self._first, *self._last] or [0]])
        check_width(self._encoder.run(batch, all_of).shape[-1], 1)


class _Apart(NamedTuple):
    """A query and a document, each by itself."""

    query: tuple[int, ...]
    document: list[int]


class CosineReranker(Reranker):
    """Compares the vectors of an embedding model, by the cosine or by what the model was trained
    for; in a batch, each query is embedded once. Queries and documents may have prompts."""

    def __init__(
        self,
        encoder: Encoder,
        *,
        head: Head = mean_of,
        steps: Sequence[Step] = (),
        similarity: str = "cosine",
        prompts: Mapping[str, str] = MappingProxyType({}),
        includes_prompt: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(encoder, **options)
        self._heads = {"query": head, "document": head}
        self._steps = steps
        self._similarity = _SIMILARITIES[similarity]
        self._prompts = {name: prompts.get(name, "") for name in self._heads}
        self._includes_prompt = includes_prompt

    def setup(self) -> None:
        super().setup()
        if not self._includes_prompt:
            self._heads = {
                name: without_prompt(head, self._prompt_tokens(self._prompts[name]))
                for name, head in self._heads.items()
            }

    def prepare(  # type: ignore[override]
        self, raw: Pair, *, truncate: bool | None = None, max_tokens_per_doc: int | None = None
    ) -> _Apart:
        prompts = self._prompts
        query = self._encode("query", raw["query"], truncate=False, prompt=prompts["query"])
        room = self._max_tokens - self._tokenizer.num_special_tokens_to_add(False)
        if prompts["document"]:
            room -= len(self._plain_tokens(prompts["document"]).ids)
        document = self._fitting(raw["document"], room, truncate=truncate, asked=max_tokens_per_doc)
        encoding = self._tokenizer.encode(prompts["document"] + document)
        return _Apart(tuple(query.ids), encoding.ids)

    def size(self, item: _Apart) -> int:
        return len(item.document)

    def predict(self, items: list[_Apart]) -> list[_Scored]:
        places = {query: place for place, query in enumerate(dict.fromkeys(i.query for i in items))}
        queries = self._vectors("query", list(places))
        documents = self._vectors("document", [item.document for item in items])
        scores = self._similarity(queries[[places[item.query] for item in items]], documents)
        return [
            _Scored(float(score), len(item.query) + len(item.document))
            for score, item in zip(scores, items, strict=True)
        ]

    def _vectors(self, which: str, items: Sequence[Sequence[int]]) -> Array:
        return through(self._steps, self._encoder.run(self._batch(items), self._heads[which]))


def _cosine(queries: Array, documents: Array) -> Array:
    return _dot(unit(queries), unit(documents))


def _dot(queries: Array, documents: Array) -> Array:
    found: Array = (queries * documents).sum(1)
    return found


def _euclidean(queries: Array, documents: Array) -> Array:
    found: Array = -numpy.linalg.norm(queries - documents, axis=1)
    return found


def _manhattan(queries: Array, documents: Array) -> Array:
    found: Array = -numpy.abs(queries - documents).sum(1)
    return found


# The higher, the better they fit.
_SIMILARITIES: Mapping[str, Callable[[Array, Array], Array]] = {
    "cosine": _cosine,
    "dot": _dot,
    "euclidean": _euclidean,
    "manhattan": _manhattan,
}


class MiniLMReranker(PinnedNetwork, CosineReranker):
    """Reranks with the vectors of all-MiniLM-L6-v2."""

    pinned = MINILM_WEIGHTS
