"""ONNX graphs that are changed before they run: nodes are looked up by name, others put in their
place, and what nothing needs any more is left out."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy

MICROSOFT = "com.microsoft"  # the domain of onnxruntime's own operators
Array = numpy.ndarray[Any, Any]


class Graph:
    """Tensors go by their names, as in ONNX itself. A name that is not there is a KeyError."""

    def __init__(self, onnx: Any, model: bytes, *, branch: str = "") -> None:
        """`branch`: of its one `If`, which is left out; what is in the branch always runs."""
        self._onnx = onnx
        self._model = onnx.load_model_from_string(model)
        graph = self._model.graph
        if branch:
            [either] = self.nodes("If")
            [chosen] = [each.g for each in either.attribute if each.name == branch]
            graph.node.remove(either)
            graph.node.extend(chosen.node)
            graph.initializer.extend(chosen.initializer)
        self._values = {each.name: each for each in graph.initializer}
        self._nodes = {each.name: each for each in graph.node}
        self._new = 0

    def nodes(self, kind: str) -> list[Any]:
        return [each for each in self._model.graph.node if each.op_type == kind]

    def output(self, node: str) -> str:
        return str(self._nodes[node].output[0])

    def inputs(self, node: str) -> Sequence[str]:
        return list(self._nodes[node].input)

    def shape(self, name: str) -> list[int]:
        """The shape of an input; 0 for a length that may vary."""
        [found] = [each for each in self._model.graph.input if each.name == name]
        return [each.dim_value for each in found.type.tensor_type.shape.dim]

    def value(self, name: str) -> Array:
        array: Array = self._onnx.numpy_helper.to_array(self._values[name])
        return array

    def constant(self, value: Any, kind: type) -> str:
        name = self._name()
        array: Array = numpy.asarray(value, kind)
        self._model.graph.initializer.append(self._onnx.numpy_helper.from_array(array, name))
        return name

    def input(self, name: str, kind: type, shape: Sequence[int | str]) -> None:
        kind_there = self._onnx.helper.np_dtype_to_tensor_dtype(numpy.dtype(kind))
        value = self._onnx.helper.make_tensor_value_info(name, kind_there, shape)
        self._model.graph.input.append(value)

    def op(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """A new node; the name of what it gives."""
        name = output or self._name()
        node = self._onnx.helper.make_node(kind, inputs, [name], name=name, **attributes)
        self._model.graph.node.append(node)
        return name

    def replace(self, old: str, new: str) -> None:
        """Replace a tensor by another in all nodes that take it."""
        for node in self._model.graph.node:
            for at, name in enumerate(node.input):
                if name == old:
                    node.input[at] = new

    def finished(self, outputs: Sequence[str]) -> bytes:
        """The model that gives these, without what they do not need."""
        graph = self._model.graph
        needed = _needed({name: each for each in graph.node for name in each.output}, outputs)
        _keep(graph.node, [each for each in graph.node if needed.intersection(each.output)])
        _keep(graph.input, [each for each in graph.input if each.name in needed])
        _keep(graph.initializer, [each for each in graph.initializer if each.name in needed])
        made, kind = self._onnx.helper.make_tensor_value_info, self._onnx.TensorProto.FLOAT
        _keep(graph.output, [made(name, kind, None) for name in outputs])
        del graph.value_info[:]  # the shapes that were
        model: bytes = self._model.SerializeToString()
        return model

    def _name(self) -> str:
        self._new += 1
        return f"new_{self._new}"


def layers(graph: Graph, attention: str) -> list[str]:
    """The paths of the nodes of every layer's attention."""
    paths = [each.name.removesuffix("/Softmax") for each in graph.nodes("Softmax")]
    found = [each for each in paths if each.endswith(f"/{attention}")]
    if not found:
        raise ValueError(f"it has no {attention}")
    return found


def _keep(field: Any, kept: list[Any]) -> None:
    del field[:]
    field.extend(kept)


def _needed(makers: Mapping[str, Any], outputs: Sequence[str]) -> set[str]:
    """The names of all that these are made of."""
    needed: set[str] = set()
    to_do = list(outputs)
    while to_do:
        name = to_do.pop()
        if name not in needed:
            needed.add(name)
            to_do += makers[name].input if name in makers else ()
    return needed
