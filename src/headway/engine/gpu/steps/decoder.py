"""Decoders of Llama's family on a GPU: packed projections, and our kernels between them.

The weights of q, k and v are one matrix, and so are gate's and up's. Norms, rotary embedding, cache
writes, activation and attention are our kernels; matrix products are the vendor's library. It knows
no sequences: tokens, places and tables come in as tensors.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.nn import functional

from headway.engine.cache import Shape
from headway.engine.gpu.kernels.activation import silu_and_multiply
from headway.engine.gpu.kernels.eight_bit import RowScaled
from headway.engine.gpu.kernels.norm import rms_norm
from headway.engine.gpu.kernels.rotary import rotate_and_store
from headway.engine.rotary import rope_of, rotations

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # queries, keys, values


class Adapt(Protocol):
    """What the rows' adapters add to a layer's product: begun before it, finished after it."""

    def start(self, layer: int, product: str, x: torch.Tensor) -> torch.Tensor: ...

    def finish(self, layer: int, product: str, parts: torch.Tensor, out: torch.Tensor) -> None: ...


Tensors = Iterator[tuple[str, torch.Tensor]]
PROJECTIONS = ("qkv", "out", "gate_up", "down")


@dataclass(slots=True)
class _Layer:
    norm: torch.Tensor
    qkv: Any  # a matrix, or a Projection
    qkv_bias: torch.Tensor | None
    qk_norms: tuple[torch.Tensor, torch.Tensor] | None
    out: Any
    out_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: Any
    down: Any


class GpuDecoder:
    def __init__(
        self,
        config: Mapping[str, Any],
        tensors: Tensors,
        *,
        dtype: torch.dtype,
        device: str,
        max_context: int,
    ) -> None:
        self.heads: int = config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") or self.heads
        size = config.get("head_dim") or config["hidden_size"] // self.heads
        self.shape = Shape(config["num_hidden_layers"], kv_heads, size)
        self.vocabulary: int = config["vocab_size"]
        self.dtype = dtype
        self.device = device
        self._epsilon = config.get("rms_norm_eps", 1e-6)
        turns = rotations(rope_of(config), size, max_context).to(device)
        self._cosines, self._sines = turns.real.contiguous(), turns.imag.contiguous()
        given = {
            name.removeprefix("model."): tensor.to(device=device, dtype=dtype)
            for name, tensor in tensors
        }
        self._embedding = given.pop("embed_tokens.weight")
        self._layers = [_layer(given, index) for index in range(self.shape.layers)]
        self._norm = given.pop("norm.weight")
        head = given.pop("lm_head.weight", None)  # None: it is the embedding
        self._head = self._embedding if head is None else head

    def quantise(self) -> None:
        """From now on the layers' weights are 8-bit floats. The head's stay."""
        for layer in self._layers:
            for which in PROJECTIONS:
                setattr(layer, which, RowScaled(getattr(layer, which)))

    def hidden(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        places: torch.Tensor,
        cache: tuple[list[torch.Tensor], list[torch.Tensor]],
        attend: Attend,
        adapt: Adapt | None = None,
    ) -> torch.Tensor:
        """The last layer's states, normalised: tokens × hidden."""
        residual = functional.embedding(ids, self._embedding)
        x = rms_norm(residual, self._layers[0].norm, self._epsilon)
        for number, layer in enumerate(self._layers):
            keys, values = cache[0][number], cache[1][number]
            qkv = self._project(number, "qkv", x, adapt, layer.qkv_bias)
            queries = rotate_and_store(
                qkv,
                self._cosines,
                self._sines,
                positions,
                places,
                keys,
                values,
                self.heads,
                layer.qk_norms,
                self._epsilon,
            )
            attended = attend(queries, keys, values).flatten(1)
            x = self._project(number, "out", attended, adapt, layer.out_bias)
            x = rms_norm(x, layer.mlp_norm, self._epsilon, residual)
            x = silu_and_multiply(self._project(number, "gate_up", x, adapt))
            x = self._project(number, "down", x, adapt)
            is_last = number + 1 == self.shape.layers
            after = self._norm if is_last else self._layers[number + 1].norm
            x = rms_norm(x, after, self._epsilon, residual)
        return x

    def _project(
        self,
        number: int,
        which: str,
        x: torch.Tensor,
        adapt: Adapt | None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        weight = getattr(self._layers[number], which)
        parts = None if adapt is None else adapt.start(number, which, x)
        if isinstance(weight, torch.Tensor):
            out = functional.linear(x, weight, bias)
        else:
            out = weight(x) if bias is None else weight(x).add_(bias)
        if adapt is not None and parts is not None:
            adapt.finish(number, which, parts, out)
        return out

    def logits(self, states: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        return torch.mm(states, self._head.t(), out=out)


def _layer(given: dict[str, torch.Tensor], index: int) -> _Layer:
    prefix = f"layers.{index}."

    def take(name: str) -> torch.Tensor:
        return given.pop(prefix + name)

    def has(name: str) -> bool:
        return prefix + name in given

    attention = [f"self_attn.{each}_proj" for each in "qkv"]
    norms = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
    is_biased = has("self_attn.q_proj.bias")
    return _Layer(
        norm=take("input_layernorm.weight"),
        qkv=torch.cat([take(f"{each}.weight") for each in attention]),
        qkv_bias=torch.cat([take(f"{each}.bias") for each in attention]) if is_biased else None,
        qk_norms=(take(norms[0]), take(norms[1])) if has(norms[0]) else None,
        out=take("self_attn.o_proj.weight"),
        out_bias=take("self_attn.o_proj.bias") if has("self_attn.o_proj.bias") else None,
        mlp_norm=take("post_attention_layernorm.weight"),
        gate_up=torch.cat([take("mlp.gate_proj.weight"), take("mlp.up_proj.weight")]),
        down=take("mlp.down_proj.weight"),
    )
