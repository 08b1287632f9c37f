"""Moonshine's files as they are, made fit for batches of clips of different lengths.

They come in onnxruntime's own format, which is run as it was written: every call unpacks all
weights from int8 again, which takes ten times as long as the call itself. As ONNX they are unpacked
once, when the file is loaded.

The decoder attends to all frames that the encoder gives. In a batch, the shorter clips' frames are
padded; so the attention to them gets a mask, and what is the same in every step (keys transposed
and scaled) is taken out of the steps. Nothing else is changed.
"""

import re
import tempfile
from pathlib import Path
from typing import Any

from headway.errors import ConfigError

MASK = "encoder_mask"  # [rows, 1, 1, frames]: 0, or very negative where there is no frame
_KEYS = re.compile(r"(past_key_values|present)\.(\d+)\.encoder\.key")
_SOFTMAX = re.compile(r".*/layers\.(\d+)/encoder_attn/Softmax")


def encoder_session(path: Path, *, threads: int) -> Any:
    return _session(_as_onnx(path), threads)


def decoder_session(path: Path, *, threads: int) -> Any:
    """Its `past_key_values.*.encoder.key` are as `present.*.encoder.key` of the first step."""
    onnx = _import_onnx()
    model = onnx.load_model_from_string(_as_onnx(path))
    try:
        _edit(onnx, model.graph)
    except (KeyError, IndexError, ValueError) as error:
        raise ConfigError(f"{path}: it is not the decoder that is expected: {error!r}") from error
    return _session(model.SerializeToString(), threads)


def _edit(onnx: Any, graph: Any) -> None:
    frames = ["batch_size", 1, 1, "encoder_sequence_length"]
    graph.input.append(onnx.helper.make_tensor_value_info(MASK, onnx.TensorProto.FLOAT, frames))
    for value in (*graph.input, *graph.output):
        if _KEYS.fullmatch(value.name):
            value.type.tensor_type.ClearField("shape")  # not as it was: transposed
    [either] = [node for node in graph.node if node.op_type == "If"]
    for branch in either.attribute:
        branch.g.name = branch.name
        _edit_branch(onnx, branch.g, is_first_step=branch.name == "else_branch")


def _edit_branch(onnx: Any, graph: Any, *, is_first_step: bool) -> None:
    makers = {name: node for node in graph.node for name in node.output}
    nodes, unused, keys = [], set(), {}
    for node in graph.node:
        found = _SOFTMAX.fullmatch(node.name)
        if found is not None:
            scores = makers[node.input[0]]
            scaled = makers[scores.input[1]]
            if is_first_step:
                keys[found[1]] = scaled.output[0]
            else:
                transposed = makers[scaled.input[0]]
                unused |= {scaled.name, transposed.name}
                scores.input[1] = transposed.input[0]
            masked = f"{node.input[0]}_masked"
            nodes.append(onnx.helper.make_node("Add", [node.input[0], MASK], [masked]))
            node.input[0] = masked
        nodes.append(node)
    if not any(_SOFTMAX.fullmatch(node.name) for node in nodes):
        raise ValueError("it has no attention to the encoder")
    for value in graph.output:
        named = _KEYS.fullmatch(value.name)
        if named is not None and is_first_step:
            value.name = keys[named[2]]
            value.type.tensor_type.ClearField("shape")
    del graph.node[:]
    graph.node.extend(node for node in nodes if node.name not in unused)


def _as_onnx(path: Path) -> bytes:
    """onnxruntime reads its own format and writes the standard one."""
    onnxruntime = _import_onnxruntime()
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    with tempfile.TemporaryDirectory(prefix="headway-") as folder:
        options = _options(onnxruntime, threads=1)
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.optimized_model_filepath = str(Path(folder, "model.onnx"))
        options.add_session_config_entry("session.save_model_format", "ONNX")
        try:
            onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            return Path(folder, "model.onnx").read_bytes()
        except Exception as error:  # its own tree of exceptions: not a model, too new
            raise ConfigError(f"{path}: onnxruntime cannot load it: {error}") from error


def _session(model: bytes, threads: int) -> Any:
    onnxruntime = _import_onnxruntime()
    options = _options(onnxruntime, threads=threads)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _options(onnxruntime: Any, *, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors; it warns of harmless things on every start
    return options


def _import_onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ConfigError("moonshine needs onnxruntime: pip install 'headway[speech]'") from error
    return onnxruntime


def _import_onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise ConfigError("moonshine needs onnx: pip install 'headway[speech]'") from error
    return onnx
