"""Llama and its kin (Mistral, Qwen2, Qwen3, SmolLM2), with fewer and larger operations.

Query, key and value are one product, gate and up another; norms' weights are folded into the
products after them; residuals are added by the product itself.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from headway.engine.attention.plain import PlainAttention
from headway.engine.cache import Shape
from headway.engine.decoders.rotary import SUPPORTED, pair_neighbours, rope_of, rotate, rotations

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


class _Layer:
    __slots__ = ("down", "gate_up", "out", "out_bias", "qk_norm", "qkv", "qkv_bias")

    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    qk_norm: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None
    gate_up: torch.Tensor
    down: torch.Tensor


class LlamaDecoder:
    def __init__(
        self,
        config: Mapping[str, Any],
        tensors: Iterator[tuple[str, torch.Tensor]],
        *,
        dtype: torch.dtype,
        max_context: int,
    ) -> None:
        self._heads = config["num_attention_heads"]
        self._kv_heads = config.get("num_key_value_heads") or self._heads
        self._features = config.get("head_dim") or config["hidden_size"] // self._heads
        self._epsilon = config.get("rms_norm_eps", 1e-6)
        self.vocabulary: int = config["vocab_size"]
        self.shape = Shape(config["num_hidden_layers"], self._kv_heads, self._features)
        self.dtype = dtype
        self._rotations = rotations(rope_of(config), self._features, max_context)
        given = {name.removeprefix("model."): tensor for name, tensor in tensors}
        self._embedding = given.pop("embed_tokens.weight").to(dtype)
        self._layers = [self._layer(given, index) for index in range(self.shape.layers)]
        head = given.pop("lm_head.weight", None)
        head = self._embedding if head is None or config.get("tie_word_embeddings") else head
        self._head = _folded(head, given.pop("norm.weight")).to(dtype).t().contiguous()

    def _layer(self, given: dict[str, torch.Tensor], index: int) -> _Layer:
        prefix = f"layers.{index}."

        def take(name: str) -> torch.Tensor:
            return given.pop(prefix + name).float()

        def paired(name: str) -> torch.Tensor:
            return pair_neighbours(take(name), self._features)

        def stacked(names: list[str], norm: torch.Tensor) -> torch.Tensor:
            parts = [paired(name) if name[10] in "qk" else take(name) for name in names]
            return (torch.cat(parts) * norm).to(self.dtype).t().contiguous()

        layer = _Layer()
        attention = [f"self_attn.{each}_proj" for each in "qkv"]
        norm = take("input_layernorm.weight")
        layer.qkv = stacked([f"{each}.weight" for each in attention], norm)
        layer.qkv_bias = layer.out_bias = layer.qk_norm = None
        if prefix + "self_attn.q_proj.bias" in given:
            biases = [paired(f"{each}.bias") for each in attention[:2]]
            layer.qkv_bias = torch.cat([*biases, take("self_attn.v_proj.bias")]).to(self.dtype)
        if prefix + "self_attn.o_proj.bias" in given:
            layer.out_bias = take("self_attn.o_proj.bias").to(self.dtype)
        if prefix + "self_attn.q_norm.weight" in given:
            norms = [paired(f"self_attn.{each}_norm.weight") for each in "qk"]
            counts = (self._heads, self._kv_heads)
            layer.qk_norm = torch.cat(
                [norm.expand(count, -1) for norm, count in zip(norms, counts, strict=True)]
            )
        layer.out = take("self_attn.o_proj.weight").to(self.dtype).t().contiguous()
        norm = take("post_attention_layernorm.weight")
        names = ["mlp.gate_proj.weight", "mlp.up_proj.weight"]
        layer.gate_up = (torch.cat([take(each) for each in names]) * norm).to(self.dtype)
        layer.gate_up = layer.gate_up.t().contiguous()
        layer.down = take("mlp.down_proj.weight").to(self.dtype).t().contiguous()
        return layer

    def __call__(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        attention: PlainAttention,
        rows: torch.Tensor,
    ) -> torch.Tensor:
        """The logits after these rows."""
        hidden = self._embedding[ids]
        by = self._rotations[positions][:, None]
        for index, layer in enumerate(self._layers):
            attended = self._attend(index, layer, hidden, by, attention)
            hidden = torch.addmm(hidden, attended, layer.out)
            if layer.out_bias is not None:
                hidden += layer.out_bias
            gate, up = torch.mm(self._norm(hidden), layer.gate_up).chunk(2, dim=-1)
            hidden = torch.addmm(hidden, F.silu(gate).mul_(up), layer.down)
        return torch.mm(self._norm(hidden[rows]), self._head)

    def _attend(
        self,
        index: int,
        layer: _Layer,
        hidden: torch.Tensor,
        by: torch.Tensor,
        attention: PlainAttention,
    ) -> torch.Tensor:
        qkv = torch.mm(self._norm(hidden), layer.qkv)
        if layer.qkv_bias is not None:
            qkv += layer.qkv_bias
        heads = qkv.view(len(hidden), -1, self._features)
        rotated = heads[:, : self._heads + self._kv_heads]
        if layer.qk_norm is not None:
            rotated = self._norm(rotated.float()).mul_(layer.qk_norm).to(self.dtype)
        rotated = rotate(rotated, by)
        out = attention(
            index,
            rotated[:, : self._heads],
            rotated[:, self._heads :],
            heads[:, self._heads + self._kv_heads :],
        )
        return out.view(len(hidden), -1)

    def _norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """RMSNorm without weights: those are in the product that follows."""
        return F.rms_norm(hidden, hidden.shape[-1:], eps=self._epsilon)


def _folded(weight: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    return weight.float() * norm.float()
