"""all-MiniLM-L6-v2, with its real weights."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy
import pytest

from headway import ConfigError, InputTooLarge, InvalidInput
from headway.models.ready.embed import DIMENSIONS, MINILM_WEIGHTS, MiniLM

pytest.importorskip("onnxruntime")
pytest.importorskip("tokenizers")
if not MINILM_WEIGHTS.is_installed:
    pytest.skip(f"needs {MINILM_WEIGHTS.requirement}", allow_module_level=True)


@pytest.fixture(scope="module")
def model() -> MiniLM:
    return loaded(MiniLM())


def loaded(model: MiniLM) -> MiniLM:
    model.setup()
    model.load()
    return model


def embed(model: MiniLM, *texts: str | list[int]) -> list[Any]:
    items = [model.prepare(text) for text in texts]
    return [model.finish(result) for result in model.predict(items)]


def test_similar_texts_have_similar_vectors(model: MiniLM) -> None:
    food, meal, tax = embed(model, "eating food", "having a meal", "tax law of 1986")
    assert food @ meal > 0.6
    assert food @ tax < 0.3


def test_a_vector_is_float32_of_length_one(model: MiniLM) -> None:
    [vector] = embed(model, "hello")
    assert vector.dtype == numpy.float32
    assert vector.shape == (DIMENSIONS,)
    assert numpy.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)


def test_company_changes_nothing(model: MiniLM) -> None:
    texts = ["hi", "a somewhat longer text than the first", "word " * 60, " "]
    for alone, together in zip(texts, embed(model, *texts), strict=True):
        numpy.testing.assert_allclose(embed(model, alone)[0], together, atol=2e-6)


def test_a_text_costs_its_own_tokens_and_no_padding(model: MiniLM) -> None:
    assert model.size(model.prepare("hello")) == 3  # [CLS] hello [SEP]
    assert model.size(model.prepare("word " * 1_000, truncate=True)) == 256
    assert embed(model, "hello")[0].tokens == 3


def test_a_batch_crosses_to_another_process_as_one_array(model: MiniLM) -> None:
    items = [model.prepare(text) for text in ("hello", "eating food")]
    here = model.predict(items)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(here, 5, buffer_callback=buffers.append)
    assert len(buffers) == 1
    for mine, theirs in zip(here, pickle.loads(data, buffers=buffers), strict=True):
        numpy.testing.assert_array_equal(mine, theirs)
        assert mine.tokens == theirs.tokens
        assert len(theirs.base) == theirs.nbytes, "a vector that is kept keeps no other"
    assert [vector.tokens for vector in here[:1]] == [3]


def test_samples_cover_the_lengths_it_takes(model: MiniLM) -> None:
    assert [model.size(model.prepare(text)) for text in model.samples()] == [5, 32, 128, 256]


def test_token_ids_are_taken_as_they_are(model: MiniLM) -> None:
    ids = model.prepare("eating food").tolist()
    numpy.testing.assert_array_equal(embed(model, ids)[0], embed(model, "eating food")[0])
    cut = model.prepare([101, *[7592] * 998, 102], truncate=True)
    assert (len(cut), cut[-1]) == (256, 102)  # as a text is cut


def test_a_text_beyond_the_limit_is_refused_unless_it_may_be_cut(model: MiniLM) -> None:
    for long in ("word " * 1_000, [101, *[7592] * 1_000, 102]):
        with pytest.raises(InputTooLarge, match="has 1002 tokens; the limit is 256") as caught:
            model.prepare(long)
        assert caught.value.limit == 256
    whole = model.prepare("word " * 254)
    assert model.prepare("word " * 1_000, truncate=True).tolist() == whole.tolist()


def test_texts_together_become_the_same_tokens_as_one_by_one(model: MiniLM) -> None:
    texts = ["eating food", "a", "word " * 200]
    together = [tokens.tolist() for tokens in model.prepare_many(texts)]
    assert together == [model.prepare(text).tolist() for text in texts]
    for odd in ([101, 102], "", "word " * 1_000):
        with pytest.raises(InvalidInput):  # who is odd is found one by one
            model.prepare_many(["eating food", odd])


def test_a_text_that_no_tokens_could_be_is_refused_before_it_is_read(model: MiniLM) -> None:
    with pytest.raises(InputTooLarge, match="51201 characters"):
        model.prepare("a" * 51_201)
    assert len(model.prepare("a" * 10_000_000, truncate=True)) <= 256


def test_an_empty_text_is_refused(model: MiniLM) -> None:
    with pytest.raises(InvalidInput, match="'text' is empty"):
        model.prepare("")


@pytest.mark.parametrize("ids", [[], [-1], [30_522], [True], [1.5]], ids=str)
def test_token_ids_beyond_the_vocabulary_are_refused(model: MiniLM, ids: list[int]) -> None:
    with pytest.raises(InvalidInput, match="token ids from 0 to 30521"):
        model.prepare(ids)


def test_a_folder_of_ones_own_serves_as_well(model: MiniLM) -> None:
    mine = loaded(
        MiniLM(weights=str(MINILM_WEIGHTS.find()), threads=2, max_tokens=16, truncate=True)
    )
    assert mine.size(mine.prepare("word " * 100)) == 16
    numpy.testing.assert_allclose(embed(mine, "hi")[0], embed(model, "hi")[0], atol=2e-6)


def test_a_folder_without_the_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer.json: there is no such file"):
        MiniLM(weights=str(tmp_path)).setup()
    shipped = json.loads((MINILM_WEIGHTS.find() / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(shipped))
    with pytest.raises(ConfigError, match=r"model.onnx: there is no such file"):
        loaded(MiniLM(weights=str(tmp_path)))


@pytest.mark.parametrize("options", [{"max_tokens": 1}, {"max_tokens": 513}], ids=str)
def test_options_have_limits(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="max_tokens"):
        MiniLM(**options)
