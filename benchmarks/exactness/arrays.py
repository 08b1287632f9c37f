"""Models over arrays: ONNX graphs, programs of torch.export, models of a user's own, each asked by
many callers at once. Rows of some depend on each other: those must run each request alone.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy

from benchmarks.exactness.cases import EXACT, Case, Verdict
from headway import Batcher, Tensor, TensorModel

Arrays = dict[str, Any]
_REQUESTS = 200
_MOST = 1e-4  # of the largest number, and of 1
_WIDTH = 6
_OPSET = 17


# ---- asking


def asked(
    model: Any,
    alone: Callable[[Arrays], Arrays],
    *,
    depends: bool,
    may_be_single: bool = False,
    **how: Any,
) -> Verdict:
    """200 requests of 1 to 3 rows at once: each as by itself; batched where rows do not depend."""
    warnings = _Warnings()
    logger = logging.getLogger("headway.runtime.batching.calibration")
    logger.addHandler(warnings)
    try:
        values, found, batches = asyncio.run(_answers(model, **how))
    finally:
        logger.removeHandler(warnings)
    for number, (value, answer) in enumerate(zip(values, found, strict=True)):
        expected = alone(value)
        for name, array in expected.items():
            if not _is_same(answer[name], array):
                return Verdict("wrong", f"request {number}: {name} is {answer[name]}"[:200])
    if bool(warnings.texts) != depends:
        return Verdict("wrong", f"warned: {warnings.texts}")
    if not depends and not may_be_single and batches > _REQUESTS / 2:
        return Verdict("wrong", f"{batches} batches of {_REQUESTS} requests: it is not batched")
    return EXACT


async def _answers(
    model: Any, rows: Sequence[int] = (1, 2, 3), **how: Any
) -> tuple[list[Arrays], list[Arrays], int]:
    values = [
        _request(model.inputs, number, rows[number % len(rows)]) for number in range(_REQUESTS)
    ]
    ends: list[object] = []

    def observe(event: object) -> None:
        if type(event).__name__ == "BatchFinished":
            ends.append(event)

    async with Batcher[Any, Any](model, observers=[observe], name="model", **how) as batcher:
        ends.clear()
        found = await asyncio.gather(*(batcher.submit(value) for value in values))
    return values, found, len(ends)


def _request(inputs: Sequence[Tensor], number: int, rows: int) -> Arrays:
    rng = numpy.random.default_rng(number)
    value = {}
    for tensor in inputs:
        shape = (rows, *(7 if axis == -1 else axis for axis in tensor.shape[1:]))
        dtype = numpy.dtype(tensor.array_dtype)
        if dtype.kind == "O":
            drawn: Any = rng.integers(0, 9, shape).astype(str).astype("S").astype(object)
        elif dtype.kind in "iub":
            drawn = rng.integers(0, 2, shape).astype(dtype)
        else:
            drawn = (rng.standard_normal(shape) * (1 + number % 4)).astype(dtype)
        value[tensor.name] = drawn
    return value


def _is_same(one: Any, other: Any) -> bool:
    one, other = numpy.asarray(one), numpy.asarray(other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.dtype.kind != "f":
        return bool((one == other).all())
    scale = max(1.0, float(numpy.abs(numpy.nan_to_num(other)).max(initial=0)))
    return bool(numpy.allclose(one, other, rtol=0, atol=_MOST * scale, equal_nan=True))


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "depend on each other" in record.getMessage():
            self.texts.append(record.getMessage())


# ---- ONNX


class _Graph:
    """Nodes in order; each name that a node makes is the next one's to take."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def node(self, kind: str, *takes: str, gives: str = "", **attributes: Any) -> str:
        import onnx

        gives = gives or f"n{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(kind, [*takes], [gives], **attributes))
        return gives

    def constant(self, value: Any) -> str:
        import onnx

        name = f"c{len(self.constants)}"
        self.constants.append(onnx.numpy_helper.from_array(numpy.asarray(value), name))
        return name

    def weight(self, *shape: int) -> str:
        rng = numpy.random.default_rng(len(self.constants))
        return self.constant(rng.standard_normal(shape).astype(numpy.float32))

    def save(self, path: Path, takes: Sequence[Any], gives: Sequence[Any]) -> None:
        import onnx

        graph = onnx.helper.make_graph(self.nodes, "g", takes, gives, self.constants)
        opsets = [onnx.helper.make_opsetid("", _OPSET)]
        onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


Make = Callable[[_Graph], str]


def _info(name: str, kind: str, shape: Sequence[Any]) -> Any:
    import onnx

    return onnx.helper.make_tensor_value_info(name, getattr(onnx.TensorProto, kind), shape)


