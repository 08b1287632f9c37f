"""Graphs that are changed: what runs afterwards is what was asked for, and no more."""

from typing import Any

import numpy
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from headway.models.ready.speech.moonshine.onnx_graph import Graph, layers  # noqa: E402 - once its needs are there


def branching() -> bytes:
    """y = x + 1 or x * 2; and z = -x, which is nobody's business."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT

    def branch(name: str, operator: str, value: float) -> Any:
        constant = onnx.numpy_helper.from_array(numpy.float32(value), f"{name}_constant")
        node = helper.make_node(operator, ["x", constant.name], [name], name=f"/{name}")
        output = helper.make_tensor_value_info(name, kind, [2])
        return helper.make_graph([node], name, [], [output], [constant])

    either = helper.make_node(
        "If",
        ["is_added"],
        ["y"],
        name="either",
        then_branch=branch("added", "Add", 1),
        else_branch=branch("doubled", "Mul", 2),
    )
    graph = helper.make_graph(
        [either, helper.make_node("Neg", ["x"], ["z"], name="/neg")],
        "either",
        [
            helper.make_tensor_value_info("x", kind, [2]),
            helper.make_tensor_value_info("is_added", onnx.TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info(name, kind, [2]) for name in "yz"],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    return bytes(model.SerializeToString())


def run(model: bytes, **feeds: Any) -> Any:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert {each.name for each in session.get_inputs()} == feeds.keys()
    [output] = session.run(None, {name: numpy.float32(each) for name, each in feeds.items()})
    return output.tolist()


def test_a_branch_runs_without_its_condition() -> None:
    assert run(Graph(onnx, branching(), branch="then_branch").finished(["added"]), x=[1, 5]) == [
        2,
        6,
    ]
    graph = Graph(onnx, branching(), branch="else_branch")
    assert run(graph.finished(["doubled"]), x=[1, 5]) == [2, 10]


def test_a_node_takes_the_place_of_another() -> None:
    graph = Graph(onnx, branching(), branch="then_branch")
    graph.input("more", numpy.float32, [2])
    graph.replace("x", graph.op("Mul", "more", graph.constant(10, numpy.float32)))
    assert run(graph.finished([graph.output("/added")]), more=[1, 5]) == [11, 51]


def test_what_is_not_there_is_said() -> None:
    graph = Graph(onnx, branching())
    assert graph.shape("x") == [2]
    with pytest.raises(KeyError, match="/other"):
        graph.output("/other")
    with pytest.raises(ValueError, match="it has no self_attn"):
        layers(graph, "self_attn")
