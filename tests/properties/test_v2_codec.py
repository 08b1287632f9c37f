"""The v2 codec under any tensors and any bytes: what is written is read back, and what is broken is
the caller's error, never ours."""

import json
from typing import Any

import numpy
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies

from headway.errors import InputTooLarge, InvalidInput
from headway.model import Tensor
from headway.server.families.v2 import codec
from headway.server.service.dtypes import BF16, BYTES, DATATYPES, Datatype
from headway.server.service.requests import InferRequest, check_outputs
from headway.server.service.tensors import Array, TensorSignature, narrow, widen

SHAPES = numpy_strategies.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
JSON_TYPES = [each for each in DATATYPES.values() if each.is_json]
Named = dict[str, tuple[Datatype, Array]]


def arrays_of(datatype: Datatype, *, finite: bool) -> st.SearchStrategy[Array]:
    if datatype is BYTES:
        texts = st.text().map(str.encode) if finite else st.binary(max_size=20)
        return numpy_strategies.arrays(object, SHAPES, elements=texts, fill=st.nothing())
    if datatype is BF16:
        return numpy_strategies.arrays(numpy.uint16, SHAPES).map(widen)
    if datatype.kind == "float":
        width: Any = datatype.memory.itemsize * 8
        floats = st.floats(width=width, allow_nan=not finite, allow_infinity=not finite)
        return numpy_strategies.arrays(datatype.memory, SHAPES, elements=floats)
    return numpy_strategies.arrays(datatype.memory, SHAPES)


@st.composite
def named_arrays(draw: st.DrawFn, types: list[Datatype], *, finite: bool) -> Named:
    names = draw(st.lists(st.text(max_size=5), min_size=1, max_size=3, unique=True))
    found: Named = {}
    for name in names:
        datatype = draw(st.sampled_from(types))
        found[name] = (datatype, draw(arrays_of(datatype, finite=finite)))
    return found


def written(named: Named, *, is_binary: bool) -> tuple[bytes, int | None]:
    """An answer of ours, with its outputs turned into the inputs of a request."""
    asked = InferRequest("", {}, {}, (), {}, is_binary)
    text, _, length = codec.encode(
        "m",
        "1",
        asked,
        {name: array for name, (_, array) in named.items()},
        signature=TensorSignature(
            [],
            [Tensor(name, "bfloat16", (-1,)) for name, (kind, _) in named.items() if kind is BF16],
        ),
    )
    head = json.loads(text[:length])
    for output in head["outputs"]:
        shape = list(named[output["name"]][1].shape)
        # An answer has an axis of one where there is one value a row.
        assert output["shape"] == (shape if len(shape) != 1 else [*shape, 1])
        output["shape"] = shape
    request = json.dumps({"inputs": head["outputs"], "id": "7"}).encode()
    if length is None:
        return request, None
    return request + text[length:], len(request)


def assert_same(named: Named, request: InferRequest) -> None:
    assert list(request.inputs) == list(named)
    for name, (datatype, array) in named.items():
        found = request.inputs[name]
        assert request.datatypes[name] is datatype
        assert found.dtype == array.dtype
        assert found.shape == array.shape
        if datatype is BYTES:
            assert found.tolist() == array.tolist()
        elif datatype is BF16:  # a signalling NaN comes back quiet
            assert (narrow(found) == narrow(array)).all()
        else:
            assert found.tobytes() == array.tobytes()


@given(named_arrays(JSON_TYPES, finite=True))
def test_json_comes_back_as_it_was(named: Named) -> None:
    text, length = written(named, is_binary=False)
    assert_same(named, codec.decode(text, length))


@given(named_arrays(list(DATATYPES.values()), finite=False))
def test_binary_comes_back_as_it_was(named: Named) -> None:
    text, length = written(named, is_binary=True)
    assert_same(named, codec.decode(text, length))