def _onnx(
    make: Make,
    depends: bool,
    takes: Sequence[tuple[str, str, Sequence[Any]]],
    gives: tuple[str, Sequence[Any]],
    how: Mapping[str, Any],
    folder: Path,
) -> Verdict:
    from headway.backends.onnx import OnnxModel, open_session

    path = folder / "m.onnx"
    graph = _Graph()
    graph.node("Identity", make(graph), gives="y")
    kind, shape = gives
    graph.save(path, [_info(*each) for each in takes], [_info("y", kind, shape)])
    model = OnnxModel(path)
    session = open_session(path)

    def alone(value: Arrays) -> Arrays:
        texts = {
            name: array.astype("U").astype(object) if array.dtype.kind == "O" else array
            for name, array in value.items()
        }
        rows = len(next(iter(texts.values())))
        missing = max([*model.batch_sizes, rows]) - rows  # it runs at its batch sizes only
        full = {n: numpy.concatenate([x, *[x[-1:]] * missing]) for n, x in texts.items()}
        return {"y": session.run(["y"], full)[0][:rows]}

    options = dict(how)
    if model.batch_sizes:
        options["batch_sizes"] = model.batch_sizes
        options["max_batch_size"] = model.batch_sizes[-1]
    return asked(model, alone, depends=depends, **options)


def _reduced(kind: str, axis: int, **more: Any) -> Make:
    return lambda g: g.node("Sub", "x", g.node(kind, "x", axes=[axis], keepdims=1, **more))


def _softmax_by_all(g: _Graph) -> str:
    """Steadied by the largest number of all rows: one that is large leaves nothing of others."""
    numbers = g.node("Exp", g.node("Sub", "x", g.node("ReduceMax", "x", keepdims=0)))
    return g.node("Div", numbers, g.node("ReduceSum", numbers, g.constant(numpy.array([1]))))


def _room_for_eight(g: _Graph) -> str:
    """Like experts that take eight rows each, and drop the others."""
    count = g.node("Gather", g.node("Shape", "x"), g.constant(numpy.array(0)))
    places = g.node("Range", g.constant(numpy.array(0)), count, g.constant(numpy.array(1)))
    kept = g.node("Cast", g.node("Less", places, g.constant(numpy.array(8))), to=1)
    return g.node("Mul", "x", g.node("Unsqueeze", kept, g.constant(numpy.array([1]))))


def _attention(g: _Graph) -> str:
    states = g.node("MatMul", "x", g.weight(_WIDTH, _WIDTH))
    scores = g.node("MatMul", states, g.node("Transpose", "x", perm=[0, 2, 1]))
    return g.node("MatMul", g.node("Softmax", scores, axis=-1), "x")


def _attention_of_rows(g: _Graph) -> str:
    scores = g.node("MatMul", "x", g.node("Transpose", "x", perm=[1, 0]))
    return g.node("MatMul", g.node("Softmax", scores, axis=-1), "x")


def _lstm(g: _Graph) -> str:
    """Its first axis is time."""
    weights = [g.weight(1, 16, _WIDTH), g.weight(1, 16, 4)]
    g.nodes.append(_lstm_node(weights))
    return g.node("Squeeze", "hidden", g.constant(numpy.array([1])))


def _lstm_node(weights: Sequence[str]) -> Any:
    import onnx

    return onnx.helper.make_node("LSTM", ["x", *weights], ["hidden"], hidden_size=4)


def _quantized(g: _Graph) -> str:
    """In 8 bits, by the largest number of all rows."""
    import onnx

    node = onnx.helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"])
    g.nodes.append(node)
    return g.node("DequantizeLinear", "q", "scale", "zero")


def _network(g: _Graph) -> str:
    hidden = g.node("Relu", g.node("Gemm", "x", g.weight(_WIDTH, 64), g.weight(64)))
    return g.node("Gemm", hidden, g.weight(64, 5), g.weight(5))


def _embedding(g: _Graph) -> str:
    states = g.node("Gather", g.weight(2, _WIDTH), "x")  # of two entries
    return g.node("ReduceMean", states, axes=[1], keepdims=0)


def _convolution(g: _Graph) -> str:
    hidden = g.node("Conv", "x", g.weight(4, 3, 3, 3), kernel_shape=[3, 3], pads=[1] * 4)
    pooled = g.node("GlobalAveragePool", g.node("Relu", hidden))
    return g.node("Flatten", pooled, axis=1)


def _batch_norm(g: _Graph) -> str:
    """With running statistics, as it must be."""
    names = [g.weight(_WIDTH) for _ in range(3)]
    return g.node(
        "BatchNormalization", "x", *names, g.constant(numpy.full(_WIDTH, 2.0, numpy.float32))
    )


