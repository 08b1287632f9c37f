"""Decoders of Llama's family on a GPU: packed projections, and our kernels between them.

The weights of q, k and v are one matrix, and so are gate's and up's. Norms, rotary embedding, cache
writes, activation and attention are our kernels; matrix products are the vendor's library. It knows
no sequences: tokens, places and tables come in as tensors.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch.nn import functional

from headway.engine.architecture import LlamaSpec
from headway.engine.cache import CacheShape
from headway.engine.gpu.kernels.activation import silu_and_multiply
from headway.engine.gpu.kernels.eight_bit import RowScaled
from headway.engine.gpu.kernels.norm import rms_norm
from headway.engine.gpu.kernels.rotary import rotate_and_store
from headway.engine.rotary import rotations
from headway.engine.weights import take_layer

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # queries, keys, values


class Adapt(Protocol):
    """Adds the rows' adapters to a layer's product: begun before it, finished after it."""

    def start(self, layer: int, product: str, x: torch.Tensor) -> torch.Tensor: ...

    def finish(self, layer: int, product: str, parts: torch.Tensor, out: torch.Tensor) -> None: ...


Tensors = Iterator[tuple[str, torch.Tensor]]
PROJECTIONS = ("qkv", "out", "gate_up", "down")


class GpuDecoder:
    def __init__(
        self,
        spec: LlamaSpec,
        tensors: Tensors,
        *,
        dtype: torch.dtype,
        device: str,
        max_context: int,
    ) -> None:
        self.heads = spec.heads
        self.shape = CacheShape(spec.layers, spec.kv_heads, spec.head_size)
        self.vocabulary = spec.vocabulary
        self.dtype = dtype
        self.device = device
        self._epsilon = spec.epsilon
        turns = rotations(spec.rope, spec.head_size, max_context).to(device)
        self._cosines, self._sines = turns.real.contiguous(), turns.imag.contiguous()
        given = {name: tensor.to(device=device, dtype=dtype) for name, tensor in tensors}
        self._embedding = given.pop("model.embed_tokens.weight")
        self._layers = [take_layer(given, spec, index) for index in range(spec.layers)]
        self._norm = given.pop("model.norm.weight")
        head = given.pop("lm_head.weight", None)  # None: it is the embedding
        self._head = self._embedding if head is None else head

    def quantise(self) -> None:
        """Convert the layers' weights to 8-bit floats. The head's weights are not converted."""
        for number in range(self.shape.layers):
            for which in PROJECTIONS:  # one at a time: each frees what it was
                layer = self._layers[number]
                made: dict[str, Any] = {which: RowScaled(getattr(layer, which))}
                self._layers[number] = layer._replace(**made)

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
        x = rms_norm(residual, self._layers[0].before, self._epsilon)
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
                layer.head_norms,
                self._epsilon,
            )
            attended = attend(queries, keys, values).flatten(1)
            x = self._project(number, "out", attended, adapt, layer.out_bias)
            # Each norm first adds x to `residual`, in place.
            x = rms_norm(x, layer.between, self._epsilon, residual)
            x = silu_and_multiply(self._project(number, "gate_up", x, adapt))
            x = self._project(number, "down", x, adapt)
            is_last = number + 1 == self.shape.layers
            after = self._norm if is_last else self._layers[number + 1].before
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
