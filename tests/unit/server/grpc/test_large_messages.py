"""Messages: held against the model first, then read; and their answers."""

from typing import Any

import numpy
import pytest

from headway.errors import InputTooLarge, InvalidInput, ModelFailed
from headway.model import Tensor
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc import messages
from headway.server.service.requests import InferRequest
from headway.server.service.tensors import RequestLimits, TensorSignature

NUMBERS = TensorSignature([Tensor("x", "float32", (-1, -1))], [])


def request(datatype: str, shape: list[int], **contents: Any) -> pb.ModelInferRequest:
    made = pb.ModelInferRequest()
    tensor = made.inputs.add(name="x", datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(tensor.contents, field).extend(values)
    return made


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        (request("BYTES", [1, 1], bytes_contents=[b"a"]), InvalidInput, "takes FP32, not BYTES"),
        (request("FP32", [1]), InvalidInput, "the model takes"),
        (request("FP32", [2**20, 2**20]), InputTooLarge, "elements"),
        (request("FP32", [2**17, 1]), InputTooLarge, "rows"),
    ],
)
def test_what_does_not_fit_is_refused_by_what_it_says_of_itself(
    asked: pb.ModelInferRequest, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        messages.check_promised(asked, NUMBERS)


def test_more_tensors_than_anybody_has_are_refused_before_they_are_looked_at() -> None:
    asked = pb.ModelInferRequest.FromString(b"\x2a\0" * 2000)  # empty inputs
    with pytest.raises(InputTooLarge, match="1024 inputs"):
        messages.check_promised(asked, NUMBERS)


def test_typed_contents_have_a_limit_of_their_own() -> None:
    asked = request("INT64", [1, messages.MOST_TYPED + 1], int64_contents=[1])
    with pytest.raises(InputTooLarge, match="raw_input_contents may have more"):
        messages.decode(asked)


def test_more_parameters_than_anybody_has_are_refused() -> None:
    asked = pb.ModelInferRequest()
    for number in range(2000):
        asked.parameters[f"p{number}"].int64_param = 1
    with pytest.raises(InvalidInput, match="at most 1024"):
        messages.decode(asked)


def test_shared_memory_keeps_to_the_limit_on_elements() -> None:
    signature = TensorSignature([Tensor("x", "float32", (-1, -1))], [], RequestLimits(elements=100))
    asked = request("FP32", [1, 101])
    asked.inputs[0].parameters["shared_memory_region"].string_param = "r"
    asked.inputs[0].parameters["shared_memory_byte_size"].int64_param = 404
    with pytest.raises(InputTooLarge, match="more than 100 elements"):
        messages.check_promised(asked, signature)
    asked.inputs[0].shape[1] = 100
    asked.inputs[0].parameters["shared_memory_byte_size"].int64_param = 801
    with pytest.raises(InputTooLarge, match="800 bytes of shared memory"):
        messages.check_promised(asked, signature)


@pytest.mark.parametrize(
    ("datatype", "field", "values"),
    [
        ("FP32", "fp32_contents", [0.5] * 10_000),
        ("INT8", "int_contents", [*range(-100, 100)] * 50),
        ("BYTES", "bytes_contents", [b"a", b"bc"] * 5_000),
    ],
)
def test_long_lists_are_large(datatype: str, field: str, values: list[Any]) -> None:
    asked = request(datatype, [100, 100], **{field: values})
    assert messages.is_large(asked)
    array = messages.decode(asked).inputs["x"]
    assert array.shape == (100, 100)
    assert array.ravel().tolist() == values


def test_a_number_out_of_range_is_found() -> None:
    asked = request("INT8", [1, 10_000], int_contents=[0] * 9_999 + [128])
    with pytest.raises(InvalidInput, match="INT8 goes from -128 to 127"):
        messages.decode(asked)


def test_raw_numbers_are_only_looked_at() -> None:
    asked = request("FP32", [100, 100])
    asked.raw_input_contents.append(numpy.zeros(10_000, "f4").tobytes())
    assert not messages.is_large(asked)


@pytest.mark.parametrize("count", [0, 1, 200, 2**18])
def test_an_answer_is_the_same_message_in_both_ways(count: int) -> None:
    """For one row of fixed shapes, and for all else; by itself, and in a stream."""
    outputs = {"x": numpy.arange(count, dtype="f4").reshape(1, -1), "z": numpy.ones((1, 3), "i8")}
    signature = TensorSignature(
        [], [Tensor("x", "float32", (-1, -1)), Tensor("z", "int64", (-1, 3))]
    )
    asked = InferRequest("an id", {}, {}, (), {}, is_binary=True)
    usual = messages.encode("m", "1", asked, outputs, signature=signature)
    encoder = messages.AnswerEncoder("m", "1", signature)
    answer = pb.ModelInferResponse.FromString(usual)
    assert [each.name for each in answer.outputs] == ["x", "z"]
    assert list(answer.raw_output_contents) == [each.tobytes() for each in outputs.values()]
    for _ in range(2):  # the second time its shape is known
        assert pb.ModelInferResponse.FromString(encoder.encode("an id", outputs)) == answer
    for is_final in (False, True):
        message = messages.stream_message(usual, is_final=is_final)
        answer.parameters[messages.IS_END].bool_param = is_final
        assert pb.ModelStreamInferResponse.FromString(message).infer_response == answer


def test_a_text_that_is_no_text_is_refused_by_name() -> None:
    signature = TensorSignature([], [Tensor("y", "object", (-1,))])
    encoder = messages.AnswerEncoder("m", "1", signature)
    with pytest.raises(ModelFailed, match="surrogates not allowed"):
        encoder.encode("", {"y": numpy.array(["\ud800"], object)})