def _batch_norm_in_training(g: _Graph) -> str:
    import onnx

    names = ["x", *(g.weight(_WIDTH) for _ in range(3))]
    names.append(g.constant(numpy.full(_WIDTH, 2.0, numpy.float32)))
    g.nodes.append(
        onnx.helper.make_node(
            "BatchNormalization", names, ["normed", "mean", "variance"], training_mode=1
        )
    )
    return "normed"


def _number_of_rows(g: _Graph) -> str:
    count = g.node("Gather", g.node("Shape", "x"), g.constant(numpy.array(0)))
    return g.node("Div", "x", g.node("Cast", count, to=1))


def _reversed(g: _Graph) -> str:
    ends = [g.constant(numpy.array([each])) for each in (-1, -(2**62), 0, -1)]
    return g.node("Slice", "x", *ends)


def _numbers_of(g: _Graph) -> str:
    return g.node("Mul", g.node("Cast", "x", to=1), g.constant(numpy.float32(2)))


def _numbers_less_mean(g: _Graph) -> str:
    numbers = g.node("Cast", "x", to=1)
    return g.node("Sub", numbers, g.node("ReduceMean", numbers, axes=[0], keepdims=1))


def _ranked(g: _Graph) -> str:
    return g.node("Cast", g.node("ArgMax", "x", axis=1, keepdims=1), to=1)


def _best_row(g: _Graph) -> str:
    best = g.node("ArgMax", "x", axis=0, keepdims=1)
    return g.node("Add", "x", g.node("Cast", best, to=1))


def _masked_mean(g: _Graph) -> str:
    states = g.node("Gather", g.weight(2, _WIDTH), "input_ids")
    mask = g.node("Cast", "attention_mask", to=1)
    wide = g.node("Unsqueeze", mask, g.constant(numpy.array([2])))
    total = g.node(
        "ReduceSum", g.node("Mul", states, wide), g.constant(numpy.array([1])), keepdims=0
    )
    count = g.node("ReduceSum", mask, g.constant(numpy.array([1])), keepdims=1)
    return g.node("Div", total, count)


_ROWS: Any = [("x", "FLOAT", ["rows", _WIDTH])]
_OUT: Any = ("FLOAT", ["rows", "any"])
_TEXT: Any = [("x", "STRING", ["rows", 1])]
_TIME: Any = [("x", "FLOAT", ["rows", 1, _WIDTH])]
_SEQUENCE: Any = [("x", "FLOAT", ["rows", 7, _WIDTH])]
_IDS: Any = [("input_ids", "INT64", ["rows", "n"]), ("attention_mask", "INT64", ["rows", "n"])]

# By name: the graph, whether its rows depend on each other, inputs, output, options.
_GRAPHS: dict[str, tuple[Make, bool, Any, Any, Mapping[str, Any]]] = {
    "network": (_network, False, _ROWS, _OUT, {}),
    "softmax of each row": (lambda g: g.node("Softmax", "x", axis=1), False, _ROWS, _OUT, {}),
    "mean of each row": (_reduced("ReduceMean", 1), False, _ROWS, _OUT, {}),
    "softmax by the largest of all": (_softmax_by_all, True, _ROWS, _OUT, {}),
    "room for eight rows": (_room_for_eight, True, _ROWS, _OUT, {}),
    "running sum in each row": (
        lambda g: g.node("CumSum", "x", g.constant(numpy.array(1))),
        False,
        _ROWS,
        _OUT,
        {},
    ),
    "attention in each row": (
        _attention,
        False,
        _SEQUENCE,
        ("FLOAT", ["rows", 7, _WIDTH]),
        {},
    ),
    "embedding": (_embedding, False, [("x", "INT64", ["rows", 4])], _OUT, {}),
    "convolution": (_convolution, False, [("x", "FLOAT", ["rows", 3, 8, 8])], _OUT, {}),
    "convolution of any size": (
        _convolution,
        False,
        [("x", "FLOAT", ["rows", 3, "h", "w"])],
        _OUT,
        {},
    ),
    "batch norm": (_batch_norm, False, _ROWS, _OUT, {}),
    "largest of each row": (_ranked, False, _ROWS, _OUT, {}),
    "numbers in texts": (_numbers_of, False, _TEXT, _OUT, {}),
    "masked mean": (_masked_mean, False, _IDS, _OUT, {}),
    "eight rows, network": (
        _network,
        False,
        [("x", "FLOAT", [8, _WIDTH])],
        ("FLOAT", [8, 5]),
        {},
    ),
    "mean of rows": (_reduced("ReduceMean", 0), True, _ROWS, _OUT, {}),
    "largest of rows": (_reduced("ReduceMax", 0), True, _ROWS, _OUT, {}),
    "norm over all": (
        lambda g: g.node("Div", "x", g.node("ReduceL2", "x", keepdims=1)),
        True,
        _ROWS,
        _OUT,
        {},
    ),
    "softmax of rows": (lambda g: g.node("Softmax", "x", axis=0), True, _ROWS, _OUT, {}),
    "running sum of rows": (
        lambda g: g.node("CumSum", "x", g.constant(numpy.array(0))),
        True,
        _ROWS,
        _OUT,
        {},
    ),
    "running sum from the end": (
        lambda g: g.node("CumSum", "x", g.constant(numpy.array(0)), reverse=1),
        True,
        _ROWS,
        _OUT,
        {},
    ),
    "attention among rows": (_attention_of_rows, True, _ROWS, _OUT, {}),
    "time first": (_lstm, True, _TIME, ("FLOAT", ["rows", 1, 4]), {}),
    "quantised by all rows": (_quantized, True, _ROWS, _OUT, {}),
    "batch norm in training": (_batch_norm_in_training, True, _ROWS, _OUT, {}),
    "number of rows": (_number_of_rows, True, _ROWS, _OUT, {}),
    "rows in reverse": (_reversed, True, _ROWS, _OUT, {}),
    "best row": (_best_row, True, _ROWS, _OUT, {}),
    "numbers in texts, less their mean": (_numbers_less_mean, True, _TEXT, _OUT, {}),
    "one row that says all": (
        lambda g: g.node("ReduceMean", "x", axes=[0], keepdims=1),
        True,
        _ROWS,
        _OUT,
        {},
    ),
    # Of one row only: never shared, so nothing changes.
    "one row, mean": (
        _reduced("ReduceMean", 0),
        False,
        [("x", "FLOAT", [1, _WIDTH])],
        ("FLOAT", [1, _WIDTH]),
        {"rows": (1,), "may_be_single": True},
    ),
    "eight rows, mean": (
        _reduced("ReduceMean", 0),
        True,
        [("x", "FLOAT", [8, _WIDTH])],
        ("FLOAT", [8, _WIDTH]),
        {"rows": (8,)},
    ),
}


