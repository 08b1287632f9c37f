"""torch.export programs and transformers folders, made here, served through the repository.

`make test-torch` installs `headway[torch]` and runs them in a process of their own: with torch in
memory, tests that look at all objects there are see its own, too.
"""

import json
import os
import pickle
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest

from headway.config import Config, ServerConfig
from headway.errors import ConfigError
from headway.hosting.registry import Ask, Registry
from headway.server.run import serving
from word_tokenizers import save_tokenizer

if not os.environ.get("TEST_TORCH"):
    pytest.skip("make test-torch runs these", allow_module_level=True)
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

from headway.backends.torch import ExportedModel  # noqa: E402 - once we know that torch is there
from headway.models.ready.texts import encoders, pooling  # noqa: E402
from headway.models.ready.transformers import model_in  # noqa: E402

pytestmark = [pytest.mark.real_time, pytest.mark.filterwarnings("default")]
ASK = Ask()
TEXTS = ["hello world", "hello", "the quick brown fox jumps over the lazy dog"]


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x: Any, scale: Any) -> Any:
        scores = self.layer(x) * scale
        return {"scores": scores, "best": scores.argmax(1, keepdim=True)}


def save_program(path: Path, *, fixed: bool = False) -> Net:
    net = Net().eval()
    rows = torch.export.Dim("rows", min=1, max=1024)
    shapes = None if fixed else ({0: rows}, {0: rows})
    arguments = (torch.randn(2, 4), torch.ones(2, 1))
    torch.export.save(torch.export.export(net, arguments, dynamic_shapes=shapes), path)
    return net


def save_folder(folder: Path, kind: str, *, num_labels: int = 3) -> Any:
    """A small BERT with random weights, and a tokenizer of whole words."""
    folder.mkdir(parents=True)
    tokenizer = save_tokenizer(folder, sorted({word for text in TEXTS for word in text.split()}))
    config = transformers.BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        num_labels=num_labels,
    )
    torch.manual_seed(1)
    model = getattr(transformers, kind)(config).eval()
    model.save_pretrained(folder)
    return model, tokenizer


@asynccontextmanager
async def repository(root: Path) -> AsyncIterator[Registry]:
    server = ServerConfig(repository=str(root), cache_dir=str(root.parent / "cache"), drain_s=1.0)
    async with serving(Config(server=server, every_model={"warm_up_s": 0.2})) as registry:
        yield registry


async def test_an_exported_program_answers_as_torch_does(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "net" / "1"
    folder.mkdir(parents=True)
    net = save_program(folder / "model.pt2")
    async with repository(tmp_path / "models") as registry:
        served = registry.find_ready("net")
        assert [(each.name, each.dtype, each.shape) for each in served.inputs] == [
            ("x", "float32", (-1, 4)),
            ("scale", "float32", (-1, 1)),
        ]
        assert [each.name for each in served.outputs] == ["scores", "best"]
        x = numpy.random.default_rng(0).normal(size=(5, 4)).astype(numpy.float32)
        scale = numpy.full((5, 1), 2.0, numpy.float32)
        found = await served.infer({"x": x, "scale": scale}, ASK)
        with torch.no_grad():
            expected = net(torch.tensor(x), torch.tensor(scale))
        numpy.testing.assert_allclose(found["scores"], expected["scores"].numpy(), rtol=1e-5)
        assert (found["best"] == expected["best"].numpy()).all()


def test_a_program_of_fixed_rows_says_so(tmp_path: Path) -> None:
    save_program(tmp_path / "m.pt2", fixed=True)
    assert ExportedModel(tmp_path / "m.pt2").batch_sizes == (2,)


class Touch:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("pwned"),))


def test_a_program_with_a_pickle_in_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    good, bad = tmp_path / "good.pt2", tmp_path / "bad.pt2"
    save_program(good)
    evil = pickle.dumps(Touch())
    for name, content in (
        ("data/constants/opaque_obj_0", evil),
        ("data/sample_inputs/model.pt", evil),
        (
            "data/weights/model_weights_config.json",
            json.dumps({"config": {"w": {"path_name": "weight_0", "use_pickle": True}}}).encode(),
        ),
    ):
        with zipfile.ZipFile(good) as source, zipfile.ZipFile(bad, "w") as target:
            root = source.namelist()[0].partition("/")[0]
            for entry in source.namelist():
                if entry != f"{root}/{name}":
                    target.writestr(entry, source.read(entry))
            target.writestr(f"{root}/{name}", content)
        with pytest.raises(ConfigError):
            ExportedModel(bad)
        assert not (tmp_path / "pwned").exists()
    bad.write_bytes(evil)
    with pytest.raises(ConfigError, match="is not saved by torch"):
        ExportedModel(bad)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("mode", ["mean", "cls"])
