"""Reranking by cosine, with MiniLM's real weights."""

from typing import Any

import pytest

from headway import InputTooLarge, InvalidInput
from headway.models.ready.embed import MINILM_WEIGHTS
from headway.models.ready.rerank import MiniLMReranker

pytest.importorskip("onnxruntime")
pytest.importorskip("tokenizers")
if not MINILM_WEIGHTS.is_installed:
    pytest.skip(f"needs {MINILM_WEIGHTS.requirement}", allow_module_level=True)


@pytest.fixture(scope="module")
def model() -> MiniLMReranker:
    made = MiniLMReranker()
    made.setup()
    made.load()
    return made


def pair(query: str, document: str) -> Any:
    return {"query": query, "document": document}


def scores(model: MiniLMReranker, *pairs: Any) -> list[Any]:
    items = [model.prepare(each) for each in pairs]
    return [model.finish(result) for result in model.predict(items)]


def test_what_fits_has_the_higher_score(model: MiniLMReranker) -> None:
    food, tax = scores(model, pair("eating", "having a meal"), pair("eating", "tax law of 1986"))
    assert food > 0.4 > 0.2 > tax


def test_every_query_of_a_batch_gets_its_own_documents(model: MiniLMReranker) -> None:
    pairs = [pair(f"query {n % 3}", f"document {n} " * (n + 1)) for n in range(9)]
    for together, alone in zip(scores(model, *pairs), pairs, strict=True):
        assert scores(model, alone)[0] == pytest.approx(together, abs=2e-6)


def test_a_score_knows_its_tokens(model: MiniLMReranker) -> None:
    [score] = scores(model, pair("hello", "hello world"))
    assert score.tokens == 3 + 4


def test_documents_are_cut_to_what_is_asked_for(model: MiniLMReranker) -> None:
    long = pair("a", "one two three four five")
    assert model.size(model.prepare(long, max_tokens_per_doc=3)) == 5
    assert model.size(model.prepare(long, max_tokens_per_doc=300)) == 7
    with pytest.raises(InvalidInput, match="at least 1, not 0"):
        model.prepare(long, max_tokens_per_doc=0)


def test_more_than_the_model_reads_is_refused_or_cut(model: MiniLMReranker) -> None:
    long = pair("a", "word " * 1_000)
    with pytest.raises(InputTooLarge, match="1000 tokens; the limit is 254") as caught:
        model.prepare(long, max_tokens_per_doc=500)
    assert caught.value.limit == 254
    assert model.size(model.prepare(long, truncate=True)) == 256
    with pytest.raises(InputTooLarge, match=r"'query' has 1002 tokens; the limit is 256$"):
        model.prepare(pair("word " * 1_000, "a"), truncate=True)


def test_samples_fit(model: MiniLMReranker) -> None:
    sizes = [model.size(model.prepare(each)) for each in model.samples()]
    assert sizes == sorted(sizes)
    assert sizes[-1] > 200
