"""Decoders of Llama's family with packed projections: the fast path on a GPU.

The weights of q, k and v are one matrix, and so are gate's and up's. Norms, rotary embedding, cache
writes, activation and attention are our kernels; matrix products are the vendor's library. It knows
no sequences: rows, slots and tables come in as tensors.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from headway.engine.gpu.kernels.activation import silu_and_multiply
from headway.engine.gpu.kernels.eight_bit import multiply, quantised
from headway.engine.gpu.kernels.norm import rms_norm
from headway.engine.gpu.kernels.rotary import rotate_and_store

Adapt = Callable[[int, str, torch.Tensor, torch.Tensor], None]  # layer, which, x, out: added to
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # queries, keys, values


@dataclass(frozen=True, slots=True)
class Shape:
    """The numbers of one architecture."""

    layers: int
    hidden: int
    inner: int
    heads: int
    key_heads: int
    dim: int
    vocabulary: int
    ties_embeddings: bool
    epsilon: float = 1e-5
    theta: float = 500_000.0
    positions: int = 8192

    @property
    def packed(self) -> int:
        return (self.heads + 2 * self.key_heads) * self.dim


@dataclass(slots=True)
class Layer:
    norm: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class EightBit:
    """A projection whose weight is in 8 bits. For many rows it is unpacked: then arithmetic, not
    memory, is what takes the time."""

    most_rows = 128

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight, self.scales = quantised(weight)
        self.dtype = weight.dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] <= self.most_rows:
            return multiply(x, self.weight, self.scales)
        return functional.linear(x, self.weight.to(x.dtype)) * self.scales.to(x.dtype)


class Llama:
    def __init__(self, shape: Shape, *, dtype: torch.dtype, device: str) -> None:
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.embedding = self._random(shape.vocabulary, shape.hidden)
        self.head = (
            self.embedding
            if shape.ties_embeddings
            else self._random(shape.vocabulary, shape.hidden)
        )
        self.norm = torch.ones(shape.hidden, dtype=dtype, device=device)
        self.layers = [
            Layer(
                torch.ones(shape.hidden, dtype=dtype, device=device),
                self._random(shape.packed, shape.hidden),
                self._random(shape.hidden, shape.heads * shape.dim),
                torch.ones(shape.hidden, dtype=dtype, device=device),
                self._random(2 * shape.inner, shape.hidden),
                self._random(shape.hidden, shape.inner),
            )
            for _ in range(shape.layers)
        ]
        steps = torch.arange(0, shape.dim, 2, device=device, dtype=torch.float32) / shape.dim
        angles = torch.outer(
            torch.arange(shape.positions, device=device, dtype=torch.float32), shape.theta**-steps
        )
        self.cosines, self.sines = angles.cos(), angles.sin()

    def _random(self, *size: int) -> torch.Tensor:
        return torch.randn(*size, dtype=self.dtype, device=self.device) * 0.02

    def hidden(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        caches: list[tuple[torch.Tensor, torch.Tensor]],
        attend: Attend,
        adapt: Adapt | None = None,
    ) -> torch.Tensor:
        """The last layer's states, normalised: tokens × hidden."""
        shape = self.shape
        residual = functional.embedding(tokens, self.embedding)
        x = rms_norm(residual, self.layers[0].norm, shape.epsilon)
        for number, (layer, (keys, values)) in enumerate(zip(self.layers, caches, strict=True)):
            qkv = self._project(number, "qkv", x, adapt)
            queries = rotate_and_store(
                qkv, self.cosines, self.sines, positions, slots, keys, values, shape.heads
            )
            attended = attend(queries, keys, values).flatten(1)
            x = self._project(number, "out", attended, adapt)
            x = rms_norm(x, layer.mlp_norm, shape.epsilon, residual)
            x = silu_and_multiply(self._project(number, "gate_up", x, adapt))
            x = self._project(number, "down", x, adapt)
            after = self.layers[number + 1].norm if number + 1 < shape.layers else self.norm
            x = rms_norm(x, after, shape.epsilon, residual)
        return x

    def _project(
        self, number: int, which: str, x: torch.Tensor, adapt: Adapt | None
    ) -> torch.Tensor:
        weight = getattr(self.layers[number], which)
        out = weight(x) if isinstance(weight, EightBit) else functional.linear(x, weight)
        if adapt is not None:
            adapt(number, which, x, out)
        return out

    def quantise(self) -> None:
        """From now on the layers' weights are 8-bit floats."""
        for layer in self.layers:
            for which in ("qkv", "out", "gate_up", "down"):
                setattr(layer, which, EightBit(getattr(layer, which)))

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        return functional.linear(states, self.head)
