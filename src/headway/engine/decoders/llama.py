"""Llama and its kin (Mistral, Qwen2, Qwen3, SmolLM2), with fewer and larger operations: query, key
and value are one product, gate and up another; a rotation is one multiplication.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from headway.engine.adapters.peft import LowRank, Sizes, Weights
from headway.engine.adapters.products import Adapting, Product, packed
from headway.engine.attention.plain import PlainAttention
from headway.engine.cache import Shape
from headway.engine.decoders.rotary import SUPPORTED, pair_neighbours, rope_of, rotate, rotations
from headway.engine.linear import linear

KINDS = ("llama", "mistral", "qwen2", "qwen3")


def runs(config: Mapping[str, Any]) -> bool:
    """Can this module run a model of such a configuration, to the letter?"""
    return (
        config.get("model_type") in KINDS
        and config.get("hidden_act", "silu") == "silu"
        and rope_of(config)["rope_type"] in SUPPORTED
        and not config.get("mlp_bias")
        and (not config.get("sliding_window") or not config.get("use_sliding_window", True))
        and "quantization_config" not in config
    )


class LlamaDecoder:
    def __init__(
        self,
        config: Mapping[str, Any],
        tensors: Iterator[tuple[str, torch.Tensor]],
        *,
        dtype: torch.dtype,
        max_context: int,
    ) -> None:
        heads = config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") or heads
        features = config.get("head_dim") or config["hidden_size"] // heads
        self._config = config
        self.vocabulary: int = config["vocab_size"]
        self.shape = Shape(config["num_hidden_layers"], kv_heads, features)
        self.dtype = dtype
        self._rotations = rotations(rope_of(config), features, max_context)
        epsilon = config.get("rms_norm_eps", 1e-6)
        given = {name.removeprefix("model."): tensor for name, tensor in tensors}
        embedding = given.pop("embed_tokens.weight")
        self._embedding = embedding.to(dtype)
        self._layers = [
            _Layer(_Given(given, f"layers.{index}."), index, heads, self.shape, dtype, epsilon)
            for index in range(self.shape.layers)
        ]
        head = given.pop("lm_head.weight", None)
        is_tied = head is None or config.get("tie_word_embeddings")
        self._head = linear(embedding if is_tied else head, None, dtype)
        self._norm = _Norm(given.pop("norm.weight"), dtype, epsilon)

    def __call__(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        attention: PlainAttention,
        rows: torch.Tensor,
        adapting: Adapting | None = None,
    ) -> torch.Tensor:
        """The logits after these rows."""
        hidden = self._embedding[ids]
        by = self._rotations[positions][:, None]
        for layer in self._layers:
            hidden = layer(hidden, by, attention, adapting)
        return self._head(self._norm(hidden[rows]))

    @property
    def adaptable(self) -> Sizes:
        return {
            module: sizes
            for layer in range(self.shape.layers)
            for product in modules_of(self._config, layer).values()
            for module, sizes in product.items()
        }

    def packed(self, weights: Weights) -> dict[str, Product]:
        features = self.shape.head_size
        weights = {
            name: LowRank(each.down, pair_neighbours(each.up, features))
            if name.endswith(("q_proj", "k_proj"))
            else each
            for name, each in weights.items()
        }
        found = {}
        for layer in range(self.shape.layers):
            for product, modules in modules_of(self._config, layer).items():
                widths = [(name, out) for name, (_, out) in modules.items()]
                made = packed(weights, widths, self.dtype)
                if made is not None:
                    found[f"{layer}.{product}"] = made
        return found


def modules_of(config: Mapping[str, Any], layer: int) -> dict[str, dict[str, tuple[int, int]]]:
    """A layer's products, and of each the modules in it: in and out by transformers' names."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or hidden // heads
    queries, keys = heads * size, (config.get("num_key_value_heads") or heads) * size
    attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
    return {
        "qkv": {
            f"{attention}.q_proj": (hidden, queries),
            f"{attention}.k_proj": (hidden, keys),
            f"{attention}.v_proj": (hidden, keys),
        },
        "out": {f"{attention}.o_proj": (queries, hidden)},
        "gate_up": {f"{mlp}.gate_proj": (hidden, inner), f"{mlp}.up_proj": (hidden, inner)},
        "down": {f"{mlp}.down_proj": (inner, hidden)},
    }


