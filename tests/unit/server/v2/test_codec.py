"""v2 bodies to arrays and back: what is accepted, what is refused, and that the reason is said."""

import json
import struct
from typing import Any

import numpy
import pytest

from headway.errors import InputTooLarge, InvalidInput
from headway.model import Tensor
from headway.server.bodies.json_body import SMALL_BYTES
from headway.server.families.v2 import codec
from headway.server.service.dtypes import DATATYPES
from headway.server.service.requests import (
    InferRequest,
    RequestedOutput,
    SharedSlice,
    check_outputs,
)
from headway.server.service.tensors import Array, RequestLimits, TensorSignature


def body(*inputs: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **more}).encode()


def tensor(data: Any = None, **fields: Any) -> dict[str, Any]:
    found = {"name": "x", "shape": [2], "datatype": "FP32", "data": data, **fields}
    return {key: value for key, value in found.items() if value is not None}


def decode_one(*args: Any, **fields: Any) -> Array:
    return codec.decode(body(tensor(*args, **fields))).inputs["x"]


def with_tail(head: bytes, tail: bytes, **options: Any) -> InferRequest:
    return codec.decode(head + tail, len(head), **options)


def asked(**fields: Any) -> InferRequest:
    defaults: dict[str, Any] = {
        "id": "", "inputs": {}, "datatypes": {}, "outputs": (), "parameters": {}
    }  # fmt: skip
    return InferRequest(**{**defaults, **fields})


def test_nested_and_flat_data_are_the_same() -> None:
    nested = decode_one([[1, 2.5], [3, 4]], shape=[2, 2])
    flat = decode_one([1, 2.5, 3, 4], shape=[2, 2])
    assert nested.dtype == numpy.float32
    assert nested.tolist() == flat.tolist() == [[1.0, 2.5], [3.0, 4.0]]


def test_spaces_before_the_brackets_do_no_harm() -> None:
    text = b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"INT8","data": \n[ \t[1, 2]]}]}'
    assert codec.decode(text).inputs["x"].tolist() == [[1, 2]]


def test_texts_become_bytes() -> None:
    array = decode_one([["héllo"], [""]], shape=[2, 1], datatype="BYTES")
    assert array.dtype == object
    assert array.tolist() == [["héllo".encode()], [b""]]


@pytest.mark.parametrize("data", [[], [[], []]])
def test_an_empty_tensor_keeps_its_shape(data: Any) -> None:
    assert decode_one(data, shape=[2, 0, 3]).shape == (2, 0, 3)


def test_a_scalar_is_a_flat_list_of_one() -> None:
    assert decode_one([7], shape=[], datatype="INT64").shape == ()


def test_id_outputs_and_parameters_are_read() -> None:
    request = codec.decode(
        body(
            tensor([1, 2]),
            id="a",
            outputs=[{"name": "y", "parameters": {"classification": 3}}, {"name": "z"}],
            parameters={"binary_data_output": True, "priority": 1},
        )
    )
    assert request.id == "a"
    assert request.outputs == (RequestedOutput("y", True, 3), RequestedOutput("z", True))
    assert request.parameters["priority"] == 1


