"""The direct codec takes a request exactly as the general one does, or leaves it alone."""

from typing import Any

import msgspec
import numpy
from hypothesis import given
from hypothesis import strategies as st

from headway import Tensor
from headway.errors import HeadwayError
from headway.server.families.v2 import codec
from headway.server.families.v2.direct import direct_codec
from headway.server.service.tensors import TensorSignature

SIGNATURE = TensorSignature(
    [Tensor("x", "float32", (-1, 2)), Tensor("n", "int8", (-1,)), Tensor("t", "object", (-1, 1))],
    [Tensor("y", "float32", (-1, 2)), Tensor("u", "object", (-1, 1)), Tensor("b", "bool", (-1,))],
)
DIRECT = direct_codec("m", "3", SIGNATURE)

numbers = st.floats() | st.integers() | st.just(10**400)
anything = st.none() | st.booleans() | numbers | st.text(max_size=3)
data = st.lists(anything | st.lists(anything, max_size=3), max_size=3)


def input_of(name: str, datatype: str, shape: list[int], good: Any) -> Any:
    """An input as it should be, most of the time."""
    fields = {
        "name": st.just(name) | st.sampled_from(["x", "n", "t", "?"]),
        "datatype": st.just(datatype) | st.sampled_from(["FP32", "INT8", "BYTES", "?"]),
        "shape": st.just(shape) | st.lists(st.integers(-1, 3), max_size=3),
        "data": good | data,
    }
    return st.fixed_dictionaries(fields, optional={"parameters": st.just({})})


small = st.floats(width=32, allow_nan=False, allow_infinity=False)
inputs = st.tuples(
    input_of("x", "FP32", [1, 2], st.lists(small, min_size=2, max_size=2)),
    input_of("n", "INT8", [1], st.lists(st.integers(-128, 127), min_size=1, max_size=1)),
    input_of("t", "BYTES", [1, 1], st.lists(st.text(max_size=4), min_size=1, max_size=1)),
)
requests = st.fixed_dictionaries(
    {"inputs": inputs | st.permutations([0, 1, 2]).flatmap(lambda _: inputs.map(reversed))},
    optional={"id": st.text(max_size=3), "outputs": st.just([]), "more": st.none()},
)


def good_request(**more: Any) -> bytes:
    return msgspec.json.encode(
        {
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [0.1, -2]},
                {"name": "n", "datatype": "INT8", "shape": [1], "data": [-128]},
                {"name": "t", "datatype": "BYTES", "shape": [1, 1], "data": ["é"]},
            ],
            **more,
        }
    )


def general(body: bytes) -> Any:
    try:
        asked = codec.decode(body, signature=SIGNATURE)
        return asked.id, SIGNATURE.check_inputs(asked.inputs, asked.datatypes)
    except HeadwayError as error:
        return error


@given(requests.map(lambda value: {**value, "inputs": list(value["inputs"])}))
def test_what_is_taken_directly_is_what_the_general_way_makes_of_it(request: Any) -> None:
    body = msgspec.json.encode(request)
    assert DIRECT is not None
    direct = DIRECT.decode(body)
    if direct is not None:
        expected_id, expected = general(body)
        assert direct[0] == expected_id
        assert direct[1].keys() == expected.keys()
        for name, array in direct[1].items():
            assert array.dtype == expected[name].dtype
            assert array.shape == expected[name].shape
            assert numpy.array_equal(array, expected[name])


@given(st.binary(max_size=64) | st.just(good_request()[:-3]))
def test_what_is_no_request_is_left_alone(body: bytes) -> None:
    assert DIRECT is not None
    assert DIRECT.decode(body) is None


def test_the_common_request_is_taken() -> None:
    assert DIRECT is not None
    direct = DIRECT.decode(good_request(id="é"))
    assert direct is not None
    assert direct[0] == "é"
    assert direct[1]["t"].tolist() == [["é".encode()]]
    assert direct[1]["x"].dtype == numpy.float32


@given(
    st.text(max_size=3),
    st.lists(st.floats(width=32), min_size=2, max_size=2),
    st.text(max_size=3),
    st.booleans(),
)
def test_both_ways_answer_with_the_same_bytes(
    request_id: str, values: list[float], text: str, flag: bool
) -> None:
    outputs = {
        "y": numpy.array([values], numpy.float32),
        "u": numpy.array([[text]], object),
        "b": numpy.array([flag]),
    }
    asked = codec.decode(good_request(id=request_id), signature=SIGNATURE)
    expected, _, _ = codec.encode("m", "3", asked, outputs, signature=SIGNATURE)
    assert DIRECT is not None
    assert DIRECT.encode(request_id, outputs) == expected


def test_models_whose_shapes_vary_or_that_json_cannot_carry_are_not_direct() -> None:
    fixed, varies = Tensor("x", "float32", (-1, 2)), Tensor("x", "float32", (-1, -1))
    short, huge = Tensor("x", "bfloat16", (-1, 2)), Tensor("x", "float32", (-1, 100_000))
    for inputs, outputs in [([varies], [fixed]), ([short], [fixed]), ([fixed], [short]),
                            ([huge], [fixed]), ([], [fixed]), ([fixed], [])]:  # fmt: skip
        assert direct_codec("m", "1", TensorSignature(inputs, outputs)) is None
    assert direct_codec("m", "1", TensorSignature([fixed], [fixed])) is not None
