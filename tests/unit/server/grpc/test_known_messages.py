"""A message that is known up to its input is read as protobuf would read it."""

from typing import Any

import numpy
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from headway.model import Tensor
from headway.server.api.v2.tensors import TensorSignature
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc.direct import DirectMessages, KnownMessages, direct_messages

X = [Tensor("x", "float32", (-1, 4))]


def codec() -> DirectMessages:
    made = direct_messages("m", "1", TensorSignature(X, X))
    assert made is not None
    return made


def parts_of(row: bytes, **more: Any) -> list[bytes]:
    """One after the other they are the message, in any order."""
    inputs = pb.ModelInferRequest()
    inputs.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    named = pb.ModelInferRequest(model_name="m", **more)
    raw = pb.ModelInferRequest(raw_input_contents=[row])
    return [each.SerializeToString() for each in (named, inputs, raw)]


def learned(data: bytes) -> tuple[KnownMessages, DirectMessages]:
    known, messages = KnownMessages(), codec()
    request = pb.ModelInferRequest.FromString(data)
    if messages.decode(request) is not None:
        known.learn(data, request, messages)
    return known, messages


def rows(data: bytes, known: KnownMessages, messages: DirectMessages) -> Any:
    found = known.find(data)
    decoded = None if found is None else messages.decode(found)
    return None if decoded is None else decoded[1]["x"].tobytes()


@given(
    st.binary(min_size=16, max_size=16),
    st.permutations([0, 1, 2]),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=3),
)
def test_what_is_found_is_what_protobuf_finds(
    row: bytes, order: list[int], changes: list[tuple[int, int]]
) -> None:
    parts = parts_of(row)
    data = bytearray(b"".join(parts[i] for i in order))
    known, messages = learned(bytes(data))
    for at, byte in changes:
        data[at % len(data)] = byte
    found = rows(bytes(data), known, messages)
    if found is not None:
        try:
            parsed = pb.ModelInferRequest.FromString(bytes(data))
        except DecodeError:
            raise AssertionError("protobuf refuses it") from None
        assert list(parsed.raw_input_contents) == [found]
        assert parsed.model_name == "m"


def test_the_next_message_is_not_parsed() -> None:
    first, second = (numpy.full(4, number, numpy.float32).tobytes() for number in (1, 2))
    known, messages = learned(b"".join(parts_of(first)))
    assert rows(b"".join(parts_of(second)), known, messages) == second
    assert rows(b"".join(parts_of(second)) + b"\0", known, messages) is None


def test_an_input_that_is_not_at_the_end_is_not_learned() -> None:
    named, inputs, raw = parts_of(bytes(16))
    known, _ = learned(named + raw + inputs)
    assert known.find(named + raw + inputs) is None


def test_a_model_that_was_replaced_reads_it_anew() -> None:
    data = b"".join(parts_of(bytes(16)))
    known, _ = learned(data)
    assert rows(data, known, codec()) is None


def test_messages_with_ids_are_not_learned_and_the_others_are_bounded() -> None:
    named = b"".join(parts_of(bytes(16), id="mine"))
    known, messages = learned(named)
    assert known.find(named) is None
    for number in range(3000):
        data = b"".join(parts_of(bytes(16), model_version=str(number)))
        known.learn(data, pb.ModelInferRequest.FromString(data), messages)
    assert known.find(b"".join(parts_of(bytes(16), model_version="2999"))) is not None
    assert known.find(b"".join(parts_of(bytes(16), model_version="0"))) is None
