"""A GGUF file's tensors under the names that transformers has, written one at a time."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headway.models.chat.gguf.metadata import Metadata

_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_QKV, _MLP = ("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up", "ffn_down")
ROPE_FACTORS = "rope_freqs.weight"
_WITHOUT_EFFECT = re.compile(r"blk\.\d+\.attn_rot_embd\.weight|rope_freqs\.weight")
_KEPT = {
    "F32": "F32",
    "F16": "F16",
    "BF16": "BF16",
}  # the others are made F16 where that holds them
_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_LARGEST = float(np.finfo(np.float16).max)


class Stored(NamedTuple):
    """A tensor of the file, and what becomes of it."""

    tensor: Any
    name: str
    shape: tuple[int, ...]
    dtype: str  # as safetensors has it
    heads_of: int | None  # the size of a head whose rotated pairs are neighbours

    @property
    def size(self) -> int:
        return math.prod(self.shape) * _BYTES[self.dtype]


def stored(
    tensors: Sequence[Any],
    config: dict[str, Any],
    metadata: Metadata,
    wide: frozenset[str] = frozenset(),
) -> list[Stored]:
    """Raises ConfigError where one is missing, is of another shape, or is not known. Adds to the
    configuration which biases there are, and whether the head is the embedding. `wide`: quantised
    tensors that are too large for float16."""
    found = {tensor.name: tensor for tensor in tensors}
    kind = config["model_type"]
    if kind == "llama":
        config["attention_bias"] = _has_biases(found, (*_QKV, "attn_output"), metadata)
        config["mlp_bias"] = _has_biases(found, _MLP, metadata)
    shapes = dict(_expected(config))
    for name in found.keys() - shapes.keys():
        if not _WITHOUT_EFFECT.fullmatch(name):
            raise metadata.refusal(f"its tensor {name!r} is not known in a {kind!r} model")
    config["tie_word_embeddings"] = "output.weight" not in found
    if config["tie_word_embeddings"]:
        del shapes["output.weight"]
    for name, shape in shapes.items():
        if name not in found:
            raise metadata.refusal(f"it holds no tensor {name!r}")
        got = tuple(int(each) for each in reversed(found[name].shape))
        if got != shape:
            raise metadata.refusal(f"its tensor {name!r} is {got}; its metadata says {shape}")
    matrices = {found[name].tensor_type.name for name, shape in shapes.items() if len(shape) > 1}
    config["dtype"] = _dtype(matrices)
    return [_stored(found[name], shape, config, metadata, wide) for name, shape in shapes.items()]


def _dtype(kinds: set[str]) -> str:
    if "F32" in kinds:
        return "float32"
    return "bfloat16" if kinds == {"BF16"} else "float16"


def _has_biases(found: Mapping[str, Any], names: Sequence[str], metadata: Metadata) -> bool:
    """All or none."""
    biases = [f"blk.0.{name}.bias" in found for name in names]
    if any(biases) and not all(biases):
        named = ", ".join(f"{name}.bias" for name, has in zip(names, biases, strict=True) if has)
        raise metadata.refusal(f"of {', '.join(names)} only some have a bias: {named}")
    return all(biases)


def _expected(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries = config["num_attention_heads"] * size
    keys = config["num_key_value_heads"] * size
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "ffn_norm": (hidden,),
        "attn_q": (queries, hidden),
        "attn_k": (keys, hidden),
        "attn_v": (keys, hidden),
        "attn_output": (hidden, queries),
        "ffn_gate": (inner, hidden),
        "ffn_up": (inner, hidden),
        "ffn_down": (hidden, inner),
    }
    biased: list[str] = list(_QKV) if config["model_type"] == "qwen2" else []
    biased += [*_QKV, "attn_output"] if config.get("attention_bias") else []
    biased += _MLP if config.get("mlp_bias") else []
    if config["model_type"] == "qwen3":
        shapes |= {"attn_q_norm": (size,), "attn_k_norm": (size,)}
    yield "token_embd.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        for name, shape in shapes.items():
            yield f"blk.{layer}.{name}.weight", shape
        for name in biased:
            yield f"blk.{layer}.{name}.bias", shapes[name][:1]
    yield "output_norm.weight", (hidden,)
    yield "output.weight", (config["vocab_size"], hidden)


def _stored(
    tensor: Any,
    shape: tuple[int, ...],
    config: Mapping[str, Any],
    metadata: Metadata,
    wide: frozenset[str],
) -> Stored:
    from gguf.quants import dequantize

    kind = tensor.tensor_type.name
    try:
        dequantize(tensor.data[:1], tensor.tensor_type)
    except NotImplementedError:
        raise metadata.refusal(f"its tensor {tensor.name!r} is {kind}: not supported") from None
    name, heads_of = _TOP.get(tensor.name), None
    if name is None:
        _, layer, part, what = tensor.name.split(".")
        name = f"model.layers.{layer}.{_LAYER[part]}.{what}"
        if config["model_type"] == "llama" and part in ("attn_q", "attn_k"):
            heads_of = config["head_dim"]
    dtype = _KEPT.get(kind) or ("F32" if tensor.name in wide else "F16")
    return Stored(tensor, name, shape, dtype, heads_of)


class TooLargeForFloat16(Exception):
    """A quantised tensor's values."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _dequantised(each: Stored) -> Iterator[np.ndarray]:
    """A part of the rows at a time: all of them in float32 may be larger than memory."""
    from gguf.quants import dequantize

    data, kind = each.tensor.data, each.tensor.tensor_type
    step = max(1, 2**22 // max(1, data.shape[-1]))
    for first in range(0, len(data), step):
        rows = dequantize(data[first : first + step], kind)
        if each.dtype == "F32":
            yield rows
        elif float(np.abs(rows).max(initial=0.0)) > _LARGEST:
            raise TooLargeForFloat16(each.tensor.name)
        else:
            yield rows.astype(np.float16)


def write(tensors: Sequence[Stored], file: Path) -> None:
    """As safetensors has it: a description, then one tensor after the other."""
    described: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    place = 0
    for each in tensors:
        described[each.name] = {
            "dtype": each.dtype,
            "shape": each.shape,
            "data_offsets": [place, place + each.size],
        }
        place += each.size
    header = json.dumps(described).encode()
    header += b" " * (-len(header) % 8)
    with file.open("wb") as opened:
        opened.write(len(header).to_bytes(8, "little") + header)
        for each in tensors:
            opened.write(_bytes_of(each))


def _bytes_of(each: Stored) -> Any:
    kind = each.tensor.tensor_type.name
    if kind == "BF16":
        values = np.ascontiguousarray(each.tensor.data).view(np.uint16)
    elif kind in ("F32", "F16"):
        values = each.tensor.data.astype(each.tensor.data.dtype.newbyteorder("<"), copy=False)
    else:
        values = np.concatenate(list(_dequantised(each)))
    values = values.reshape(each.shape)
    if each.heads_of is not None:
        values = _halves(values, each.heads_of)
    return np.ascontiguousarray(values).tobytes()


def _halves(weights: np.ndarray, features: int) -> np.ndarray:
    """llama.cpp pairs neighbours for rotation, transformers the two halves of a head."""
    pairs = weights.reshape(-1, features // 2, 2, *weights.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weights.shape)
