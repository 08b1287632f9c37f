"""A GGUF file's tensors under the names that transformers has, written one at a time."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headway.models.chat.gguf.metadata import Metadata

# transformers' names of a layer's parts, and llama.cpp's.
_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_ATTENTION = ("attn_q", "attn_k", "attn_v", "attn_output")
_MLP = ("ffn_gate", "ffn_up", "ffn_down")
ROPE_FACTORS = "rope_freqs.weight"
_WITHOUT_EFFECT = re.compile(r"blk\.\d+\.attn_rot_embd\.weight|rope_freqs\.weight")
_BYTES = {"F32": 4, "F16": 2, "BF16": 2}  # kept; other kinds are made F16 where that holds them
_LARGEST = float(np.finfo(np.float16).max)


class Converted(NamedTuple):
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
) -> list[Converted]:
    """Raises ConfigError where one is missing, is of another shape, or is not known. Adds to the
    configuration which biases there are, and whether the head is the embedding. `wide`: quantised
    tensors that are too large for float16."""
    from headway.engine.architecture import LlamaSpec

    found = {tensor.name: tensor for tensor in tensors}
    kind = config["model_type"]
    if kind == "llama":
        config["attention_bias"] = _has_biases(found, _ATTENTION, metadata)
        config["mlp_bias"] = _has_biases(found, _MLP, metadata)
    config["tie_word_embeddings"] = "output.weight" not in found
    expected = {_ggufs_name(name): (name, shape) for name, shape in LlamaSpec.of(config).tensors()}
    for unknown in found.keys() - expected.keys():
        if not _WITHOUT_EFFECT.fullmatch(unknown):
            raise metadata.refusal(f"its tensor {unknown!r} is not known in a {kind!r} model")
    for name, (_, shape) in expected.items():
        if name not in found:
            raise metadata.refusal(f"it holds no tensor {name!r}")
        got = tuple(int(each) for each in reversed(found[name].shape))
        if got != shape:
            raise metadata.refusal(f"its tensor {name!r} is {got}; its metadata says {shape}")
    matrices = {found[each].tensor_type.name for each, (_, shape) in expected.items() if shape[1:]}
    config["dtype"] = _dtype(matrices)
    return [
        _stored(found[each], name, shape, config, metadata, wide)
        for each, (name, shape) in expected.items()
    ]


def _ggufs_name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    part, _, what = rest.rpartition(".")
    return f"blk.{layer}.{_LAYER[part]}.{what}"


def _dtype(kinds: set[str]) -> str:
    if "F32" in kinds:
        return "float32"
    return "bfloat16" if kinds == {"BF16"} else "float16"


def _has_biases(found: Mapping[str, Any], names: Sequence[str], metadata: Metadata) -> bool:
    """Whether these projections have biases: all of them, or none."""
    biases = [f"blk.0.{name}.bias" in found for name in names]
    if any(biases) and not all(biases):
        named = ", ".join(f"{name}.bias" for name, has in zip(names, biases, strict=True) if has)
        raise metadata.refusal(f"of {', '.join(names)} only some have a bias: {named}")
    return all(biases)


def _stored(
    tensor: Any,
    name: str,
    shape: tuple[int, ...],
    config: Mapping[str, Any],
    metadata: Metadata,
    wide: frozenset[str],
) -> Converted:
    from gguf.quants import dequantize

    kind = tensor.tensor_type.name
    try:
        dequantize(tensor.data[:1], tensor.tensor_type)
    except NotImplementedError:
        raise metadata.refusal(f"its tensor {tensor.name!r} is {kind}: not supported") from None
    is_rotated = name.split(".")[-2] in ("q_proj", "k_proj")
    heads_of = config["head_dim"] if config["model_type"] == "llama" and is_rotated else None
    dtype = kind if kind in _BYTES else "F32" if tensor.name in wide else "F16"
    return Converted(tensor, name, shape, dtype, heads_of)


class TooLargeForFloat16(Exception):
    """A quantised tensor's values."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _dequantised(each: Converted) -> Iterator[np.ndarray]:
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


def write(tensors: Sequence[Converted], file: Path) -> None:
    """Write the safetensors format: a description, then one tensor after the other."""
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


def _bytes_of(each: Converted) -> Any:
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
    """Reorder rotated pairs: llama.cpp pairs neighbours, transformers the two halves of a head."""
    pairs = weights.reshape(-1, features // 2, 2, *weights.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weights.shape)