# ---- torch.export


def _program(name: str, depends: bool, folder: Path) -> Verdict:
    import torch

    from headway.backends.torch import ExportedModel

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(_WIDTH, 4)

        def forward(self, x: Any) -> Any:
            found = self.layer(x)
            if name == "mean of rows":
                return found - found.mean(0)
            if name == "softmax of rows":
                return found.softmax(0)
            if name == "layer norm":
                return torch.nn.functional.layer_norm(found, (4,))
            return found

    net = Net().eval()
    rows = torch.export.Dim("rows", min=1, max=1024)
    program = torch.export.export(net, (torch.randn(3, _WIDTH),), dynamic_shapes=({0: rows},))
    torch.export.save(program, folder / "m.pt2")

    def alone(value: Arrays) -> Arrays:
        with torch.no_grad():
            return {"output": net(torch.tensor(value["x"])).numpy()}

    return asked(ExportedModel(folder / "m.pt2"), alone, depends=depends)


# ---- models of a user's own


class _Own(TensorModel):
    outputs = (Tensor("y", "float32", (-1, _WIDTH)),)
    inputs = (Tensor("x", "float32", (-1, _WIDTH)),)

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def predict(self, batch: Arrays) -> Arrays:
        return {"y": self.function(batch["x"]).astype(numpy.float32)}


def _own(function: Callable[[Any], Any], depends: bool, folder: Path) -> Verdict:
    return asked(_Own(function), lambda value: _Own(function).predict(value), depends=depends)


_OWN: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "doubles": (lambda x: 2 * x, False),
    "norm of each row": (lambda x: x / numpy.linalg.norm(x, axis=1, keepdims=True), False),
    "less the mean": (lambda x: x - x.mean(0), True),
    "sorted": (lambda x: numpy.sort(x, axis=0), True),
    "less the first": (lambda x: x - x[:1], True),
}
_SHORT = {
    *("network", "mean of rows", "running sum of rows", "embedding", "numbers in texts"),
    *("time first", "one row that says all", "convolution of any size"),
}


def cases() -> list[Case]:
    graphs = [
        Case(
            "arrays",
            f"onnx: {name}",
            functools.partial(_onnx, *parts),
            expected="exact",
            is_short=name in _SHORT,
        )
        for name, parts in _GRAPHS.items()
    ]
    programs = [
        Case(
            "arrays", f"torch: {name}", functools.partial(_program, name, depends), expected="exact"
        )
        for name, depends in (
            ("linear", False),
            ("layer norm", False),
            ("mean of rows", True),
            ("softmax of rows", True),
        )
    ]
    own = [
        Case(
            "arrays",
            f"own: {name}",
            functools.partial(_own, *parts),
            expected="exact",
            is_short=name == "sorted",
        )
        for name, parts in _OWN.items()
    ]
    return [*graphs, *programs, *own]
