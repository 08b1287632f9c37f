"""Llama and its kin (Mistral, Qwen2, Qwen3, SmolLM2), with fewer and larger operations: query, key
and value are one product, gate and up another; a rotation is one multiplication.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from headway.engine.adapters.peft import LowRank, Sizes, Weights
from headway.engine.adapters.products import Adapting, Product, packed
from headway.engine.attention.base import Attention
from headway.engine.cache import Shape
from headway.engine.cpu.kernels import Kernels
from headway.engine.cpu.layers import Parts, layers_at_once
from headway.engine.cpu.linear import Linear, PanelLinear, linear
from headway.engine.rotary import pair_neighbours, rope_of, rotate, rotations


class LlamaDecoder:
    def __init__(
        self,
        config: Mapping[str, Any],
        tensors: Iterator[tuple[str, torch.Tensor]],
        *,
        dtype: torch.dtype,
        max_context: int,
        kernels: Kernels | None = None,
        is_rounded: bool = False,
    ) -> None:
        """Rounded: with weights of 8 bits."""
        heads = config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") or heads
        features = config.get("head_dim") or config["hidden_size"] // heads
        self._config = config
        self.vocabulary: int = config["vocab_size"]
        self.shape = Shape(config["num_hidden_layers"], kv_heads, features)
        self.longest = max_context
        self.dtype = dtype
        self.kernels = kernels
        self._row_dtype = dtype if kernels is None else torch.float32
        self._rotations = rotations(rope_of(config), features, max_context)
        epsilon = config.get("rms_norm_eps", 1e-6)
        make = _Make(self._row_dtype, epsilon, kernels, is_rounded)
        given = {name.removeprefix("model."): tensor for name, tensor in tensors}
        embedding = given.pop("embed_tokens.weight")
        self._embedding = embedding.to(dtype)
        self._layers = [
            _Layer(_Given(given, f"layers.{index}."), index, heads, self.shape, make)
            for index in range(self.shape.layers)
        ]
        self._at_once = layers_at_once(
            kernels,
            [each.parts() for each in self._layers],
            self.shape,
            epsilon,
            width=embedding.shape[1],
        )
        head = given.pop("lm_head.weight", None)  # None: it is the embedding
        self._head = make.linear(embedding if head is None else head)
        self._norm = make.norm(given.pop("norm.weight"))

    def __call__(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        attention: Attention,
        rows: torch.Tensor,
        adapting: Adapting | None = None,
    ) -> torch.Tensor:
        """The logits after these rows."""
        hidden = self._embedding[ids].to(self._row_dtype)
        by = self._rotations[positions][:, None]
        layout = attention.layout() if self._at_once is not None and adapting is None else None
        if self._at_once is not None and layout is not None:
            self._at_once(hidden, by, layout)
        else:
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
                made = packed(weights, widths, self._row_dtype)
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


@dataclass(frozen=True, slots=True)
class _Make:
    """What all layers' parts have in common."""

    dtype: torch.dtype  # of the rows
    epsilon: float
    kernels: Kernels | None
    is_rounded: bool

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        return linear(weight, bias, self.dtype, self.kernels, is_rounded=self.is_rounded)

    def norm(self, weight: torch.Tensor) -> "_Norm":
        kernels = self.kernels_for(weight.shape[-1])
        return _Norm(weight, self.dtype, self.epsilon, kernels)

    def kernels_for(self, width: int) -> Kernels | None:
        """None: not for rows of this width."""
        kernels = self.kernels
        return kernels if kernels is not None and kernels.is_whole(width) else None


class _Norm:
    def __init__(
        self, weight: torch.Tensor, dtype: torch.dtype, epsilon: float, kernels: Kernels | None
    ) -> None:
        self._kernels = kernels
        self._weight = weight.to(dtype)
        self._share = 1.0 / weight.shape[-1]
        self._epsilon = epsilon
        self._added = torch.tensor(epsilon, dtype=torch.float32)

    def by_kernel(self) -> torch.Tensor | None:
        """The weights, where a kernel computes it."""
        return None if self._kernels is None else self._weight

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._kernels is not None:
            return self._kernels.normalize(hidden, self._weight, self._epsilon)
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
        make: _Make,
    ) -> None:
        self._index = index
        self._heads = heads
        self._rotated = heads + shape.kv_heads
        self._features = shape.head_size
        bias = given.take("self_attn.o_proj.bias") if "self_attn.o_proj.bias" in given else None
        gate_up = [given.take(f"mlp.{each}_proj.weight") for each in ("gate", "up")]
        self._products = {
            "qkv": make.linear(self._stacked(given, "weight"), self._biases(given)),
            "out": make.linear(given.take("self_attn.o_proj.weight"), bias),
            "gate_up": make.linear(torch.cat(gate_up)),
            "down": make.linear(given.take("mlp.down_proj.weight")),
        }
        self._before = make.norm(given.take("input_layernorm.weight"))
        self._between = make.norm(given.take("post_attention_layernorm.weight"))
        self._rotates = make.kernels_for(self._features)
        self._gates = make.kernels_for(len(gate_up[0]))
        self._head_norms = None
        if "self_attn.q_norm.weight" in given:
            norms = [
                pair_neighbours(given.take(f"self_attn.{each}_norm.weight"), self._features)
                for each in "qk"
            ]
            self._head_norms = [make.norm(each) for each in norms]

    def __call__(
        self,
        hidden: torch.Tensor,
        by: torch.Tensor,
        attention: Attention,
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
        if self._rotates is not None:
            self._rotates.rotate(rotated, self._rotated, by)
        else:
            rotated = rotate(rotated, by)
        queries, keys = rotated[:, : self._heads], rotated[:, self._heads :]
        attended = attention(self._index, queries, keys, heads[:, self._rotated :])
        hidden = self._multiply("out", attended.view(len(hidden), -1), adapting).add_(hidden)
        gate_up = self._multiply("gate_up", self._between(hidden), adapting)
        if self._gates is not None:
            gated = self._gates.gate(gate_up)
        else:
            gate, up = gate_up.chunk(2, dim=-1)
            gated = F.silu(gate).mul_(up)
        return self._multiply("down", gated, adapting).add_(hidden)

    def parts(self) -> Parts | None:
        """For the kernels; None: they do not know all of them."""
        products = [
            each
            for each in self._products.values()
            if isinstance(each, PanelLinear) and not each.is_filled_up
        ]
        before, between = self._before.by_kernel(), self._between.by_kernel()
        has_kernels = self._rotates is not None and self._gates is not None
        if not has_kernels or len(products) < len(self._products) or self._head_norms is not None:
            return None
        if before is None or between is None:
            return None
        qkv, out, gate_up, down = products
        return Parts(qkv, out, gate_up, down, before, between)

    def _multiply(self, name: str, x: torch.Tensor, adapting: Adapting | None) -> torch.Tensor:
        out = self._products[name](x)
        return out if adapting is None else adapting.add(f"{self._index}.{name}", x, out)

    def _stacked(self, given: _Given, kind: str) -> torch.Tensor:
        query, key, value = (given.take(f"self_attn.{each}_proj.{kind}") for each in "qkv")
        paired = [pair_neighbours(each, self._features) for each in (query, key)]
        return torch.cat([*paired, value])

    def _biases(self, given: _Given) -> torch.Tensor | None:
        return self._stacked(given, "bias") if "self_attn.q_proj.bias" in given else None
