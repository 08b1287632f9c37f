"""Moonshine's encoder, made fast: a layer's attention is one node, and linear layers multiply in
int8 where that is wanted.

Their weights are in int8 in the file, and are used as they are. Frames are rounded to 8 bits, each
with a scale of its own, so that a loud one takes nothing from its neighbours. The output then
differs from that of float32 by 2 to 3 % on average.
"""

from pathlib import Path
from typing import Any

import numpy

from headway.models.ready.speech.moonshine.onnx_graph import MICROSOFT, Graph, layers

OUTPUT = "last_hidden_state"
_POSITIONS = 2048  # frames; a part has 1250 at most
_INT8 = "_add_tensor"  # how the names of weights end that are in int8 in the file
_COPIES = 16  # of a channel that is loud in every frame
_GELU_LEAST = 0.17  # it gives nothing below minus this


def has_fast_int8() -> bool:
    """Whether the CPU has VNNI: without it, int8 is hardly faster, and sums of products may
    overflow."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_vnni" in text or "avx_vnni" in text


def edited_encoder(graph: Graph, *, is_int8: bool) -> bytes:
    _merge_attention(graph)
    if is_int8:
        multiply_in_int8(graph, _loud_channels(graph))
    return graph.finished([OUTPUT])


def _merge_attention(graph: Graph) -> None:
    rates = graph.value("/rotary_emb/Cast_1_output_0").ravel()
    angles = numpy.outer(numpy.arange(_POSITIONS), rates)
    start = graph.constant([0], numpy.int64)
    turns = [graph.constant(each(angles), numpy.float32) for each in (numpy.cos, numpy.sin)]
    for attention in layers(graph, "self_attn"):
        heads, width = (
            int(graph.value(each)[0]) for each in graph.inputs(f"{attention}/Concat")[2:]
        )
        query, key, value = (graph.output(f"{attention}/{each}_proj/MatMul") for each in "qkv")
        query, key = (
            graph.op(
                "RotaryEmbedding",
                *(each, start, *turns),
                domain=MICROSOFT,
                interleaved=1,
                num_heads=heads,
                rotary_embedding_dim=2 * len(rates),
            )
            for each in (query, key)
        )
        found = graph.op(
            "MultiHeadAttention",
            *(query, key, value),
            domain=MICROSOFT,
            num_heads=heads,
            scale=width**-0.5,
        )
        graph.replace(graph.output(f"{attention}/Reshape_5"), found)


def multiply_in_int8(graph: Graph, loud: list[int]) -> None:
    """Replace all linear layers. `loud`: the input channels that are loud in every frame."""
    frames: dict[str, _Frames] = {}  # queries, keys and values share theirs
    one = graph.constant(1, numpy.float32)
    for node in graph.nodes("MatMul"):
        taken, weights = node.input
        if not weights.endswith(_INT8):
            continue
        if taken not in frames:
            is_gelu = node.name.endswith("fc2/MatMul")
            frames[taken] = _Frames(graph, taken, is_gelu=is_gelu, loud=[] if is_gelu else loud)
        name, given = weights.removesuffix(_INT8), frames[taken]
        scale = graph.value(f"{name}_scale")
        zero = numpy.rint(graph.value(f"{name}_zero_point") / -scale)  # in the file: to be added
        product = graph.op(
            "MatMulIntegerToFloat",
            given.bytes,
            graph.constant(given.widened(graph.value(f"{name}_quantized")), numpy.int8),
            *(one, f"{name}_scale", given.zero, graph.constant(zero, numpy.int8)),
            domain=MICROSOFT,
        )
        graph.replace(node.output[0], graph.op("Mul", product, given.scales))


def _loud_channels(graph: Graph) -> list[int]:
    """The first layer lifts a few far above all others, and so they stay."""
    bias = numpy.abs(graph.value("layers.0.mlp.fc2.bias"))
    return [int(each) for each in numpy.flatnonzero(bias > 20 * numpy.median(bias))]


class _Frames:
    """The input of a linear layer as uint8: (bytes - zero) * scales."""

    def __init__(self, graph: Graph, frames: str, *, is_gelu: bool, loud: list[int]) -> None:
        self._loud = loud
        if loud:
            frames = self._split(graph, frames)
        zero, least = (16, _GELU_LEAST / 16) if is_gelu else (128, 1e-6)
        largest = frames if is_gelu else graph.op("Abs", frames)
        largest = graph.op("ReduceMax", largest, axes=[-1], keepdims=1)
        largest = graph.op("Mul", largest, graph.constant(1 / (255 - zero), numpy.float32))
        self.scales = graph.op("Max", largest, graph.constant(least, numpy.float32))
        each = graph.op("Reshape", self.scales, graph.constant([-1], numpy.int64))
        self.zero = graph.constant(zero, numpy.uint8)
        zeros = graph.op("Expand", self.zero, graph.op("Shape", each))
        self.bytes = graph.op("QuantizeLinear", frames, each, zeros, axis=1)

    def _split(self, graph: Graph, frames: str) -> str:
        """A loud channel would leave the others few of the 8 bits: it becomes many quiet ones."""
        width = len(graph.value("layers.0.mlp.fc2.bias"))
        factors = numpy.ones(width)
        factors[self._loud] /= 1 + _COPIES
        frames = graph.op("Mul", frames, graph.constant(factors, numpy.float32))
        copied = graph.constant(self._loud * _COPIES, numpy.int64)
        return graph.op("Concat", frames, graph.op("Gather", frames, copied, axis=2), axis=2)

    def widened(self, weights: Any) -> Any:
        return numpy.concatenate([weights, weights[self._loud * _COPIES]])
