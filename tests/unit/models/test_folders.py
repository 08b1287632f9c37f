"""Folders that are one model: what they become, on small networks made here, without torch."""

import json
import re
from pathlib import Path
from typing import Any

import numpy
import pytest

from headway import Batcher, ConfigError, InputTooLarge, InvalidInput, Tensor
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


def save_network(path: Path, *, classes: int = 0, minds_mask: bool = True) -> None:
    """ids to a state for each token; with classes, the sum of the first of them as logits. Without
    minding the mask, a state is less the mean of all states, padding as well."""
    make, kinds = onnx.helper, onnx.TensorProto
    names = ["input_ids", "attention_mask"]
    inputs = [make.make_tensor_value_info(each, kinds.INT64, ["rows", "length"]) for each in names]
    nodes = [make.make_node("Gather", ["table", "input_ids"], ["states"])]
    if not minds_mask:
        nodes = [
            make.make_node("Gather", ["table", "input_ids"], ["own"]),
            make.make_node("ReduceMean", ["own"], ["mean"], axes=[1]),
            make.make_node("Sub", ["own", "mean"], ["states"]),
        ]
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


def test_a_model_that_does_not_say_what_it_computes_is_refused_unless_asked(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, architectures=None)
    with pytest.raises(ConfigError, match="no architectures say what the model computes"):
        build(str(folder), {})
    assert built(folder, task="embed").outputs == (Tensor("embedding", "float32", (-1, WIDTH)),)


@pytest.mark.parametrize("module", ["Normalize", "Dropout"])
def test_a_model_says_whether_it_scales_its_vectors(tmp_path: Path, module: str) -> None:
    folder = save_modules(tmp_path, "Pooling", module, Pooling={"pooling_mode": "mean"})
    assert built(folder).normalizes == (module == "Normalize")


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


def test_a_document_is_cut_at_the_side_that_its_folder_says(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, classes=1)
    file = folder / "tokenizer_config.json"
    said = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**said, "truncation_side": "left"}))
    model = built(folder)
    pair = {"query": "green", "document": "red " * 20 + "blue fox dog"}
    ids = model.prepare(pair, max_tokens_per_doc=2).ids
    assert ids[-3:] == ids_of("fox", "dog")[1:]
    assert model.prepare(pair, truncate=True).ids[-4:] == ids_of("blue", "fox", "dog")[1:]


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


# ---- what sentence-transformers writes beside a network


def save_modules(folder: Path, *kinds: str, **configs: dict[str, Any]) -> Path:
    """`modules.json` with these behind the network, each in a folder of its name."""
    save_folder(folder)
    places = {kind: f"{number}_{kind}" for number, kind in enumerate(kinds, 1)}
    listed = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
    ]
    for number, kind in enumerate(kinds, 1):
        (folder / places[kind]).mkdir(exist_ok=True)
        type_ = f"sentence_transformers.models.{kind}"
        listed.append({"idx": number, "name": str(number), "path": places[kind], "type": type_})  # type: ignore[dict-item]
        if kind in configs:
            (folder / places[kind] / "config.json").write_text(json.dumps(configs[kind]))
    (folder / "modules.json").write_text(json.dumps(listed))
    return folder


def write(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps(fields))


@pytest.mark.parametrize(
    ("mode", "pool"),
    [
        ("max", lambda states: states.max(0)),
        ("mean_sqrt_len_tokens", lambda states: states.sum(0) / len(states) ** 0.5),
        ("lasttoken", lambda states: states[-1]),
        (
            "weightedmean",
            lambda states: numpy.average(states, 0, numpy.arange(1, len(states) + 1)),
        ),
        (["cls", "max"], lambda states: numpy.concatenate([states[0], states.max(0)])),
    ],
)
def test_texts_are_pooled_in_every_way_that_there_is(tmp_path: Path, mode: Any, pool: Any) -> None:
    folder = save_modules(tmp_path, "Pooling", Pooling={"pooling_mode": mode})
    for text, vector in zip(TEXTS, answers(built(folder), *TEXTS), strict=True):
        numpy.testing.assert_allclose(vector, pool(TABLE[ids_of(*text.split())]), rtol=1e-5)


