"""The chunks of one stream as messages of `ModelStreamInfer`.

Of a stream of texts, the commonest one, all messages but the first differ in that text alone: the
first is made as every answer is, the others are that message with another text in it.
"""

import struct
from collections.abc import Callable
from typing import Any

from headway.errors import ModelFailed
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc.large import ANSWER, RAW, varint
from headway.server.net.http2.inbox import framed

IS_END = "triton_final_response"
_LENGTH = struct.Struct("<I")
_FRAME = struct.Struct(">BI")


class ChunkEncoder:
    def __init__(self, encode: Callable[[Any], pb.ModelInferResponse]) -> None:
        self._encode = encode
        self._of_text: pb.ModelStreamInferResponse | None = None  # what texts are written into
        self._start = b""  # of the answer in it, up to its text

    def message_of(self, chunk: Any) -> pb.ModelStreamInferResponse:
        """Valid until the next one is asked for. Raises ModelFailed."""
        message = self._of_text
        if message is not None and type(chunk) is str:
            message.infer_response.raw_output_contents[0] = _raw(chunk)
            return message
        response = self._encode(chunk)
        response.parameters[IS_END].bool_param = False
        message = pb.ModelStreamInferResponse(infer_response=response)
        if type(chunk) is str and list(response.raw_output_contents) == [_raw(chunk)]:
            self._of_text = message
            self._start = _without_text(response, chunk)
        return message

    def frame_of(self, chunk: Any) -> bytes:
        """The same, serialised, as a message of gRPC. The hot path of our own stack."""
        start = self._start
        if not start or type(chunk) is not str:
            return framed(self.message_of(chunk).SerializeToString())
        raw = _raw(chunk)
        raw_size = varint(len(raw))
        answer_bytes = len(start) + 1 + len(raw_size) + len(raw)
        answer_size = varint(answer_bytes)
        frame = _FRAME.pack(0, 1 + len(answer_size) + answer_bytes)
        return b"".join((frame, ANSWER, answer_size, start, RAW, raw_size, raw))


def _raw(text: str) -> bytes:
    """An element of a BYTES tensor."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise ModelFailed(f"the result cannot be written as text: {error}") from None
    return _LENGTH.pack(len(data)) + data


def _without_text(response: pb.ModelInferResponse, text: str) -> bytes:
    """Its bytes before the text's; empty: protobuf has written them in another order."""
    raw, data = _raw(text), response.SerializeToString()
    end = RAW + varint(len(raw)) + raw
    return data[: -len(end)] if data.endswith(end) else b""
