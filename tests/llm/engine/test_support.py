"""Which models are computed, by which engine, and the reason why another is not."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from models import CONFIGS, build
from transformers import AutoModelForCausalLM, Gemma3TextConfig, Lfm2Config, MistralConfig

from headway.engine.decoders import interface
from headway.engine.decoders.interface import causal_until
from headway.engine.decoders.loading import load
from headway.engine.starting import EngineOptions, start
from headway.engine.support import longest_of, why_not, why_unknown
from headway.errors import ConfigError

LLAMA: dict[str, Any] = {
    **{"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "vocab_size": 50},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
}
SMALL: dict[str, Any] = {
    **{"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "head_dim": 8},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "rwkv"}, "model_type 'rwkv'"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"new_trick": 3}, "new_trick"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope type 'yarn'"),
        ({"rope_scaling": {"type": "linear"}}, "lacks factor"),
        ({"rope_scaling": {**LINEAR, "attention_factor": 2.0}}, "attention_factor is not known"),
        ({"rope_scaling": LINEAR, "rope_theta": 5.0}, "rope_theta"),
        ({"rope_scaling": LINEAR, "rope_parameters": {**LINEAR, "factor": 3.0}}, "rope_scaling"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "MLX"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        ({"num_key_value_heads": 3}, "not a multiple"),
        ({"hidden_size": None}, "hidden_size"),
        ({"model_type": ["llama"]}, "model_type is ['llama']"),
        ({"rope_parameters": {"rope_type": ["default"]}}, "rope_type is ['default']"),
        ({"rope_parameters": []}, "rope_parameters is not an object"),
        ({"layer_types": 2}, "layer_types is 2, no list"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers of 2"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5'"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps is -1.0"),
        ({"head_dim": 8.0}, "head_dim is 8.0"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"num_key_value_heads": "2"}, "num_key_value_heads is '2'"),
        ({"max_position_embeddings": None}, "max_position_embeddings is None"),
    ],
)
@pytest.mark.parametrize("engine", ["own", "gpu"])
def test_the_reason_is_named(changes: dict[str, Any], words: str, engine: Any) -> None:
    assert why_not(LLAMA, engine) is None
    assert words in str(why_not({**LLAMA, **changes}, engine))


def test_a_kind_that_transformers_does_not_know_is_named_without_importing_it() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    said = why_unknown({"model_type": "brandnew"})
    assert said is not None
    assert said.startswith("model_type 'brandnew' is not known to transformers ")
    assert not [each for each in CONFIG_MAPPING if why_unknown({"model_type": each})]


def test_a_window_is_no_reason_for_the_context_ends_there() -> None:
    mistral = {**LLAMA, "model_type": "mistral", "sliding_window": 32}
    assert [why_not(mistral, engine) for engine in ("own", "gpu", "transformers")] == [None] * 3
    assert longest_of(mistral) == 32
    assert longest_of({**LLAMA, "model_type": "mistral"}) == 4096  # the class's own
    assert longest_of({"text_config": mistral, "model_type": "sees"}) == 32


def test_a_longrope_ends_where_its_factors_change() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64}
    config = {**LLAMA, "model_type": "phi3", "max_position_embeddings": 512}
    assert longest_of({**config, "rope_parameters": rope}) == 64


def test_heads_that_a_gpu_has_no_kernels_for_are_refused_there() -> None:
    assert "head_dim is 24" in str(why_not({**LLAMA, "head_dim": 24}, "gpu"))
    assert why_not({**LLAMA, "head_dim": 24}, "own") is None


def test_a_model_with_a_state_beside_attention_is_refused(tmp_path: Path) -> None:
    config = Lfm2Config(**SMALL, num_hidden_layers=3, full_attn_idxs=[0, 2])
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="conv"):
        load(tmp_path, dtype=torch.float32, max_context=64)


def test_a_window_ends_the_context_of_a_model_of_transformers(tmp_path: Path) -> None:
    config = Gemma3TextConfig(**SMALL, num_hidden_layers=2, sliding_window=24)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    options = EngineOptions(dtype="float32", device="cpu", threads=1, kv_cache_gib=0.01)
    assert start(tmp_path, options).limits.max_context == 24


def test_an_own_model_s_window_ends_its_context(tmp_path: Path) -> None:
    config = MistralConfig(**SMALL, num_hidden_layers=2, sliding_window=24)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    options = EngineOptions(dtype="float32", device="cpu", threads=1, kv_cache_gib=0.01)
    assert start(tmp_path, options).limits.max_context == 24


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (lambda batch, head, query, key: key <= query, 200),
        (lambda batch, head, query, key: (key <= query) & (key > query - 32), 32),
        (lambda batch, head, query, key: (key <= query) & (key // 40 == query // 40), 40),
        (lambda batch, head, query, key: key >= 0, 0),
    ],
)
def test_a_mask_is_the_triangle_up_to_its_window(mask: Any, expected: int) -> None:
    assert causal_until(mask, 200) == expected


def test_attention_that_is_computed_wrongly_fails_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = build("gpt2", tmp_path)
    right = interface._attend

    def wrong(module: Any, query: Any, *given: Any, **keywords: Any) -> Any:
        return right(module, query * 1.01, *given, **keywords)

    monkeypatch.setattr(interface, "_attend", wrong)
    with pytest.raises(ConfigError, match="is not what transformers computes"):
        load(folder, dtype=torch.float32, max_context=64)


def test_the_second_start_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = build("gpt2", tmp_path)
    load(folder, dtype=torch.float32, max_context=64)
    monkeypatch.setattr("headway.engine.decoders.proof._check_answers", None)
    load(folder, dtype=torch.float32, max_context=64)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "layer_norm_epsilon": 1e-3}))
    with pytest.raises(ConfigError, match="proof"):
        load(folder, dtype=torch.float32, max_context=64)


@pytest.mark.parametrize("kind", [kind for kind in CONFIGS if kind != "gpt2"])
def test_every_kind_of_ours_is_ours(kind: str, tmp_path: Path) -> None:
    config = CONFIGS[kind]().to_dict()
    assert why_not(config, "own") is None
