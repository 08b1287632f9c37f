"""Bodies written and read by the real `tritonclient`, without a socket between."""

from typing import Any

import numpy
import pytest

from headway.model import Tensor
from headway.server.families.v2 import codec
from headway.server.service.dtypes import DATATYPES
from headway.server.service.tensors import TensorSignature

http = pytest.importorskip("tritonclient.http")


def sample(datatype: str) -> Any:
    memory = DATATYPES[datatype].memory
    if datatype == "BYTES":
        return numpy.array([["a", "é"], ["", "long" * 100]], object)
    return numpy.array([[0, 1], [2, 3]]).astype(memory)


def sent(array: Any, datatype: str, *, is_binary: bool, outputs: Any = None) -> Any:
    tensor = http.InferInput("x", list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=is_binary)
    body, length = http.InferenceServerClient.generate_request_body(
        [tensor], outputs=outputs, request_id="7", priority=1, timeout=1000
    )
    return codec.decode(bytes(body), length)


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("datatype", sorted(DATATYPES))
def test_every_datatype_goes_there_and_back(datatype: str, is_binary: bool) -> None:
    if not (is_binary or DATATYPES[datatype].is_json):
        pytest.skip("not as JSON")
    array = sample(datatype)
    outputs = [http.InferRequestedOutput("y", binary_data=is_binary)]
    request = sent(array, datatype, is_binary=is_binary, outputs=outputs)
    assert request.parameters == {"priority": 1, "timeout": 1000}
    dtype = "bfloat16" if datatype == "BF16" else str(request.inputs["x"].dtype)
    body, _, length = codec.encode(
        "m",
        "1",
        request,
        {"y": request.inputs["x"]},
        signature=TensorSignature([], [Tensor("y", dtype, (-1, 2))]),
    )
    result = http.InferenceServerClient.parse_response_body(body, header_length=length)
    assert result.get_response()["id"] == "7"
    found = result.as_numpy("y")
    if datatype == "BYTES":
        texts = [each.decode() if isinstance(each, bytes) else each for each in found.ravel()]
        assert texts == array.ravel().tolist()
    else:
        assert found.dtype == array.dtype
        assert found.tolist() == array.tolist()


def test_without_outputs_the_client_gets_them_all_in_binary() -> None:
    request = sent(sample("FP32"), "FP32", is_binary=True)
    assert request.is_binary
    body, content_type, length = codec.encode("m", "1", request, {"y": numpy.ones((1, 2), "f4")})
    assert content_type == "application/octet-stream"
    result = http.InferenceServerClient.parse_response_body(body, header_length=length)
    assert result.as_numpy("y").tolist() == [[1.0, 1.0]]


def test_classes_arrive_as_texts() -> None:
    outputs = [http.InferRequestedOutput("y", class_count=1)]
    request = sent(sample("FP32"), "FP32", is_binary=True, outputs=outputs)
    body, _, length = codec.encode("m", "1", request, {"y": numpy.eye(2, dtype="f4")})
    result = http.InferenceServerClient.parse_response_body(body, header_length=length)
    assert result.as_numpy("y").tolist() == [[b"1.000000:0"], [b"1.000000:1"]]
