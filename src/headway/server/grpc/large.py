"""Large answers: protobuf never sees their data. It would copy them twice, each time in one go in
which no other thread runs. Written in parts, it is copied a frame at a time."""

from typing import Any

from headway.server.grpc import inference_pb2 as pb

# Fields as protobuf writes them: the number, and that a length follows.
RAW = b"%c" % (pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER << 3 | 2)
ANSWER = b"%c" % (pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER << 3 | 2)


class LargeResponse:
    """A `ModelInferResponse`, its raw outputs beside it."""

    def __init__(self, head: pb.ModelInferResponse, raws: list[bytes]) -> None:
        self.head = head
        self._raws = raws

    @property
    def parameters(self) -> Any:
        return self.head.parameters

    def parts(self) -> list[bytes]:
        """Together, the message."""
        parts = [self.head.SerializeToString()]
        for raw in self._raws:
            parts += (RAW + varint(len(raw)), raw)
        return parts


class LargeStreamResponse:
    """A `ModelStreamInferResponse` with such an answer in it."""

    def __init__(self, response: LargeResponse) -> None:
        self._response = response

    def parts(self) -> list[bytes]:
        parts = self._response.parts()
        return [ANSWER + varint(sum(map(len, parts))), *parts]


def joined(parts: list[bytes]) -> bytes:
    return b"".join(parts)  # of much, other threads run meanwhile


def serialise(message: Any) -> bytes:
    if type(message) is bytes:
        return message
    data: bytes = message.SerializeToString()
    return data


def varint(number: int) -> bytes:
    if number < 128:
        return _SHORT[number]
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)


_SHORT = [bytes((number,)) for number in range(128)]
