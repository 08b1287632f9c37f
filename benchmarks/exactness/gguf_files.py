"""Tiny GGUF files, written from a model of transformers', and that model with what was written."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from benchmarks.exactness.tokenizer_kinds import KINDS
from headway.models.chat.spelling import BYTES

_CONFIGS: dict[str, type[Any]] = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_TOP = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
_BLOCKS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "IQ2_XXS", "IQ3_S", "IQ1_S")


@dataclass
class Sample:
    """What a file is made of. `fields` replace those of a sound file; None takes one away."""

    architecture: str = "llama"
    tokenizer: str = "byte-level"
    pre: str | None = "gpt-2"
    quantisation: str = "F16"
    config: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)  # beside the model's
    without: tuple[str, ...] = ()  # tensors
    embedding: float = 0.05  # how large its values are; a norm follows


@dataclass
class Written:
    file: Path
    model: Any
    tokenizer: Tokenizer


def write(sample: Sample, file: Path) -> Written:
    tokenizer = KINDS[sample.tokenizer]()
    model = _model(sample, tokenizer.get_vocab_size())
    writer = gguf.GGUFWriter(file, sample.architecture)
    fields = {**_fields(sample, model.config), **_vocabulary(sample, tokenizer), **sample.fields}
    for name, value in fields.items():
        _add(writer, name, value)
    for name, parameter in model.named_parameters():
        own = _name(name)
        if own not in sample.without and not (name.startswith("lm_head") and _is_tied(model)):
            _add_tensor(writer, own, parameter, sample, model.config)
    for name, extra in sample.tensors.items():
        writer.add_tensor(name, extra)
    _finish(writer)
    return Written(file, model, tokenizer)


def _is_tied(model: Any) -> bool:
    return bool(model.config.tie_word_embeddings)


def _model(sample: Sample, vocabulary: int) -> Any:
    torch.manual_seed(3)
    sizes: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    }
    config = _CONFIGS[sample.architecture](**{**sizes, **sample.config})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.05)
            else:
                parameter.uniform_(0.5, 1.5)
        model.model.embed_tokens.weight.normal_(0.0, sample.embedding)
    return model


def _fields(sample: Sample, config: Any) -> dict[str, Any]:
    kind = sample.architecture
    return {
        f"{kind}.block_count": config.num_hidden_layers,
        f"{kind}.context_length": config.max_position_embeddings,
        f"{kind}.embedding_length": config.hidden_size,
        f"{kind}.feed_forward_length": config.intermediate_size,
        f"{kind}.attention.head_count": config.num_attention_heads,
        f"{kind}.attention.head_count_kv": config.num_key_value_heads,
        f"{kind}.attention.key_length": config.head_dim,
        f"{kind}.attention.value_length": config.head_dim,
        f"{kind}.attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        f"{kind}.rope.dimension_count": config.head_dim,
        f"{kind}.rope.freq_base": float(config.rope_parameters["rope_theta"]),
        f"{kind}.vocab_size": config.vocab_size,
        "general.name": "tiny",
        "general.file_type": 1,
    }


def _vocabulary(sample: Sample, tokenizer: Tokenizer) -> dict[str, Any]:
    added = tokenizer.get_added_tokens_decoder()
    size = tokenizer.get_vocab_size()
    tokens = [tokenizer.id_to_token(id_) or "" for id_ in range(size)]
    described = json.loads(tokenizer.to_str())["model"]
    is_bytes = sample.tokenizer not in ("llama-2", "gemma", "mistral")

    def kind(id_: int) -> int:
        if id_ in added:
            return 3 if added[id_].special else 4
        return 6 if tokens[id_].startswith("<0x") else 1

    found: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2" if is_bytes else "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [kind(id_) for id_ in range(size)],
        "tokenizer.ggml.eos_token_id": tokenizer.token_to_id("</s>"),
        "tokenizer.ggml.bos_token_id": tokenizer.token_to_id("<s>"),
    }
    if is_bytes:
        found["tokenizer.ggml.pre"] = sample.pre
        found["tokenizer.ggml.merges"] = [" ".join(pair) for pair in described["merges"]]
    else:
        found["tokenizer.ggml.scores"] = [-float(id_) for id_ in range(size)]
        found["tokenizer.ggml.unknown_token_id"] = tokenizer.token_to_id("<unk>")
    return found


def _add(writer: Any, name: str, value: Any) -> None:
    if value is None or name == "general.architecture":
        return
    kinds = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
    getattr(writer, f"add_{kinds[type(value)]}")(name, value)


def _name(name: str) -> str:
    parts = name.removeprefix("model.").rpartition(".")[0].split(".", 2)
    end = name.rpartition(".")[2]
    if parts[0] == "layers":
        return f"blk.{parts[1]}.{_NAMES[parts[2]]}.{end}"
    return f"{_TOP[parts[0]]}.{end}"


def _add_tensor(writer: Any, name: str, parameter: Any, sample: Sample, config: Any) -> None:
    """And the model gets what a reader of the file finds."""
    data = parameter.detach().numpy().copy()
    is_rotated = sample.architecture == "llama" and ("attn_q." in name or "attn_k." in name)
    if is_rotated:
        data = _neighbours(data, config.head_dim)
    kind = sample.quantisation if data.ndim > 1 else "F32"
    if kind == "F32":
        writer.add_tensor(name, data.astype(np.float32))
        return
    if kind == "F16":
        stored = data.astype(np.float16)
        writer.add_tensor(name, stored)
        found = stored.astype(np.float32)
    else:
        stored = _blocks(data, Kind[kind]) if kind in _BLOCKS else quantize(data, Kind[kind])
        writer.add_tensor(name, stored, raw_dtype=Kind[kind])
        found = dequantize(stored, Kind[kind])
    if is_rotated:
        found = _halves(found, config.head_dim)
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(np.ascontiguousarray(found)))


def _blocks(data: np.ndarray, kind: Kind) -> np.ndarray:
    """Any bytes are numbers to these kinds; without some bits their scales are small."""
    size, width = gguf.GGML_QUANT_SIZES[kind]
    shape = (*data.shape[:-1], data.shape[-1] // size * width)
    draw = np.random.default_rng(data.size)
    return draw.integers(0, 256, shape, dtype=np.uint8) & np.uint8(0x27)


def _neighbours(data: np.ndarray, size: int) -> np.ndarray:
    pairs = data.reshape(-1, 2, size // 2, *data.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(data.shape))


def _halves(data: np.ndarray, size: int) -> np.ndarray:
    pairs = data.reshape(-1, size // 2, 2, *data.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(data.shape))


def rope_factors(config: Mapping[str, Any], size: int) -> Iterator[float]:
    """As llama.cpp's converter writes Llama 3's scaling: by how much each frequency is slowed."""
    low = config["original_max_position_embeddings"] / config["low_freq_factor"]
    high = config["original_max_position_embeddings"] / config["high_freq_factor"]
    for place in range(0, size, 2):
        length = 2 * np.pi * config["rope_theta"] ** (place / size)
        if length < high:
            yield 1.0
        elif length > low:
            yield config["factor"]
        else:
            span = config["high_freq_factor"] - config["low_freq_factor"]
            context = config["original_max_position_embeddings"]
            smooth = (context / length - config["low_freq_factor"]) / span
            yield 1 / ((1 - smooth) / config["factor"] + smooth)


_LONGEST = 24  # bytes of a word


def write_words(text: str, pre: str, file: Path) -> Path:
    """A file whose tokens are all bytes and all parts of this text."""
    letters = {byte: letter for letter, byte in BYTES.items()}
    spelled = "".join(letters[byte] for byte in text.encode())
    parts: dict[str, None] = {}
    for start in range(len(spelled)):
        for end in range(start + 2, min(start + _LONGEST, len(spelled)) + 1):
            parts.setdefault(spelled[start:end])
    tokens = [*letters.values(), *parts, "<s>", "</s>"]
    sample = Sample(config={"vocab_size": len(tokens)})
    model = _model(sample, len(tokens))
    writer = gguf.GGUFWriter(file, "llama")
    fields = {
        **_fields(sample, model.config),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 2) + [3, 3],
        "tokenizer.ggml.merges": [f"{part[:-1]} {part[-1]}" for part in parts],
        "tokenizer.ggml.bos_token_id": len(tokens) - 2,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
    }
    for name, value in fields.items():
        _add(writer, name, value)
    for name, parameter in model.named_parameters():
        if not (name.startswith("lm_head") and _is_tied(model)):
            _add_tensor(writer, _name(name), parameter, sample, model.config)
    _finish(writer)
    return file


def _finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
