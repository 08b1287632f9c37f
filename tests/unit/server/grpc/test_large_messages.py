"""Large messages: held against the model first, then read in steps."""

from typing import Any

import numpy
import pytest

from headway.errors import InputTooLarge, InvalidInput
from headway.model import Tensor
from headway.server.bodies.background import Steps
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc import messages
from headway.server.grpc.large import LargeResponse, LargeStreamResponse
from headway.server.grpc.measuring import Size, measure
from headway.server.service.requests import InferRequest
from headway.server.service.tensors import Limits, TensorSignature

NUMBERS = TensorSignature([Tensor("x", "float32", (-1, -1))], [])


class CountedSteps(Steps):
    count = 0

    def rest(self) -> None:
        self.count += 1


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


def test_shared_memory_keeps_to_the_limit_on_elements() -> None:
    signature = TensorSignature([Tensor("x", "float32", (-1, -1))], [], Limits(elements=100))
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
def test_long_lists_are_read_in_steps(datatype: str, field: str, values: list[Any]) -> None:
    asked = request(datatype, [100, 100], **{field: values})
    steps = CountedSteps()
    assert messages.is_slow(asked)
    array = messages.decode(asked, steps=steps).inputs["x"]
    assert steps.count == 3
    assert array.shape == (100, 100)
    assert array.ravel().tolist() == values


def test_a_number_out_of_range_is_found_in_any_step() -> None:
    asked = request("INT8", [1, 10_000], int_contents=[0] * 9_999 + [128])
    with pytest.raises(InvalidInput, match="INT8 goes from -128 to 127"):
        messages.decode(asked)


def test_raw_numbers_are_only_looked_at() -> None:
    asked = request("FP32", [100, 100])
    asked.raw_input_contents.append(numpy.zeros(10_000, "f4").tobytes())
    assert not messages.is_slow(asked)


@pytest.mark.parametrize(("texts", "least"), [(100, 0), (5_000, 9), (100_000, 190)])
def test_a_message_is_measured_in_steps(texts: int, least: int) -> None:
    """It was one step, in a thread: the event loop waited for Python's lock again and again."""
    data = request("BYTES", [texts], bytes_contents=[b"a"] * texts).SerializeToString()
    steps = CountedSteps()
    size = measure(data, pb.ModelInferRequest, steps=steps)
    assert steps.count >= least
    assert size == measure(data, pb.ModelInferRequest)
    assert size.parts > texts


def test_and_no_longer_than_it_is_allowed_to_be() -> None:
    data, steps = b"\x2a\0" * 500_000, CountedSteps()  # empty inputs
    with pytest.raises(InputTooLarge, match="8192 messages"):
        measure(data, pb.ModelInferRequest, steps=steps)
    assert 15 <= steps.count <= 16
    with pytest.raises(InputTooLarge, match="1000 fields"):
        measure(data, pb.ModelInferRequest, Size(10**9, 1000, 10**9))


@pytest.mark.parametrize("count", [0, 1, 200, 2**18])
def test_a_large_answer_is_the_same_message(count: int) -> None:
    outputs = {"x": numpy.arange(count, dtype="f4").reshape(1, -1), "z": numpy.ones((1, 3), "i8")}
    signature = TensorSignature(
        [], [Tensor("x", "float32", (-1, -1)), Tensor("z", "int64", (-1, 3))]
    )
    asked = InferRequest("an id", {}, {}, (), {}, is_binary=True)
    usual = messages.encode("m", "1", asked, outputs, signature=signature)
    large = messages.encode("m", "1", asked, outputs, signature=signature, steps=CountedSteps())
    assert isinstance(large, LargeResponse)
    for each in (usual, large):
        each.parameters["a"].bool_param = True
    assert pb.ModelInferResponse.FromString(b"".join(large.parts())) == usual
    streamed = b"".join(LargeStreamResponse(large).parts())
    assert pb.ModelStreamInferResponse.FromString(streamed).infer_response == usual
