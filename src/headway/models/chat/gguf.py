"""GGUF files, turned into a folder as `transformers` saves one: weights in fp16, a tokenizer, a
configuration. Once, into a cache; afterwards the folder is all that is read.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from headway.errors import ConfigError
from headway.models.chat.unfinished import unfinished_folder

CONVERTER = 2  # raise when what is written changes: the cache is keyed by it
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NO_DEFAULTS: Mapping[str, float] = {}
_SPECIAL = 3  # a token's type: control


def converted(file: Path, cache: Path, defaults: Mapping[str, float] = _NO_DEFAULTS) -> Path:
    """The folder for a GGUF file, made now if it is not in the cache yet. Raises ConfigError.

    `defaults`: of sampling, which no GGUF file has a place for.
    """
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256")
    digest.update(json.dumps(sorted(defaults.items())).encode() if defaults else b"")
    folder = cache / "gguf" / f"{digest.hexdigest()[:32]}-{CONVERTER}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Written elsewhere and moved: a process that finds the folder finds it whole.
    try:
        with unfinished_folder(folder.parent, "unfinished-") as unfinished:
            _convert(file, unfinished, defaults)
            os.rename(unfinished, folder)
    except ConfigError:
        raise
    except KeyError as error:
        raise ConfigError(f"{file}: its metadata has no {error}") from error
    except OSError:
        if not folder.is_dir():  # else another process was first
            raise
    except Exception as error:  # a file may hold anything
        raise ConfigError(f"{file} is no GGUF file that can be read: {error}") from error
    return folder


def _convert(file: Path, folder: Path, defaults: Mapping[str, float]) -> None:
    try:
        from gguf import GGUFReader
        from safetensors.numpy import save_file
    except ImportError as error:
        raise ConfigError(f"{file}: GGUF files need pip install 'headway[llm]'") from error
    try:
        reader = GGUFReader(file)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise ConfigError(f"{file} is no GGUF file that can be read: {error}") from error
    config = _config(fields, file)
    tensors = dict(_tensors(reader.tensors, config))
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    special = {
        name: fields["tokenizer.ggml.tokens"][fields[f"tokenizer.ggml.{name}_id"]]
        for name in ("bos_token", "eos_token")
        if f"tokenizer.ggml.{name}_id" in fields
    }
    _tokenizer(fields, file).save(str(folder / "tokenizer.json"))
    template = fields.get("tokenizer.chat_template")
    _write(folder / "tokenizer_config.json", {**special, "chat_template": template})
    ends = {"eos_token_id": config["eos_token_id"]}
    _write(folder / "generation_config.json", {**ends, **defaults})
    _write(folder / "config.json", config)


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2))


def _config(fields: dict[str, Any], file: Path) -> dict[str, Any]:
    kind = fields["general.architecture"]
    if kind not in _ARCHITECTURES:
        raise ConfigError(f"{file}: a {kind!r} model; GGUF is read for {', '.join(_ARCHITECTURES)}")
    heads = fields[f"{kind}.attention.head_count"]
    hidden = fields[f"{kind}.embedding_length"]
    return {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": kind,
        "hidden_size": hidden,
        "intermediate_size": fields[f"{kind}.feed_forward_length"],
        "num_hidden_layers": fields[f"{kind}.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields.get(f"{kind}.attention.head_count_kv", heads),
        "head_dim": fields.get(f"{kind}.attention.key_length", hidden // heads),
        "max_position_embeddings": fields[f"{kind}.context_length"],
        "rms_norm_eps": round(fields[f"{kind}.attention.layer_norm_rms_epsilon"], 12),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": fields.get(f"{kind}.rope.freq_base", 10000.0),
        },
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "hidden_act": "silu",
        "dtype": "float16",
    }


def _tensors(tensors: Any, config: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    from gguf.quants import dequantize

    for tensor in tensors:
        weights = dequantize(tensor.data, tensor.tensor_type).astype(np.float16)
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", tensor.name)
        if layer is None:
            name, _, kind = tensor.name.rpartition(".")
            if name in _NAMES:
                yield f"{_NAMES[name]}.{kind}", weights
            continue
        index, name, kind = layer.groups()
        if name in {"attn_q", "attn_k"} and config["model_type"] == "llama":
            weights = _halves(weights, config["head_dim"])
        yield f"model.layers.{index}.{_NAMES[name]}.{kind}", np.ascontiguousarray(weights)


def _halves(weights: np.ndarray, features: int) -> np.ndarray:
    """llama.cpp pairs neighbours for rotation, transformers the two halves of a head."""
    pairs = weights.reshape(-1, features // 2, 2, *weights.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weights.shape)


def _tokenizer(fields: dict[str, Any], file: Path) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    if fields.get("tokenizer.ggml.model") != "gpt2":
        raise ConfigError(f"{file}: only byte-level BPE tokenizers are read from GGUF files")
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(each.split(" ")) for each in fields.get("tokenizer.ggml.merges", [])]
    vocabulary = {each: index for index, each in enumerate(tokens)}
    for merge in merges:
        if len(merge) != 2 or "".join(merge) not in vocabulary:  # `tokenizers` would panic
            raise ConfigError(f"{file}: its tokenizer merges {' '.join(merge)!r:.80} to no token")
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if fields.get("tokenizer.ggml.pre") == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    elif fields.get("tokenizer.ggml.pre") == "qwen2":
        pattern = Regex(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
        split = pre_tokenizers.Split(pattern, behavior="isolated")
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, plain])
    else:
        tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = decoders.ByteLevel()
    types = fields.get("tokenizer.ggml.token_type", [])
    special = [token for token, kind in zip(tokens, types, strict=False) if kind == _SPECIAL]
    tokenizer.add_special_tokens([AddedToken(each, normalized=False) for each in special])
    return tokenizer