def test_null_stands_for_absent() -> None:
    request = codec.decode(body(tensor([1, 2]), id=None, outputs=None, parameters=None))
    assert (request.id, request.outputs, request.parameters) == ("", (), {})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"data": [1, 2, 3]}, "takes 2 elements"),
        ({"data": [[1, 2]]}, "2 levels"),
        ({"data": [[1], [2, 3]], "shape": [2, 2]}, "not of shape"),
        ({"data": [[1, 2, 3, 4]], "shape": [2, 2]}, r"data is of shape \[1, 4\]"),
        ({"data": [1, "2"]}, r"FP32 data: Expected `float`, got `str` - at `\$\[1\]`"),
        ({"data": [1, True]}, "FP32 data"),
        ({"data": [1, None]}, "FP32 data"),
        ({"data": [1, 1e39]}, "FP32 data"),
        ({"data": [1, 1.5], "datatype": "INT32"}, "INT32 data"),
        ({"data": [1, 128], "datatype": "INT8"}, "INT8 data"),
        ({"data": [1, -1], "datatype": "UINT64"}, "UINT64 data"),
        ({"data": [1, 2**64], "datatype": "UINT64"}, "'x'"),
        ({"data": [1, 2**70], "datatype": "INT64"}, "INT64 data"),
        ({"data": [0, 1], "datatype": "BOOL"}, "BOOL data"),
        ({"data": ["a", 1], "datatype": "BYTES"}, "BYTES data"),
        ({"data": [[["a"]], ["b"]], "datatype": "BYTES", "shape": [2, 1]}, "3 levels"),
        ({"data": [["a"], ["b", "c"]], "datatype": "BYTES", "shape": [2, 1]}, "shape"),
        ({"data": 3}, "0 levels"),
        ({"data": "ab", "datatype": "BYTES"}, "0 levels"),
        ({"data": [1, 65505.0], "datatype": "FP16"}, "FP16 data"),
        ({"data": [1, 2], "datatype": "BF16"}, "BF16 cannot be sent as JSON"),
        ({"data": [1, 2], "datatype": "FP8"}, "'FP8' is unknown"),
        ({"data": [1, 2], "shape": [-2]}, "negative"),
        ({"data": [1, 2], "shape": [2**40, 2**40]}, "takes"),
        ({"data": [1], "shape": [0]}, "no elements"),
        ({"data": [], "shape": [0, 2**62, 2**62]}, "not possible"),
        ({"data": [1], "shape": [1] * 33}, "33 dimensions"),
        ({}, "no data"),
    ],
)
def test_a_wrong_tensor_is_named_with_what_was_expected(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as caught:
        decode_one(**fields)
    assert "'x'" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "empty: JSON is expected"),
        (b"{", "not valid JSON"),
        (b"[]", "not as expected"),
        (b"{}", "inputs"),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[NaN]}]}', "JSON"),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[Infinity]}]}', "JSON"),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP64","data":[1e999]}]}', "JSON|out of"),
        (b'{"inputs":[{"name":"\xff","shape":[1],"datatype":"FP32","data":[1]}]}', "JSON"),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"BYTES","data":["\xff"]}]}', "JSON"),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"BYTES","data":["\\ud800"]}]}', "JSON"),
        (b'{"inputs":[{"shape":[1],"datatype":"FP32","data":[1]}]}', "name"),
        (b'{"inputs":[{"name":"x","shape":["1"],"datatype":"FP32","data":[1]}]}', "shape"),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}],"id":3}', "id"),
        (b'{"inputs":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not as expected|nested"),
    ],
)
def test_a_broken_body_is_refused(text: bytes, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        codec.decode(text)


@pytest.mark.parametrize("data", [b"[" * 100_000 + b"]" * 100_000, b"[" * 100_000])
def test_deeply_nested_data_is_refused(data: bytes) -> None:
    text = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":' + data + b"}]}"
    with pytest.raises(InvalidInput):
        codec.decode(text)


def test_the_same_name_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="input 'x' is given twice"):
        codec.decode(body(tensor([1, 2]), tensor([1, 2])))
    with pytest.raises(InvalidInput, match="output 'y' is asked for twice"):
        codec.decode(body(tensor([1, 2]), outputs=[{"name": "y"}, {"name": "y"}]))


def binary(size: Any, **fields: Any) -> dict[str, Any]:
    return tensor(parameters={"binary_data_size": size}, **fields)


def test_binary_tensors_are_views_of_the_body() -> None:
    head = body(binary(8), binary(2, name="b", datatype="UINT8"))
    request = with_tail(head, struct.pack("<2f2B", 1.5, -2.0, 7, 255))
    assert request.inputs["x"].tolist() == [1.5, -2.0]
    assert request.inputs["b"].tolist() == [7, 255]
    assert not request.inputs["x"].flags.owndata


