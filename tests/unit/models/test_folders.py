"""Folders that are one model: what they become, on small networks made here, without torch."""

import json
from pathlib import Path
from typing import Any

import numpy
import pytest

from headway import Batcher, ConfigError, InputTooLarge, Tensor
from headway.cli.serve import is_repository
from headway.models.catalogue import build
from word_tokenizers import SPECIALS, save_tokenizer

onnx: Any = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("tokenizers")

WORDS = [*SPECIALS, "red", "green", "blue", "fox", "dog"]
WIDTH = 4
TABLE = numpy.random.default_rng(0).normal(size=(len(WORDS), WIDTH)).astype(numpy.float32)
TEXTS = ["red fox", "green", "blue dog red fox green dog"]


def save_network(path: Path, *, classes: int = 0) -> None:
    """ids to a state for each token; with classes, the sum of the first of them as logits."""
    make, kinds = onnx.helper, onnx.TensorProto
    names = ["input_ids", "attention_mask"]
    inputs = [make.make_tensor_value_info(each, kinds.INT64, ["rows", "length"]) for each in names]
    nodes = [make.make_node("Gather", ["table", "input_ids"], ["states"])]
    shape: list[Any] = ["rows", "length", WIDTH]
    constants = [onnx.numpy_helper.from_array(TABLE, "table")]
    if classes:
        cut = numpy.eye(WIDTH, classes, dtype=numpy.float32)
        constants += [
            onnx.numpy_helper.from_array(numpy.array([1]), "one"),
            onnx.numpy_helper.from_array(numpy.array([2]), "two"),
            onnx.numpy_helper.from_array(cut, "cut"),
        ]
        nodes += [
            make.make_node("Cast", ["attention_mask"], ["real"], to=kinds.FLOAT),
            make.make_node("Unsqueeze", ["real", "two"], ["weights"]),
            make.make_node("Mul", ["states", "weights"], ["kept"]),
            make.make_node("ReduceSum", ["kept", "one"], ["sum"], keepdims=0),
            make.make_node("MatMul", ["sum", "cut"], ["logits"]),
        ]
        shape = ["rows", classes]
    gives = make.make_tensor_value_info("logits" if classes else "states", kinds.FLOAT, shape)
    graph = make.make_graph(nodes, "net", inputs, [gives], constants)
    opsets = [make.make_opsetid("", 17)]
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(make.make_model(graph, opset_imports=opsets, ir_version=8), path)


def save_folder(folder: Path, *, classes: int = 0, **settings: Any) -> Path:
    save_network(folder / "onnx" / "model.onnx", classes=classes)
    save_tokenizer(folder, WORDS[len(SPECIALS) :])
    kind = "BertForSequenceClassification" if classes else "BertModel"
    config = {"architectures": [kind], "hidden_size": WIDTH, "max_position_embeddings": 16}
    labels = {"id2label": {str(n): f"class {n}" for n in range(classes)}} if classes else {}
    (folder / "config.json").write_text(json.dumps({**config, **labels, **settings}))
    return folder


def ids_of(*words: str) -> list[int]:
    return [WORDS.index(word) for word in ("[CLS]", *words, "[SEP]")]


def built(folder: Path, **options: Any) -> Any:
    model: Any = build(str(folder), options)
    model.setup()
    model.load()
    return model


def answers(model: Any, *values: Any) -> list[Any]:
    items = [model.prepare(value) for value in values]
    return [model.finish(result) for result in model.predict(items)]


def test_an_encoder_embeds(tmp_path: Path) -> None:
    model = built(save_folder(tmp_path))
    assert model.outputs == (Tensor("embedding", "float32", (-1, WIDTH)),)
    for text, vector in zip(TEXTS, answers(model, *TEXTS), strict=True):
        mean = TABLE[ids_of(*text.split())].mean(0)
        numpy.testing.assert_allclose(vector, mean, atol=1e-6)  # no file lists a Normalize


@pytest.mark.parametrize("said", [{"pooling_mode_cls_token": True}, {"pooling_mode": "cls"}])
def test_pooling_is_as_the_folder_says(tmp_path: Path, said: dict[str, Any]) -> None:
    folder = save_folder(tmp_path)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))
    [vector] = answers(built(folder), "red")
    numpy.testing.assert_allclose(vector, TABLE[2], atol=1e-6)


def test_several_labels_classify(tmp_path: Path) -> None:
    model = built(save_folder(tmp_path, classes=3))
    for text, found in zip(TEXTS, answers(model, *TEXTS), strict=True):
        logits = TABLE[ids_of(*text.split())].sum(0)[:3]
        powers = numpy.exp(logits - logits.max())
        order = numpy.argsort(-logits)
        assert found["labels"] == [f"class {n}" for n in order]
        numpy.testing.assert_allclose(found["scores"], (powers / powers.sum())[order], atol=1e-6)


