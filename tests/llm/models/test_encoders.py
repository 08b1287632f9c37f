"""Folders of encoders as torch runs them: whole, or refused; in company what they are alone."""

import json
import os
from pathlib import Path
from typing import Any

import numpy
import pytest

from full_disk import room_for
from headway.engine.weights import stored_tensors
from headway.errors import ConfigError
from headway.files import ProofNote
from headway.models.catalogue import build
from word_tokenizers import SPECIALS, save_tokenizer

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WORDS = ["red", "green", "blue", "fox", "dog"]
TEXTS = ["red fox", "green [PAD] dog", "blue dog red fox green dog " * 4, "dog"]
SMALL = {
    "vocab_size": len(SPECIALS) + len(WORDS),
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def save(folder: Path, kind: str, **more: Any) -> tuple[Any, Any]:
    folder.mkdir()
    tokenizer = save_tokenizer(folder, WORDS)
    tokenizer.add_special_tokens(SPECIALS)  # a text may spell them
    tokenizer.save(str(folder / "tokenizer.json"))
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **{**SMALL, **more})
    model = transformers.AutoModel.from_config(config).eval()
    model.save_pretrained(folder)
    return model, tokenizer


def built(folder: Path, **options: Any) -> Any:
    model: Any = build(str(folder), options)
    model.setup()
    model.load()
    return model


def alone(model: Any, tokenizer: Any, text: str) -> Any:
    with torch.no_grad():
        return model(torch.tensor([tokenizer.encode(text).ids]))[0][0].mean(0).numpy()


@pytest.mark.parametrize("kind", ["bert", "roberta", "fnet", "modernbert", "deberta-v2"])
def test_a_text_has_in_company_the_vector_that_transformers_gives_it_alone(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One of them spells the padding's token; FNet mixes the padding in."""
    model, tokenizer = save(tmp_path / "model", kind)
    ours = built(tmp_path / "model")
    for text, vector in zip(TEXTS, ours.predict([*map(ours.prepare, TEXTS)]), strict=True):
        expected = alone(model, tokenizer, text)
        numpy.testing.assert_allclose(vector, expected, atol=2e-5)
    assert ("it is served one length at a time" in caplog.text) == (kind == "fnet")


def test_what_was_proved_is_not_proved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path / "model", "fnet")
    built(tmp_path / "model")
    caplog.clear()
    monkeypatch.setattr(
        "headway.models.ready.texts.proof.find_together", None
    )  # it would be called
    assert built(tmp_path / "model")
    assert "it is served one length at a time" in caplog.text


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"mask_token": "fox"}, "the token 'fox'"),
        ({"split_special_tokens": True}, "two tokenizers"),
        ({"model_max_length": "x"}, "model_max_length"),
    ],
)
def test_what_another_tokenizer_has_proved_is_not_this_one_s(
    tmp_path: Path, more: dict[str, Any], says: str
) -> None:
    save(tmp_path / "model", "bert")
    file = tmp_path / "model" / "tokenizer_config.json"
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64}
    file.write_text(json.dumps(said))
    built(tmp_path / "model")
    file.write_text(json.dumps({**said, **more}))
    with pytest.raises(ConfigError, match=says):
        built(tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "value"), [("model_type", {}), ("architectures", -1), ("pad_token_id", "0")]
)
def test_a_setting_of_another_kind_is_refused_by_its_name(
    tmp_path: Path, name: str, value: object
) -> None:
    save(tmp_path / "model", "bert")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))
    with pytest.raises(ConfigError, match=f"{name} = .* is not served"):
        built(tmp_path / "model")


def test_a_token_beyond_the_networks_table_is_refused_where_numbers_are_left_out(
    tmp_path: Path,
) -> None:
    save(tmp_path / "model", "bert")
    file = tmp_path / "model" / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["model"]["vocab"]["fox"] = 10**6
    file.write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match="token"):
        built(tmp_path / "model")


def test_a_tokenizer_that_tokenizers_gives_up_on_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "model", "bert")
    file = tmp_path / "model" / "tokenizer.json"
    broken = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    file.write_text(json.dumps({**json.loads(file.read_text()), "normalizer": broken}))
    with pytest.raises(ConfigError, match="tokenizers cannot load it"):
        built(tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompts", ["a"]),
        ("prompts", {"query": 1}),
        ("truncate_dim", "8"),
        ("truncate_dim", 0),
        ("default_prompt_name", ["a"]),
    ],
)
def test_a_field_of_another_kind_is_refused_by_its_name(
    tmp_path: Path, name: str, value: object
) -> None:
    save(tmp_path / "model", "bert")
    file = tmp_path / "model" / "config_sentence_transformers.json"
    file.write_text(json.dumps({name: value}))
    with pytest.raises(ConfigError, match=f"{name}.* is not served"):
        built(tmp_path / "model")


def test_a_full_disk_keeps_no_note_and_stops_no_model() -> None:
    note = ProofNote([], "a network")
    with room_for(0):
        note.write("any")
    assert note.read() is None


@pytest.mark.parametrize(
    ("name", "says"),
    [("encoder.layer.1.output.dense.weight", "lack"), ("encoder.layer.9.x", "does not know")],
)
def test_a_network_that_is_not_whole_is_refused(tmp_path: Path, name: str, says: str) -> None:
    from safetensors.torch import load_file, save_file

    save(tmp_path / "model", "bert")
    file = tmp_path / "model" / "model.safetensors"
    tensors = load_file(file)
    if tensors.pop(name, None) is None:
        tensors[name] = torch.zeros(2)
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(ConfigError, match=f"{says}.* {name}"):
        built(tmp_path / "model")


def test_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    save(tmp_path / "model", "bert")
    file = tmp_path / "model" / "model.safetensors"
    whole = file.stat().st_size
    os.truncate(file, 5000)
    said = rf"model\.safetensors: the file ends after 5000 of {whole} bytes"
    with pytest.raises(ConfigError, match=said):
        built(tmp_path / "model")
    with pytest.raises(ConfigError, match=said):
        stored_tensors(tmp_path / "model")


def test_a_head_that_nothing_is_asked_of_may_be_there(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save(folder, "bert")
    config = transformers.BertConfig(**SMALL)
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    with pytest.raises(ConfigError, match="BertForMaskedLM is not served; --options task=embed"):
        built(folder)
    assert len(built(folder, task="embed").predict([[2, 4, 3]])[0]) == 16


def test_a_tokenizer_with_more_tokens_than_the_network_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "model", "bert", vocab_size=5)
    with pytest.raises(ConfigError, match=r"9 tokens in tokenizer\.json; the network knows 5"):
        built(tmp_path / "model")