def test_vectors_are_of_length_1_only_where_that_is_listed(tmp_path: Path) -> None:
    pooling = {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True}
    plain = built(save_modules(tmp_path / "plain", "Pooling", Pooling=pooling))
    units = built(save_modules(tmp_path / "units", "Pooling", "Normalize", Pooling=pooling))
    [vector], [unit] = answers(plain, "red"), answers(units, "red")
    numpy.testing.assert_allclose(unit, vector / numpy.linalg.norm(vector), atol=1e-6)
    assert abs(float(numpy.linalg.norm(vector)) - 1) > 0.01


def test_a_prompt_goes_before_every_text_and_may_be_left_out_of_the_mean(tmp_path: Path) -> None:
    folder = save_modules(tmp_path, "Pooling", Pooling={"pooling_mode": "mean"})
    overall = folder / "config_sentence_transformers.json"
    write(overall, prompts={"query": "red fox "}, default_prompt_name="query")
    model = built(folder)
    [vector] = answers(model, "dog")
    states = TABLE[ids_of("red", "fox", "dog")]
    numpy.testing.assert_allclose(vector, states.mean(0), atol=1e-6)
    with pytest.raises(InvalidInput, match="puts 'red fox ' before the text"):
        model.prepare(ids_of("dog"))
    write(folder / "1_Pooling" / "config.json", pooling_mode="mean", include_prompt=False)
    [vector] = answers(built(folder), "dog")
    numpy.testing.assert_allclose(vector, states[3:].mean(0), atol=1e-6)


def test_a_text_may_have_another_prompt_by_its_name(tmp_path: Path) -> None:
    folder = save_modules(tmp_path, "Pooling", Pooling={"pooling_mode": "mean"})
    overall = folder / "config_sentence_transformers.json"
    prompts = {"query": "red ", "document": "blue fox "}
    write(overall, prompts=prompts, default_prompt_name="query")
    model = built(folder)
    assert model.prepare("dog").tolist() == ids_of("red", "dog")
    assert model.prepare("dog", prompt_name="document").tolist() == ids_of("blue", "fox", "dog")
    assert [each.tolist() for each in model.prepare_many(["dog"])] == [ids_of("red", "dog")]
    with pytest.raises(InvalidInput, match=r"prompt_name: 'passage' is not a prompt .* query, doc"):
        model.prepare("dog", prompt_name="passage")
    with pytest.raises(InvalidInput, match="puts 'blue fox ' before the text"):
        model.prepare(ids_of("dog"), prompt_name="document")
    write(folder / "1_Pooling" / "config.json", pooling_mode="mean", include_prompt=False)
    model = built(folder)
    assert model.prepare("dog", prompt_name="query").tolist() == ids_of("red", "dog")
    with pytest.raises(InvalidInput, match="prompt_name: 'document' is not supported"):
        model.prepare("dog", prompt_name="document")


def test_texts_are_still_prepared_together(tmp_path: Path) -> None:
    """A subclass that overrides `prepare` alone would lose `prepare_many`."""
    from headway.runtime.calling.callbacks import _prepare_many_of

    assert _prepare_many_of(built(save_folder(tmp_path))) is not None


def test_vectors_are_cut_and_texts_put_into_lower_case_where_that_is_said(tmp_path: Path) -> None:
    folder = save_modules(tmp_path, "Pooling", Pooling={"pooling_mode": "mean"})
    write(folder / "config_sentence_transformers.json", truncate_dim=3)
    write(folder / "sentence_bert_config.json", do_lower_case=True)
    model = built(folder)
    assert model.outputs[0].shape == (-1, 3)
    [vector] = answers(model, "RED")
    numpy.testing.assert_allclose(vector, TABLE[ids_of("red")].mean(0)[:3], atol=1e-6)


