"""Moonshine's files, made fit for batches of clips of different lengths.

They come in onnxruntime's own format, which is run as it was written: every call unpacks all
weights from int8 again, which takes ten times as long as the call itself. As ONNX they are unpacked
once, when the file is loaded.

The decoder attends to all frames that the encoder gives. In a batch they are not padded to the
longest clip's: what it attends to is cut into blocks of frames, each of which belongs to one row.
Attention within each block, then between the blocks of a row, is attention to all its frames.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy

from headway.backends.onnx import open_session
from headway.errors import ConfigError
from headway.models.ready.speech.moonshine.encoder import edited_encoder, multiply_in_int8
from headway.models.ready.speech.moonshine.onnx_graph import MICROSOFT, Graph, layers
from headway.models.sources.installed import require

BLOCK = 128  # frames: smaller ones are more work, larger ones more padding in the last of a row
# What a step takes beside its tokens, its own past and what was heard:
ROWS = "row_of_block"  # [blocks]
FRAMES = "frames_of_block"  # [blocks, 1, 1, BLOCK]: 0, or very negative where the clip has ended
BLOCKS = "blocks_of_row"  # [rows, blocks]: 0, or very negative where it is another row's


def encoder_session(path: Path, *, threads: int, is_int8: bool) -> Any:
    """A clip's samples to its frames."""
    onnx, content = _import_onnx(), _as_onnx(path)
    try:
        model = edited_encoder(Graph(onnx, content), is_int8=is_int8)
    except (KeyError, IndexError, ValueError) as error:
        raise ConfigError(f"{path}: it is not the encoder that is expected: {error!r}") from error
    return open_session(model, device="cpu", threads=threads)


def decoder_sessions(path: Path, *, threads: int, is_int8: bool) -> tuple[Any, Any]:
    """A clip's frames to the blocks that its row attends to; and one token more for every row."""
    onnx, content = _import_onnx(), _as_onnx(path)
    try:
        hear = _hearing(Graph(onnx, content, branch="else_branch"), is_int8=is_int8)
        step = _stepping(Graph(onnx, content, branch="then_branch"))
    except (KeyError, IndexError, ValueError) as error:
        raise ConfigError(f"{path}: it is not the decoder that is expected: {error!r}") from error
    heard, stepped = (open_session(each, device="cpu", threads=threads) for each in (hear, step))
    return heard, stepped


def _hearing(graph: Graph, *, is_int8: bool) -> bytes:
    """The part of the first step that needs only the frames: keys and values, in blocks."""
    outputs = []
    blocks = graph.constant([-1, BLOCK, *_heads(graph)], numpy.int64)
    for layer, attention in enumerate(layers(graph, "encoder_attn")):
        for what, order in (("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
            frames = graph.output(f"{attention}/{what[0]}_proj/MatMul")
            outputs.append(_heard(layer, what))
            frames = graph.op("Reshape", frames, blocks)
            graph.op("Transpose", frames, output=outputs[-1], perm=order)
    if is_int8:
        multiply_in_int8(graph, loud=[])
    return graph.finished(outputs)


def _stepping(graph: Graph) -> bytes:
    heads, width = _heads(graph)
    graph.input(ROWS, numpy.int64, ["blocks"])
    graph.input(FRAMES, numpy.float32, ["blocks", 1, 1, BLOCK])
    graph.input(BLOCKS, numpy.float32, ["batch_size", "blocks"])
    outputs = ["logits"]
    for layer, attention in enumerate(layers(graph, "encoder_attn")):
        graph.input(_heard(layer, "key"), numpy.float32, ["blocks", heads, width, BLOCK])
        graph.input(_heard(layer, "value"), numpy.float32, ["blocks", heads, BLOCK, width])
        _attend_to_blocks(graph, layer, attention)
        _attend_to_itself(graph, layer, attention.replace("encoder_attn", "self_attn"))
        outputs += [f"present.{layer}.decoder.{what}" for what in ("key", "value")]
    return graph.finished(outputs)


def _attend_to_blocks(graph: Graph, layer: int, attention: str) -> None:
    heads, width = _heads(graph)
    asked = graph.output(f"{attention}/Transpose")
    asked = graph.op("Mul", asked, graph.constant(width**-0.5, numpy.float32))
    asked = graph.op("Gather", asked, ROWS, axis=0)
    scores = graph.op("Add", graph.op("MatMul", asked, _heard(layer, "key")), FRAMES)
    shares = graph.op("Softmax", scores, axis=-1)
    found = graph.op("MatMul", shares, _heard(layer, "value"))  # [blocks, heads, 1, width]
    # A block's weight is the sum of its scores' exponentials. The highest has a known share of it.
    highest, share = (
        graph.op("ReduceMax", each, axes=[-1], keepdims=0) for each in (scores, shares)
    )
    weights = graph.op("Sub", highest, graph.op("Log", share))  # [blocks, heads, 1]
    weights = graph.op("Add", graph.op("Transpose", weights, perm=[1, 2, 0]), BLOCKS)
    weights = graph.op("Softmax", weights, axis=-1)  # [heads, rows, blocks]
    found = graph.op("Transpose", found, perm=[2, 1, 0, 3])
    found = graph.op("Reshape", found, graph.constant([heads, -1, width], numpy.int64))
    found = graph.op("Transpose", graph.op("MatMul", weights, found), perm=[1, 0, 2])
    graph.replace(graph.output(f"{attention}/Transpose_2"), found)


def _attend_to_itself(graph: Graph, layer: int, attention: str) -> None:
    """Compute self-attention as before, but without a transposed and scaled copy of all keys in
    every step, and without a mask that lets everything pass."""
    _, width = _heads(graph)
    asked, _ = graph.inputs(f"{attention}/Mul_4")
    keys = f"present.{layer}.decoder.key"
    scores = graph.op("FusedMatMul", asked, keys, domain=MICROSOFT, transB=1, alpha=width**-0.5)
    graph.replace(graph.output(f"{attention}/Add_2"), scores)


def _heard(layer: int, what: str) -> str:
    return f"heard.{layer}.{what}"


def _heads(graph: Graph) -> tuple[int, int]:
    """The number of heads, and the width of each."""
    _, heads, _, width = graph.shape("past_key_values.0.decoder.key")
    return heads, width


def _as_onnx(path: Path) -> bytes:
    """The model in the standard format: onnxruntime reads its own format and can write that."""
    onnxruntime = require("onnxruntime", "Moonshine's networks", "moonshine")
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    with tempfile.TemporaryDirectory(prefix="headway-") as folder:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors; it warns of harmless things on every start
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.optimized_model_filepath = str(Path(folder, "model.onnx"))
        options.add_session_config_entry("session.save_model_format", "ONNX")
        try:
            onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            return Path(folder, "model.onnx").read_bytes()
        except Exception as error:  # its own tree of exceptions: not a model, too new
            raise ConfigError(f"{path}: onnxruntime cannot load it: {error}") from error


def _import_onnx() -> Any:
    return require("onnx", "Moonshine's networks", "moonshine")
