"""EfficientNet-Lite0 as an ONNX graph, built from its weights, without torch."""

from typing import Any

import numpy

from headway.errors import ConfigError

Array = numpy.ndarray[Any, Any]

SIDE = 224
_STRIDE_2 = {"_blocks.1", "_blocks.3", "_blocks.5", "_blocks.11"}
_BLOCKS = 16
_EPSILON = 1e-3  # of its batch normalisation
_MEAN = (0.485, 0.456, 0.406)  # of the photographs it was trained on, and their deviation
_DEVIATION = (0.229, 0.224, 0.225)
_OPSET = 17


def graph_of(weights: dict[str, Array]) -> bytes:
    """The network as an .onnx file: `pixels` (rows × 224 × 224 × 3, 0 to 255) to `scores`."""
    try:
        import onnx
    except ImportError as error:
        raise ConfigError("this model needs onnx: pip install onnx") from error
    return _Builder(onnx, weights).build()


class _Builder:
    """Adds a layer at a time; each method takes and gives the name of what flows."""

    def __init__(self, onnx: Any, weights: dict[str, Array]) -> None:
        self._onnx = onnx
        self._weights = weights
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def build(self) -> bytes:
        flow = self._normalised("pixels")
        flow = self._convolved(flow, "_conv_stem", "_bn0", stride=2)
        for number in range(_BLOCKS):
            flow = self._block(flow, f"_blocks.{number}")
        flow = self._convolved(flow, "_conv_head", "_bn1")
        flow = self._add("Flatten", [self._add("GlobalAveragePool", [flow])])
        layer = [self._constant(self._weights[f"_fc.{name}"]) for name in ("weight", "bias")]
        flow = self._add("Gemm", [flow, *layer], transB=1)
        self._add("Softmax", [flow], output="scores", axis=1)
        return self._file()

    def _normalised(self, flow: str) -> str:
        """Channels first, and as the photographs were that it was trained on."""
        mean = numpy.array(_MEAN, numpy.float32) * 255
        scale = 1 / (numpy.array(_DEVIATION, numpy.float32) * 255)
        flow = self._add("Cast", [flow], to=self._onnx.TensorProto.FLOAT)
        flow = self._add("Sub", [flow, self._constant(mean)])
        flow = self._add("Mul", [flow, self._constant(scale)])
        return self._add("Transpose", [flow], perm=[0, 3, 1, 2])

    def _block(self, given: str, name: str) -> str:
        """Wider, over each channel, narrower; around it goes what was given, where that fits."""
        stride = 2 if name in _STRIDE_2 else 1
        first, flow = f"{name}._expand_conv", given
        if f"{first}.weight" in self._weights:
            flow = self._convolved(flow, first, f"{name}._bn0")
        else:
            first = f"{name}._project_conv"  # the first block: as wide as what comes
        flow = self._convolved(flow, f"{name}._depthwise_conv", f"{name}._bn1", stride=stride)
        flow = self._convolved(flow, f"{name}._project_conv", f"{name}._bn2", is_clipped=False)
        comes = self._weights[f"{first}.weight"].shape[1]
        leaves = len(self._weights[f"{name}._project_conv.weight"])
        return self._add("Add", [flow, given]) if stride == 1 and comes == leaves else flow

    def _convolved(
        self, flow: str, name: str, norm: str, *, stride: int = 1, is_clipped: bool = True
    ) -> str:
        """The normalisation after it is part of its weights."""
        kernel = self._weights[f"{name}.weight"]
        scale, bias, mean, variance = (
            self._weights[f"{norm}.{part}"]
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        factor = scale / numpy.sqrt(variance + _EPSILON)
        flow = self._add(
            "Conv",
            [
                flow,
                self._constant(kernel * factor[:, None, None, None]),
                self._constant(bias - mean * factor),
            ],
            strides=[stride, stride],
            auto_pad="SAME_UPPER",
            group=len(kernel) if kernel.shape[1] == 1 else 1,
        )
        if not is_clipped:
            return flow
        limits = [self._constant(numpy.array(limit, numpy.float32)) for limit in (0, 6)]
        return self._add("Clip", [flow, *limits])

    def _add(self, kind: str, inputs: list[str], *, output: str = "", **attributes: Any) -> str:
        output = output or f"flow_{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(kind, inputs, [output], **attributes))
        return output

    def _constant(self, values: Array) -> str:
        name = f"weight_{len(self._constants)}"
        tensor = self._onnx.numpy_helper.from_array(values.astype(numpy.float32), name)
        self._constants.append(tensor)
        return name

    def _file(self) -> bytes:
        helper, kinds = self._onnx.helper, self._onnx.TensorProto
        takes = helper.make_tensor_value_info("pixels", kinds.UINT8, ["rows", SIDE, SIDE, 3])
        classes = len(self._weights["_fc.bias"])
        gives = helper.make_tensor_value_info("scores", kinds.FLOAT, ["rows", classes])
        graph = helper.make_graph(self._nodes, "net", [takes], [gives], self._constants)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=8
        )
        found: bytes = model.SerializeToString()
        return found