@pytest.mark.parametrize("activation", ["torch.nn.modules.linear.Identity", ""])
def test_one_label_ranks_pairs(tmp_path: Path, activation: str) -> None:
    """As a cross-encoder: both texts in one sequence, the activation as the folder says."""
    folder = save_folder(tmp_path, classes=1, sbert_ce_default_activation_function=activation)
    [score, _] = answers(
        built(folder),
        {"query": "red fox", "document": "dog"},
        {"query": "green", "document": "blue fox dog"},
    )
    logit = TABLE[[*ids_of("red", "fox"), *ids_of("dog")[1:]]].sum(0)[0]
    expected = logit if activation else 1 / (1 + numpy.exp(-logit))
    assert score == pytest.approx(expected, abs=1e-6)
    assert score.tokens == 6


def test_a_pair_shares_the_positions_that_there_are(tmp_path: Path) -> None:
    model = built(save_folder(tmp_path, classes=1))
    pair = {"query": "red fox", "document": "dog " * 12}
    with pytest.raises(InputTooLarge, match="'document' has 12 tokens; the limit is 11"):
        model.prepare(pair)
    assert model.size(model.prepare(pair, truncate=True)) == 16
    assert model.size(model.prepare(pair, max_tokens_per_doc=5)) == 10
    with pytest.raises(InputTooLarge, match="'query' has 13 tokens; the limit is 12"):
        model.prepare({"query": "dog " * 13, "document": "red"}, truncate=True)
    assert all(model.size(model.prepare(each)) <= 16 for each in model.samples())


def test_a_task_may_be_asked_for(tmp_path: Path) -> None:
    ranker = built(save_folder(tmp_path / "embedder"), task="rerank")
    same, other = answers(
        ranker,
        {"query": "red fox", "document": "red fox"},
        {"query": "red fox", "document": "green dog"},
    )
    assert same == pytest.approx(1, abs=1e-6)
    assert same > other
    classes = save_folder(tmp_path / "classes", classes=2)
    with pytest.raises(ConfigError, match="2 classes; a reranker has one"):
        build(str(classes), {"task": "rerank"})
    with pytest.raises(ConfigError, match="'dance' is not one of"):
        build(str(classes), {"task": "dance"})


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("tokenizer_config.json", "model_max_length"),
        ("sentence_bert_config.json", "max_seq_length"),
    ],
)
def test_the_least_of_all_limits_counts(tmp_path: Path, name: str, key: str) -> None:
    folder = save_folder(tmp_path)
    (folder / name).write_text(json.dumps({key: 5}))
    with pytest.raises(InputTooLarge, match="6 tokens; the limit is 5"):
        built(folder).prepare("red red red red")
    with pytest.raises(InputTooLarge, match="6 tokens; the limit is 4"):
        built(folder, max_tokens=4).prepare("red red red red")


def test_a_folder_that_lacks_something_says_what(tmp_path: Path) -> None:
    folder = save_folder(tmp_path)
    (folder / "onnx" / "model.onnx").unlink()
    with pytest.raises(ConfigError, match=r"no safetensors and no model\.onnx"):
        build(str(folder), {})
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"tokenizer.json: there is no such file"):
        build(str(folder), {})


# ---- programs over tensors, whose axes vary


async def test_a_folder_with_one_program_is_served_as_it_is(tmp_path: Path) -> None:
    save_network(tmp_path / "net.onnx")
    assert not is_repository(str(tmp_path))
    model: Any = build(str(tmp_path), {})
    assert [each.shape for each in (*model.inputs, *model.outputs)] == [
        *((-1, -1), (-1, -1)),
        (-1, -1, WIDTH),
    ]
    async with Batcher[Any, Any](model) as batcher:
        for length in (1, 3, 7):  # nothing says which lengths there are
            ids = numpy.arange(length, dtype=numpy.int64)[None]
            found = await batcher.submit({"input_ids": ids, "attention_mask": ids * 0 + 1})
            numpy.testing.assert_allclose(found["states"][0], TABLE[:length], atol=1e-6)


def test_of_several_programs_one_must_be_called_model(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        save_network(tmp_path / name)
    with pytest.raises(ConfigError, match=r"several models \(a.onnx, b.onnx\)"):
        build(str(tmp_path), {})
    save_network(tmp_path / "model.onnx")
    assert build(str(tmp_path), {})


def test_a_folder_of_folders_is_a_repository(tmp_path: Path) -> None:
    assert is_repository(str(tmp_path))
    save_network(tmp_path / "left_over.onnx")
    save_network(tmp_path / "net" / "1" / "model.onnx")
    assert is_repository(str(tmp_path))
    assert not is_repository(str(save_folder(tmp_path / "text")))