@pytest.mark.parametrize(
    ("file", "fields", "says"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "median"}, "pooling_mode 'median' is not in"),
        ("1_Pooling/config.json", {"attention": True}, "attention = true is not served"),
        ("1_Pooling/config.json", {"embedding_dimension": 7}, "the network gives 4 numbers"),
        ("sentence_bert_config.json", {"query_length": 32}, "query_length = 32 is not served"),
        ("sentence_bert_config.json", {"model_args": {"x": 1}}, "model_args"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "model_type"),
        ("config_sentence_transformers.json", {"default_prompt_name": "q"}, "default_prompt_name"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "maxsim"}, "'maxsim'"),
        ("config_sentence_transformers.json", {"bits": 8}, "bits = 8 is not served"),
    ],
)
def test_a_field_that_is_not_served_is_refused_by_its_name(
    tmp_path: Path, file: str, fields: dict[str, Any], says: str
) -> None:
    folder = save_modules(tmp_path, "Pooling", Pooling={"pooling_mode": "mean"})
    write(folder / file, **fields)
    with pytest.raises(ConfigError, match=re.escape(says)):
        built(folder)


@pytest.mark.parametrize("kind", ["CNN", "Dense", "WordWeights", "Normalize"])
def test_a_module_that_is_not_served_at_its_place_is_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ConfigError, match=f"{kind} at this place is not served"):
        built(save_modules(tmp_path, kind))


def test_a_module_of_the_folders_own_code_or_outside_of_it_is_refused(tmp_path: Path) -> None:
    folder = save_modules(tmp_path, "Pooling", Pooling={"pooling_mode": "mean"})
    listed = (folder / "modules.json").read_text()
    (folder / "modules.json").write_text(listed.replace("sentence_transformers.models.P", "own.P"))
    with pytest.raises(ConfigError, match=r"own.Pooling is custom code"):
        built(folder)
    (folder / "modules.json").write_text(listed.replace("1_Pooling", "../1_Pooling"))
    with pytest.raises(ConfigError, match="is outside of the folder"):
        built(folder)


def test_a_reranker_compares_as_the_model_was_trained_for(tmp_path: Path) -> None:
    folder = save_modules(tmp_path, "Pooling", Pooling={"pooling_mode": "mean"})
    overall = folder / "config_sentence_transformers.json"
    pair = {"query": "red", "document": "dog fox"}
    vectors = [TABLE[ids_of(*words)].mean(0) for words in (["red"], ["dog", "fox"])]
    for name, score in (
        ("dot", vectors[0] @ vectors[1]),
        ("euclidean", -numpy.linalg.norm(vectors[0] - vectors[1])),
        ("manhattan", -numpy.abs(vectors[0] - vectors[1]).sum()),
    ):
        write(overall, similarity_fn_name=name)
        assert answers(built(folder, task="rerank"), pair)[0] == pytest.approx(score, abs=1e-5)
    write(overall, prompts={"query": "blue ", "document": "green "}, similarity_fn_name="dot")
    blue, green = TABLE[ids_of("blue", "red")].mean(0), TABLE[ids_of("green", "dog", "fox")].mean(0)
    [found] = answers(built(folder, task="rerank"), pair)
    assert found == pytest.approx(blue @ green, abs=1e-5)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        ("multi_label_classification", lambda logits: 1 / (1 + numpy.exp(-logits))),
        ("regression", lambda logits: logits),
    ],
)
def test_classes_are_scored_by_the_kind_of_problem(
    tmp_path: Path, problem: str, expected: Any
) -> None:
    [found] = answers(built(save_folder(tmp_path, classes=3, problem_type=problem)), "red fox")
    logits = TABLE[ids_of("red", "fox")].sum(0)[:3]
    numpy.testing.assert_allclose(found["scores"], sorted(expected(logits))[::-1], atol=1e-5)