class _Given:
    """One layer's tensors, taken out as they are packed: the originals need not stay in memory."""

    def __init__(self, tensors: dict[str, torch.Tensor], prefix: str) -> None:
        self._tensors = tensors
        self._prefix = prefix

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._tensors

    def take(self, name: str) -> torch.Tensor:
        return self._tensors.pop(self._prefix + name)


class _Norm:
    def __init__(self, weight: torch.Tensor, dtype: torch.dtype, epsilon: float) -> None:
        self._weight = weight.to(dtype)
        self._share = 1.0 / weight.shape[-1]
        self._epsilon = epsilon
        self._added = torch.tensor(epsilon)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        if hidden.dtype != torch.float32:
            return F.rms_norm(hidden, hidden.shape[-1:], self._weight, self._epsilon)
        # The same in fewer operations: for a few rows on a CPU, each costs more to call than to do.
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        scale = torch.rsqrt(torch.addcmul(self._added, length, length, value=self._share))
        return (hidden * scale).mul_(self._weight)


class _Layer:
    def __init__(
        self,
        given: _Given,
        index: int,
        heads: int,
        shape: Shape,
        dtype: torch.dtype,
        epsilon: float,
    ) -> None:
        self._index = index
        self._heads = heads
        self._rotated = heads + shape.kv_heads
        self._features = shape.head_size
        bias = given.take("self_attn.o_proj.bias") if "self_attn.o_proj.bias" in given else None
        gate_up = [given.take(f"mlp.{each}_proj.weight") for each in ("gate", "up")]
        self._products = {
            "qkv": linear(self._stacked(given, "weight"), self._biases(given), dtype),
            "out": linear(given.take("self_attn.o_proj.weight"), bias, dtype),
            "gate_up": linear(torch.cat(gate_up), None, dtype),
            "down": linear(given.take("mlp.down_proj.weight"), None, dtype),
        }
        self._before = _Norm(given.take("input_layernorm.weight"), dtype, epsilon)
        self._between = _Norm(given.take("post_attention_layernorm.weight"), dtype, epsilon)
        self._head_norms = None
        if "self_attn.q_norm.weight" in given:
            norms = [
                pair_neighbours(given.take(f"self_attn.{each}_norm.weight"), self._features)
                for each in "qk"
            ]
            self._head_norms = [_Norm(each, dtype, epsilon) for each in norms]

    def __call__(
        self,
        hidden: torch.Tensor,
        by: torch.Tensor,
        attention: PlainAttention,
        adapting: Adapting | None,
    ) -> torch.Tensor:
        heads = self._multiply("qkv", self._before(hidden), adapting)
        heads = heads.view(len(hidden), -1, self._features)
        rotated = heads[:, : self._rotated]
        if self._head_norms is not None:
            parts = rotated[:, : self._heads], rotated[:, self._heads :]
            rotated = torch.cat(
                [norm(x) for norm, x in zip(self._head_norms, parts, strict=True)], 1
            )
        rotated = rotate(rotated, by)
        queries, keys = rotated[:, : self._heads], rotated[:, self._heads :]
        attended = attention(self._index, queries, keys, heads[:, self._rotated :])
        hidden = self._multiply("out", attended.view(len(hidden), -1), adapting).add_(hidden)
        gate_up = self._multiply("gate_up", self._between(hidden), adapting)
        gate, up = gate_up.chunk(2, dim=-1)
        return self._multiply("down", F.silu(gate).mul_(up), adapting).add_(hidden)

    def _multiply(self, name: str, x: torch.Tensor, adapting: Adapting | None) -> torch.Tensor:
        out = self._products[name](x)
        return out if adapting is None else adapting.add(f"{self._index}.{name}", x, out)

    def _stacked(self, given: _Given, kind: str) -> torch.Tensor:
        query, key, value = (given.take(f"self_attn.{each}_proj.{kind}") for each in "qkv")
        paired = [pair_neighbours(each, self._features) for each in (query, key)]
        return torch.cat([*paired, value])

    def _biases(self, given: _Given) -> torch.Tensor | None:
        return self._stacked(given, "bias") if "self_attn.q_proj.bias" in given else None