async def test_a_sentence_transformers_folder_embeds(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "models" / "bert" / "1"
    model, tokenizer = save_folder(folder, "BertModel")
    (folder / "1_Pooling").mkdir()
    said = {
        "pooling_mode_cls_token": mode == "cls",
        "pooling_mode_mean_tokens": mode == "mean",
    }
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))
    async with repository(tmp_path / "models") as registry:
        served = registry.find_ready("bert")
        values = numpy.array([text.encode() for text in TEXTS], dtype=object)
        found = (await served.infer({"text": values}, ASK))["embedding"]
    for text, vector in zip(TEXTS, found, strict=True):
        ids = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            states = model(ids).last_hidden_state[0]
        expected = states[0] if mode == "cls" else states.mean(0)
        numpy.testing.assert_allclose(vector, expected.numpy(), atol=1e-5)


async def test_a_classifier_names_its_classes_best_first(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "mood" / "1"
    model, tokenizer = save_folder(folder, "BertForSequenceClassification")
    async with repository(tmp_path / "models") as registry:
        served = registry.find_ready("mood")
        values = numpy.array([text.encode() for text in TEXTS], dtype=object)
        found = await served.infer({"text": values}, ASK)
    for text, labels, scores in zip(TEXTS, found["labels"], found["scores"], strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([tokenizer.encode(text).ids])).logits[0]
        expected, order = torch.softmax(logits, 0).sort(descending=True)
        assert labels.tolist() == [f"LABEL_{n}".encode() for n in order.tolist()]
        numpy.testing.assert_allclose(scores, expected.numpy(), atol=1e-5)


async def test_a_cross_encoder_scores_as_transformers_does(tmp_path: Path) -> None:
    """Pairs of different lengths, padded together, with the types of their tokens."""
    folder = tmp_path / "models" / "ranker" / "1"
    model, tokenizer = save_folder(folder, "BertForSequenceClassification", num_labels=1)
    async with repository(tmp_path / "models") as registry:
        served = registry.find_ready("ranker")
        queries = numpy.array([TEXTS[1].encode()] * len(TEXTS), dtype=object)
        documents = numpy.array([text.encode() for text in TEXTS], dtype=object)
        found = (await served.infer({"query": queries, "document": documents}, ASK))["score"]
    for text, score in zip(TEXTS, found, strict=True):
        pair = tokenizer.encode(TEXTS[1], text)
        with torch.no_grad():
            logit = model(
                torch.tensor([pair.ids]), token_type_ids=torch.tensor([pair.type_ids])
            ).logits[0, 0]
        assert score == pytest.approx(float(torch.sigmoid(logit)), abs=1e-5)


async def test_a_program_whose_axes_vary_takes_any_length(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "mean" / "1"
    folder.mkdir(parents=True)

    class Mean(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x.mean(1)

    rows, length = torch.export.Dim("rows", min=1, max=64), torch.export.Dim("length", min=1)
    program = torch.export.export(
        Mean(), (torch.randn(2, 3, 4),), dynamic_shapes=({0: rows, 1: length},)
    )
    torch.export.save(program, folder / "model.pt2")
    async with repository(tmp_path / "models") as registry:
        served = registry.find_ready("mean")
        assert served.inputs[0].shape == (-1, -1, 4)
        for count in (1, 5, 9):
            x = numpy.random.default_rng(count).normal(size=(2, count, 4)).astype(numpy.float32)
            found = await served.infer({"x": x}, ASK)
            numpy.testing.assert_allclose(found["output"], x.mean(1), atol=1e-6)


async def test_pickled_weights_are_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "bert" / "1"
    save_folder(folder, "BertModel")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Touch()))
    async with repository(tmp_path / "models") as registry:
        [entry] = registry.index()
        assert "pickled weights" in entry.reason
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("head", [pooling.mean_of, pooling.first_of])
def test_packed_texts_answer_as_padded_ones_do(tmp_path: Path, kind: str, head: Any) -> None:
    """In float32, where nothing is rounded differently; tolerance: 2e-6."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        kind,
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        pad_token_id=1,
    )
    transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
    lengths = numpy.array([5, 17, 17, 1, 32])
    mask = (numpy.arange(32) < lengths[:, None]).astype(numpy.int64)
    ids = numpy.where(mask, numpy.random.default_rng(0).integers(2, 100, mask.shape), 1)
    batch = encoders.EncodedBatch(ids, mask, numpy.zeros_like(ids))
    rows = []
    for packs in (False, True):
        encoder = encoders.TorchEncoder(tmp_path, "AutoModel", device="cpu", packs=packs)
        encoder.load()
        rows.append(encoder.run(batch, head))
    numpy.testing.assert_allclose(rows[0], rows[1], atol=2e-6)


@pytest.mark.parametrize("dtype", ["", "float32", "bfloat16", "float16"])
def test_known_networks_are_packed_whatever_they_compute_in(tmp_path: Path, dtype: str) -> None:
    save_folder(tmp_path / "m", "BertModel")
    assert model_in(tmp_path / "m", dtype=dtype).packed
    save_folder(tmp_path / "head", "BertForSequenceClassification")
    assert not model_in(tmp_path / "head", dtype=dtype).packed, "it looks at a row's first token"


def test_numbers_that_no_network_computes_in_are_refused(tmp_path: Path) -> None:
    save_folder(tmp_path / "m", "BertModel")
    with pytest.raises(ConfigError, match="int8"):
        model_in(tmp_path / "m", dtype="int8")