def test_a_kind_of_problem_that_is_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="problem_type = 'ranking' is not served"):
        built(save_folder(tmp_path, classes=3, problem_type="ranking"))


def test_labels_that_the_network_has_not_are_refused(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, classes=3, id2label={"0": "a", "1": "b"})
    with pytest.raises(ConfigError, match="the network gives 3 numbers for a text"):
        built(folder)


def test_a_network_that_padding_changes_is_served_one_length_at_a_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_folder(tmp_path / "model")
    save_network(folder / "onnx" / "model.onnx", minds_mask=False)
    (folder / "1_Pooling").mkdir()
    write(folder / "1_Pooling" / "config.json", pooling_mode="max")
    for text, vector in zip(TEXTS, answers(built(folder), *TEXTS), strict=True):
        states = TABLE[ids_of(*text.split())]
        numpy.testing.assert_allclose(vector, (states - states.mean(0)).max(0), atol=1e-5)
    assert "it is served one length at a time" in caplog.text
    caplog.clear()
    built(folder)
    assert "one length at a time" in caplog.text, "the second start knows it from the first"


# ---- networks that were trained for another task


@pytest.mark.parametrize(
    "kind", ["BertForTokenClassification", "BertForMaskedLM", "T5ForConditionalGeneration"]
)
def test_a_network_of_another_task_embeds_only_where_that_is_asked_for(
    tmp_path: Path, kind: str
) -> None:
    more = {"model_type": "t5", "is_encoder_decoder": True} if kind.startswith("T5") else {}
    folder = save_folder(tmp_path, architectures=[kind], **more)
    with pytest.raises(ConfigError, match=f"{kind} is not served; --options task=embed serves its"):
        build(str(folder), {})
    with pytest.raises(ConfigError, match=f"{kind} is not served"):
        build(str(folder), {"task": "classify"})
    [vector] = answers(built(folder, task="embed"), "red")
    numpy.testing.assert_allclose(vector, TABLE[ids_of("red")].mean(0), atol=1e-6)


def test_an_encoder_that_is_half_of_a_network_is_not_offered(tmp_path: Path) -> None:
    more = {"model_type": "bart", "is_encoder_decoder": True}
    folder = save_folder(tmp_path, architectures=["BartForConditionalGeneration"], **more)
    with pytest.raises(ConfigError, match=r"BartForConditionalGeneration is not served$"):
        build(str(folder), {})


@pytest.mark.parametrize("says", ["modules.json", "1_Pooling/config.json"])
def test_sentence_transformers_files_say_that_a_network_embeds(tmp_path: Path, says: str) -> None:
    folder = save_modules(tmp_path, "Pooling", Pooling={"pooling_mode": "mean"})
    config = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", **{**config, "architectures": ["BertForMaskedLM"]})
    if says != "modules.json":
        (folder / "modules.json").unlink()
    [vector] = answers(built(folder), "red")
    numpy.testing.assert_allclose(vector, TABLE[ids_of("red")].mean(0), atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "file", "fields"),
    [
        ("ViTForImageClassification", "config.json", {"image_size": 224}),
        ("Wav2Vec2ForCTC", "preprocessor_config.json", {"sampling_rate": 16000}),
    ],
)
def test_a_model_of_images_or_sound_is_refused_as_such(
    tmp_path: Path, kind: str, file: str, fields: dict[str, Any]
) -> None:
    write(tmp_path / file, **fields)
    write(tmp_path / "config.json", architectures=[kind], **fields)
    with pytest.raises(ConfigError, match=f"{kind} is not supported; a folder of transformers"):
        build(str(tmp_path), {})
    write(tmp_path / "config.json", architectures=["BertModel"])
    (tmp_path / "preprocessor_config.json").unlink(missing_ok=True)
    with pytest.raises(ConfigError, match=r"tokenizer\.json: there is no such file"):
        build(str(tmp_path), {})


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
