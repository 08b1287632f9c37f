"""Computes all layers of a decoder in one call, if the kernels support every part of them.

For a step of one token, calling each kernel from Python takes a third of the time.
"""

import ctypes
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from headway.engine.attention.base import StepLayout
from headway.engine.cache import CacheShape
from headway.engine.cpu.kernels import Kernels
from headway.engine.cpu.linear import PanelLinear

_POINTER, _LONG, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_int, ctypes.c_float


class Parts(NamedTuple):
    """A layer's weights."""

    qkv: PanelLinear
    out: PanelLinear
    gate_up: PanelLinear
    down: PanelLinear
    before: torch.Tensor  # the norms' weights
    between: torch.Tensor


class _Matrix(ctypes.Structure):
    """`struct matrix` of layers.c."""

    _fields_ = (
        *((name, _POINTER) for name in ("weights", "scales", "bias")),
        *((name, _LONG) for name in ("outputs", "inputs")),
        ("kind", _INT),
    )


class _Layer(ctypes.Structure):
    """`struct layer`."""

    _fields_ = (
        *((name, _Matrix) for name in ("qkv", "out", "gate_up", "down")),
        *((name, _POINTER) for name in ("before", "between", "keys", "values")),
    )


_ROOM = ("row", "heads", "attended", "both", "gated", "pairs")
_POINTERS = ("hidden", *_ROOM, "rotations", "tables", "slots", "positions", "places", "runs")
_SIZES = ("rows", "width", "query_heads", "kv_heads", "features", "page", "columns")


class _Step(ctypes.Structure):
    """`struct step`."""

    _fields_ = (
        *((name, _POINTER) for name in _POINTERS),
        *((name, _LONG) for name in (*_SIZES, "run_count", "decodes", "threads")),
        *((name, _FLOAT) for name in ("epsilon", "scale")),
    )


class _Pointing(NamedTuple):
    """The layers as C has them, and the cache that they point to."""

    layers: "ctypes.Array[_Layer]"
    keys: list[torch.Tensor]
    values: list[torch.Tensor]


def layers_at_once(
    kernels: Kernels | None,
    layers: Sequence[Parts | None],
    shape: CacheShape,
    epsilon: float,
    *,
    width: int,
) -> "LayersAtOnce | None":
    known = [each for each in layers if each is not None]
    if kernels is None or len(known) < len(layers):
        return None
    return LayersAtOnce(kernels, known, shape, epsilon, width=width)


class LayersAtOnce:
    def __init__(
        self,
        kernels: Kernels,
        layers: list[Parts],
        shape: CacheShape,
        epsilon: float,
        *,
        width: int,
    ) -> None:
        """`width`: of the rows that the layers take and give."""
        self._run = kernels.run_layers
        self._parts = layers  # kept, because kernels have pointers to their memory
        self._pointing: _Pointing | None = None
        self._epsilon = epsilon
        self._kv_heads, self._features = shape.kv_heads, shape.head_size
        self._width = width
        self._cache_dtype = kernels.cache_dtype
        qkv, both = layers[0].qkv.panels.outputs, layers[0].gate_up.panels.outputs
        self._heads = qkv // shape.head_size - 2 * shape.kv_heads
        attended = self._heads * shape.head_size
        self._room = (self._width, qkv, attended, both, both // 2)
        for each in layers:
            self._check(each)

    def _check(self, parts: Parts) -> None:
        """A kernel would read and write beyond what it is given, where torch raises."""
        width, qkv, attended, both, inner = self._room
        expected = ((width, qkv), (attended, width), (width, both), (inner, width))
        products = parts.qkv, parts.out, parts.gate_up, parts.down
        found = tuple((each.panels.inputs, each.panels.outputs) for each in products)
        norms = parts.before.numel(), parts.between.numel()
        heads, kv_heads = self._heads, self._kv_heads
        is_whole = heads > 0 and not heads % kv_heads and not both % 2 and width > 0
        is_whole = is_whole and qkv == (heads + 2 * kv_heads) * self._features
        fit = found == expected and norms == (width, width) and all(map(_is_complete, products))
        if not (is_whole and fit):
            raise ValueError(f"the weights' sizes do not fit together: {found}, norms {norms}")

    def __call__(self, hidden: torch.Tensor, rotations: torch.Tensor, layout: StepLayout) -> None:
        """Compute all layers of these rows, in place."""
        if hidden.shape[1] != self._width or hidden.dtype != torch.float32:
            raise ValueError(f"rows of float32, {self._width} wide, are expected")
        # A call that runs beside another, with another cache, keeps its own until its end.
        pointing = self._pointing
        if pointing is None or pointing.keys is not layout.keys:
            pointing = self._pointing = self._point_to(layout)
        rows, features = len(hidden), self._features
        room = [torch.empty(rows * width, dtype=torch.float32) for width in self._room]
        room.append(torch.empty(rows * max(self._room), dtype=torch.bfloat16))
        given = (hidden, *room, rotations, layout.tables, layout.slots, layout.positions)
        step = _Step(
            *(each.data_ptr() for each in (*given, layout.places, layout.runs)),
            rows,
            self._width,
            self._heads,
            self._kv_heads,
            features,
            layout.keys[0].shape[1],
            layout.tables.shape[1],
            len(layout.runs) - 1,
            layout.decodes,
            torch.get_num_threads(),
            self._epsilon,
            1.0 / math.sqrt(features),
        )
        self._run(pointing.layers, ctypes.byref(step), len(pointing.layers))

    def _point_to(self, layout: StepLayout) -> "_Pointing":
        layers = (_Layer * len(self._parts))(*map(_layer_of, self._parts))
        for layer, keys, values in zip(layers, layout.keys, layout.values, strict=True):
            if keys.shape[2:] != (self._kv_heads, self._features) or keys.shape != values.shape:
                raise ValueError("a page has other heads than the decoder")
            if keys.dtype != self._cache_dtype or values.dtype != self._cache_dtype:
                raise ValueError(f"a page is not of the kernels' {self._cache_dtype}")
            layer.keys, layer.values = keys.data_ptr(), values.data_ptr()
        return _Pointing(layers, layout.keys, layout.values)


def _layer_of(parts: Parts) -> _Layer:
    products = map(_matrix_of, (parts.qkv, parts.out, parts.gate_up, parts.down))
    return _Layer(*products, parts.before.data_ptr(), parts.between.data_ptr(), None, None)


def _matrix_of(product: PanelLinear) -> _Matrix:
    panels, optional = product.panels, (product.scales, product.bias)
    pointers = [None if each is None else each.data_ptr() for each in optional]
    return _Matrix(panels.data.data_ptr(), *pointers, panels.outputs, panels.inputs, panels.kind)


def _is_complete(product: PanelLinear) -> bool:
    """Whether 8-bit weights have a scale for each output, and either all outputs have a bias or
    none."""
    panels = product.panels
    optional = (each for each in (product.scales, product.bias) if each is not None)
    has_scales = product.scales is not None or panels.data.dtype != torch.int8
    return has_scales and all(each.shape == (panels.outputs,) for each in optional)
