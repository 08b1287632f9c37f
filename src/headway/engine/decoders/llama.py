"""Llama and its kin (Mistral, Qwen2, Qwen3, SmolLM2), with fewer and larger operations: query, key
and value are one product, gate and up another; a rotation is one multiplication.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from headway.engine.adapters.peft import LowRank, Sizes, Weights
from headway.engine.adapters.products import Adapting, Product, packed
from headway.engine.architecture import LlamaSpec
from headway.engine.attention.base import Attention
from headway.engine.cache import CacheShape
from headway.engine.cpu.kernels import Kernels
from headway.engine.cpu.layers import Parts, layers_at_once
from headway.engine.cpu.linear import Linear, PanelLinear, linear
from headway.engine.cpu.runner import DecoderInputs
from headway.engine.rotary import pair_neighbours, rotate, rotations
from headway.engine.weights import LayerWeights, take_layer


class LlamaDecoder:
    def __init__(
        self,
        spec: LlamaSpec,
        tensors: Iterator[tuple[str, torch.Tensor]],
        *,
        dtype: torch.dtype,
        max_context: int,
        kernels: Kernels | None = None,
        is_rounded: bool = False,
    ) -> None:
        """`is_rounded`: with weights of 8 bits."""
        self._spec = spec
        self.vocabulary = spec.vocabulary
        self.shape = CacheShape(spec.layers, spec.kv_heads, spec.head_size)
        self.longest = max_context
        self.dtype = dtype
        self.kernels = kernels
        self._row_dtype = dtype if kernels is None else torch.float32
        self._rotations = rotations(spec.rope, spec.head_size, max_context)
        make = _Make(self._row_dtype, spec.epsilon, kernels, is_rounded)
        given = dict(tensors)
        embedding = given.pop("model.embed_tokens.weight")
        self._embedding = embedding.to(dtype)
        self._layers = [
            _Layer(take_layer(given, spec, index, self._paired), index, spec, make)
            for index in range(spec.layers)
        ]
        self._at_once = layers_at_once(
            kernels,
            [each.parts() for each in self._layers],
            self.shape,
            spec.epsilon,
            width=spec.hidden,
        )
        head = given.pop("lm_head.weight", None)  # None: it is the embedding
        self._head = make.linear(embedding if head is None else head)
        self._norm = make.norm(given.pop("model.norm.weight"))

    def __call__(self, inputs: DecoderInputs) -> torch.Tensor:
        ids, positions, attention, rows, adapting = inputs
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
        return self._spec.modules()

    def packed(self, weights: Weights) -> dict[str, Product]:
        weights = {
            name: LowRank(each.down, self._paired(each.up))
            if name.endswith(("q_proj", "k_proj"))
            else each
            for name, each in weights.items()
        }
        found = {}
        for layer in range(self.shape.layers):
            for product, modules in self._spec.products(layer).items():
                widths = [(name, out) for name, (_, out) in modules.items()]
                made = packed(weights, widths, self._row_dtype)
                if made is not None:
                    found[f"{layer}.{product}"] = made
        return found

    def _paired(self, rotated: torch.Tensor) -> torch.Tensor:
        return pair_neighbours(rotated, self._spec.head_size)


@dataclass(frozen=True, slots=True)
class _Make:
    """The arguments that all layers' parts share."""

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
        """The kernels for rows of this width; None: they do not support it."""
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
    def __init__(self, given: LayerWeights, index: int, spec: LlamaSpec, make: _Make) -> None:
        self._index = index
        self._heads = spec.heads
        self._rotated = spec.heads + spec.kv_heads
        self._features = spec.head_size
        self._products = {
            "qkv": make.linear(given.qkv, given.qkv_bias),
            "out": make.linear(given.out, given.out_bias),
            "gate_up": make.linear(given.gate_up),
            "down": make.linear(given.down),
        }
        self._before, self._between = make.norm(given.before), make.norm(given.between)
        self._rotates = make.kernels_for(spec.head_size)
        self._gates = make.kernels_for(spec.inner)
        self._head_norms = [make.norm(each) for each in given.head_norms or ()]

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
        if self._head_norms:
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
        """The layer's parts for the kernels; None: they do not support all of them."""
        products = [
            each
            for each in self._products.values()
            if isinstance(each, PanelLinear) and not each.is_filled_up
        ]
        before, between = self._before.by_kernel(), self._between.by_kernel()
        has_kernels = self._rotates is not None and self._gates is not None
        if not has_kernels or len(products) < len(self._products) or self._head_norms:
            return None
        if before is None or between is None:
            return None
        qkv, out, gate_up, down = products
        return Parts(qkv, out, gate_up, down, before, between)

    def _multiply(self, name: str, x: torch.Tensor, adapting: Adapting | None) -> torch.Tensor:
        out = self._products[name](x)
        return out if adapting is None else adapting.add(f"{self._index}.{name}", x, out)