@given(named_arrays(JSON_TYPES, finite=True))
def test_nested_data_means_the_same_as_flat(named: Named) -> None:
    inputs = [
        {
            "name": name,
            "datatype": datatype.name,
            "shape": array.shape,
            "data": _nested(datatype, array),
        }
        for name, (datatype, array) in named.items()
    ]
    assert_same(named, codec.decode(json.dumps({"inputs": inputs}).encode()))


def _nested(datatype: Datatype, array: Array) -> Any:
    if datatype is BYTES:
        array = numpy.vectorize(bytes.decode, otypes=[object])(array) if array.size else array
    return array.tolist() if array.ndim else [array.item()]


SIGNATURES = st.sampled_from(
    [
        TensorSignature([], []),
        TensorSignature([Tensor("x", "float32", (-1, 4))], [Tensor("y", "float32", (-1, 4))]),
        TensorSignature([Tensor("x", "object", (-1,))], []),
        TensorSignature([Tensor("x", "int8", (-1, -1))], []),
        TensorSignature([Tensor("x", "int8", (-1, 0, -1))], []),
    ]
)


def decode_anything(body: bytes, length: int | None, signature: TensorSignature) -> None:
    try:
        request = codec.decode(body, length, signature=signature)
        request_inputs = signature.check_inputs(request.inputs, request.datatypes)
        check_outputs(request, signature)
    except (InvalidInput, InputTooLarge):
        return
    assert request_inputs.keys() == request.inputs.keys()


LENGTHS = st.none() | st.integers(-1, 300)


@given(st.binary(max_size=200), LENGTHS, SIGNATURES)
@example(b"", 0, TensorSignature([Tensor("x", "int8", (-1, 0, -1))], []))
def test_any_bytes_are_the_callers_error_at_worst(
    body: bytes, length: int | None, signature: TensorSignature
) -> None:
    decode_anything(body, length, signature)


@st.composite
def mutated(draw: st.DrawFn) -> tuple[bytes, int | None]:
    is_binary = draw(st.booleans())
    types = list(DATATYPES.values()) if is_binary else JSON_TYPES
    named = draw(named_arrays(types, finite=not is_binary))
    text, length = written(named, is_binary=is_binary)
    body = bytearray(text)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(len(body) - 1, 0)))
        body[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    cut = draw(st.integers(0, len(body)) | st.just(len(body)))
    return bytes(body[:cut]), draw(st.just(length) | LENGTHS)


@given(mutated(), SIGNATURES)
def test_a_damaged_request_is_the_callers_error_at_worst(
    damaged: tuple[bytes, int | None], signature: TensorSignature
) -> None:
    decode_anything(*damaged, signature)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)
PARAMETERS = st.dictionaries(
    st.sampled_from(
        [
            *("binary_data", "binary_data_size", "binary_data_output", "classification"),
            *("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"),
        ]
    ),
    JSON_VALUES,
    max_size=3,
)
TENSORS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["x", "y"]),
        "shape": st.lists(st.integers(-1, 5) | st.integers(), max_size=4) | JSON_VALUES,
        "datatype": st.sampled_from(sorted(DATATYPES)) | st.text(max_size=4),
    },
    optional={"data": JSON_VALUES, "parameters": PARAMETERS},
)


@given(st.lists(TENSORS, max_size=3), st.none() | st.lists(TENSORS, max_size=2), SIGNATURES)
def test_a_well_formed_but_senseless_request_is_the_callers_error_at_worst(
    inputs: list[Any], outputs: list[Any] | None, signature: TensorSignature
) -> None:
    body = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    decode_anything(body, None, signature)
    decode_anything(body, len(body), signature)


@pytest.mark.parametrize("datatype", DATATYPES.values(), ids=lambda each: each.name)
def test_every_datatype_has_an_empty_tensor(datatype: Datatype) -> None:
    named: Named = {"x": (datatype, numpy.empty((0, 3), datatype.memory))}
    text, length = written(named, is_binary=True)
    assert_same(named, codec.decode(text, length))