def test_binary_and_json_inputs_may_be_mixed() -> None:
    head = body(tensor([1, 2], name="a"), binary(8))
    request = with_tail(head, struct.pack("<2f", 3, 4))
    assert request.inputs["a"].tolist() + request.inputs["x"].tolist() == [1, 2, 3, 4]


def test_bf16_is_widened_exactly() -> None:
    array = with_tail(body(binary(4, datatype="BF16")), struct.pack("<2H", 0x3FC0, 0xFF80))
    assert array.inputs["x"].tolist() == [1.5, float("-inf")]


def test_binary_bytes_are_length_prefixed() -> None:
    tail = struct.pack("<I3sI", 3, b"a\xff\0", 0)
    request = with_tail(body(binary(len(tail), datatype="BYTES")), tail)
    assert request.inputs["x"].tolist() == [b"a\xff\0", b""]


@pytest.mark.parametrize(
    ("head", "tail", "said"),
    [
        (body(binary(8)), b"1234567", "'x': binary_data_size is 8, 7 bytes are left"),
        (body(binary(8)), b"123456789", "1 bytes of binary data belong to no input"),
        (body(binary(7)), b"1234567", r"'x': FP32 of shape \[2\] takes 8 bytes, 7 came"),
        (body(binary(8, shape=[2**62])), b"12345678", "takes"),
        (body(binary(-1)), b"", "whole number"),
        (body(binary("8")), b"12345678", "whole number"),
        (body(binary(True)), b"1", "whole number"),
        (body(binary(8, data=[1, 2])), b"12345678", "give one of"),
        (body(binary(8, datatype="BYTES")), b"\xff\xff\xff\xff1234", "inside BYTES element 0"),
        (body(binary(8, datatype="BYTES")), b"\x02\0\0\0ab\0\0", "inside BYTES element 1"),
        (body(binary(9, datatype="BYTES")), b"\0\0\0\0\0\0\0\0a", "1 bytes are left"),
        (body(binary(8, datatype="BYTES", shape=[2**61])), b"12345678", "BYTES elements need"),
    ],
)
def test_wrong_binary_data_is_refused(head: bytes, tail: bytes, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        with_tail(head, tail)


@pytest.mark.parametrize("length", [-1, 10**9])
def test_a_header_length_outside_the_body_is_refused(length: int) -> None:
    with pytest.raises(InvalidInput, match="Inference-Header-Content-Length"):
        codec.decode(body(tensor([1, 2])), length)


def one_input(dtype: str, shape: tuple[int, ...]) -> TensorSignature:
    return TensorSignature([Tensor("x", dtype, shape)], [])


def test_a_raw_body_takes_its_shape_from_the_model() -> None:
    request = codec.decode(
        struct.pack("<4f", 1, 2, 3, 4), 0, signature=one_input("float32", (-1, -1, 2))
    )
    assert request.inputs["x"].tolist() == [[[1, 2], [3, 4]]]
    assert request.is_binary


def test_a_raw_body_is_one_whole_text() -> None:
    request = codec.decode(b"hello", 0, signature=one_input("object", (-1,)))
    assert request.inputs["x"].tolist() == [b"hello"]


@pytest.mark.parametrize(
    "signature",
    [
        TensorSignature([], []),
        one_input("float32", (-1, 3)),
        one_input("float32", (-1, -1, -1)),
        one_input("float32", (-1, -1, 0)),
    ],
)
def test_a_raw_body_that_does_not_fit_is_refused(signature: TensorSignature) -> None:
    with pytest.raises(InvalidInput):
        codec.decode(b"12345678", 0, signature=signature)


def answer(request: InferRequest, outputs: dict[str, Array], **options: Any) -> Any:
    text, content_type, header_length = codec.encode("m", "1", request, outputs, **options)
    assert (content_type, header_length) == ("application/json", None)
    return json.loads(text)


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64", "INT64", "UINT64", "BOOL"])
def test_a_long_list_is_decoded_in_pieces_to_the_same_array(datatype: str) -> None:
    count = 50_000
    array = numpy.random.default_rng(0).integers(0, 2, count).astype(DATATYPES[datatype].memory)
    if datatype in ("FP32", "FP64"):
        array = array + numpy.arange(count, dtype=array.dtype) / 7
    tensor = {"name": "x", "shape": [count // 2, 2], "datatype": datatype, "data": array.tolist()}
    for spaces in ((",", ":"), (" , ", " : ")):
        body = json.dumps({"inputs": [tensor]}, separators=spaces).encode()
        found = codec.decode(body).inputs["x"]
        assert (found.dtype, found.shape) == (array.dtype, (count // 2, 2))
        numpy.testing.assert_array_equal(found.ravel(), array)


@pytest.mark.parametrize("wrong", [None, "1,2", [3], {}, 1e300, True])
@pytest.mark.parametrize("at", [0, 25_000, 49_999])
def test_a_mistake_in_a_long_list_is_found(wrong: Any, at: int) -> None:
    data: list[Any] = [1.5] * 50_000
    data[at] = wrong
    tensor = {"name": "x", "shape": [50_000], "datatype": "FP32", "data": data}
    with pytest.raises(InvalidInput, match="input 'x'"):
        codec.decode(json.dumps({"inputs": [tensor]}).encode())


@pytest.mark.parametrize("data", [[1.5] * 49_999, [1.5] * 50_001, []])
def test_a_long_list_must_be_as_long_as_its_shape(data: list[float]) -> None:
    tensor = {"name": "x", "shape": [50_000], "datatype": "FP32", "data": data}
    with pytest.raises(InvalidInput, match="input 'x'"):
        codec.decode(json.dumps({"inputs": [tensor]}).encode())


def test_what_takes_long_to_decode_is_known_beforehand() -> None:
    numbers = TensorSignature([Tensor("x", "float32", (-1, 2))], [])
    words = TensorSignature([Tensor("x", "object", (-1,))], [])
    large = b" " * (SMALL_BYTES + 1)
    assert codec.is_large(large, None, numbers)
    assert codec.is_large(large, len(large), numbers)
    assert not codec.is_large(large, 100, numbers)  # the rest is raw
    assert codec.is_large(large, 100, words)  # which are copied one by one
    assert not codec.is_large(large[:-1], None, words)


def test_json_beyond_its_limit_is_refused_and_binary_tensors_are_named() -> None:
    signature = TensorSignature(
        [Tensor("x", "float32", (-1, 2))], [], RequestLimits(json_bytes=2 * SMALL_BYTES)
    )
    body = b'{"inputs":[' + b" " * (2 * SMALL_BYTES) + b"]}"
    with pytest.raises(InputTooLarge, match="binary tensors"):
        codec.decode(body, signature=signature)
    with pytest.raises(InvalidInput):
        codec.decode(body[100:], signature=signature)


def test_json_of_more_values_than_anybody_has_is_refused_before_it_is_decoded() -> None:
    body = b'{"inputs":[' + b"[]," * 600_000 + b"]}"
    with pytest.raises(InputTooLarge, match="more than 1048576 values"):
        codec.decode(body)


def test_an_answer_has_its_outputs_flat_and_in_the_order_asked() -> None:
    request = asked(id="7", outputs=(RequestedOutput("b"), RequestedOutput("a")))
    outputs = {"a": numpy.eye(2, dtype="f4"), "b": numpy.array([True]), "c": numpy.zeros(1)}
    assert answer(request, outputs) == {
        "model_name": "m",
        "model_version": "1",
        "outputs": [
            {"name": "b", "datatype": "BOOL", "shape": [1, 1], "data": [True]},
            {"name": "a", "datatype": "FP32", "shape": [2, 2], "data": [1.0, 0.0, 0.0, 1.0]},
        ],
        "id": "7",
    }


def test_what_json_has_no_number_for_is_null() -> None:
    outputs = {"y": numpy.array([numpy.nan, numpy.inf])}
    assert answer(asked(), outputs)["outputs"][0]["data"] == [None, None]


def test_texts_of_any_making_are_bytes() -> None:
    for array in (numpy.array(["a", "é"]), numpy.array(["a", "é".encode()], object)):
        (output,) = answer(asked(), {"y": array})["outputs"]
        assert (output["datatype"], output["data"]) == ("BYTES", ["a", "é"])


def test_binary_outputs_follow_the_json() -> None:
    request = asked(outputs=(RequestedOutput("a", True), RequestedOutput("b")))
    outputs = {"a": numpy.array([1, 2], "i2"), "b": numpy.array([b"x"], object)}
    text, content_type, length = codec.encode("m", "1", request, outputs)
    assert content_type == "application/octet-stream"
    assert text[length:] == b"\x01\0\x02\0"
    a, b = json.loads(text[:length])["outputs"]
    assert a["parameters"] == {"binary_data_size": 4}
    assert "data" not in a
    assert "parameters" not in b


def test_a_transposed_output_is_written_row_by_row() -> None:
    array = numpy.arange(6, dtype="u1").reshape(2, 3).T
    text, _, length = codec.encode("m", "1", asked(is_binary=True), {"y": array})
    assert text[length:] == bytes([0, 3, 1, 4, 2, 5])


def test_a_big_endian_output_is_written_little_endian() -> None:
    text, _, length = codec.encode("m", "1", asked(is_binary=True), {"y": numpy.array([1], ">i4")})
    assert text[length:] == b"\x01\0\0\0"


def test_bf16_is_rounded_to_the_nearest() -> None:
    signature = TensorSignature([], [Tensor("y", "bfloat16", (-1,))])
    values = numpy.array([1.0, 1.00390625, 1.01171875, numpy.nan, numpy.inf, -0.0], "f4")
    text, _, length = codec.encode(
        "m", "1", asked(is_binary=True), {"y": values}, signature=signature
    )
    halves = struct.unpack("<6H", text[length:])
    assert halves == (0x3F80, 0x3F80, 0x3F82, 0x7FC0, 0x7F80, 0x8000)


def test_classes_are_scores_indexes_and_labels_best_first() -> None:
    request = asked(outputs=(RequestedOutput("y", classes=2),))
    outputs = {"y": numpy.array([[0.25, 0.5, 0.125], [3, 2, 1]], "f4")}
    (output,) = answer(request, outputs, labels={"y": ["a", "b"]})["outputs"]
    assert output["shape"] == [2, 2]
    assert output["data"] == ["0.500000:1:b", "0.250000:0:a", "3.000000:0:a", "2.000000:1:b"]


def test_more_classes_than_there_are_gives_what_there_is() -> None:
    request = asked(outputs=(RequestedOutput("y", classes=9),))
    (output,) = answer(request, {"y": numpy.array([1, 2], "u1")})["outputs"]
    assert (output["shape"], output["data"]) == ([2], ["2.000000:1", "1.000000:0"])


@pytest.mark.parametrize(
    ("want", "array", "said"),
    [
        (RequestedOutput("z"), numpy.zeros(1), "output 'z' is unknown; the model gives y"),
        (RequestedOutput("y"), numpy.array([b"\xff"], object), "not UTF-8"),
        (RequestedOutput("y", classes=1), numpy.array([b"a"], object), "cannot be classified"),
        (RequestedOutput("y", shared=SharedSlice("r", 0, 8)), numpy.zeros(1), "is off"),
    ],
)
def test_an_output_that_cannot_be_given_is_refused(
    want: RequestedOutput, array: Array, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        codec.encode("m", "1", asked(outputs=(want,)), {"y": array})


def test_what_could_not_be_answered_is_refused_before_the_model_runs() -> None:
    signature = TensorSignature([], [Tensor("y", "bfloat16", (-1,)), Tensor("t", "object", (-1,))])
    check_outputs(asked(is_binary=True), signature)
    check_outputs(asked(outputs=(RequestedOutput("t"),)), signature)
    for request in (
        asked(),
        asked(outputs=(RequestedOutput("y"),)),
        asked(outputs=(RequestedOutput("u"),)),
    ):
        with pytest.raises(InvalidInput, match=r"output '[yu]'"):
            check_outputs(request, signature)
