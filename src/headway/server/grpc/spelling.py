"""The chunks of one stream as messages of `ModelStreamInfer`.

Of a stream of texts, the commonest one, all messages but the first differ in that text alone: the
first is made as every answer is, the others are that message with another text in it.
"""

import struct
from collections.abc import Callable
from typing import Any

from headway.server.grpc import inference_pb2 as pb

IS_END = "triton_final_response"
_LENGTH = struct.Struct("<I")


class Spelling:
    def __init__(self, encode: Callable[[Any], pb.ModelInferResponse]) -> None:
        self._encode = encode
        self._of_text: pb.ModelStreamInferResponse | None = None  # what texts are written into

    def message_of(self, chunk: Any) -> pb.ModelStreamInferResponse:
        """Valid until the next one is asked for."""
        message = self._of_text
        if message is not None and type(chunk) is str:
            message.infer_response.raw_output_contents[0] = _raw(chunk)
            return message
        response = self._encode(chunk)
        response.parameters[IS_END].bool_param = False
        message = pb.ModelStreamInferResponse(infer_response=response)
        if type(chunk) is str and list(response.raw_output_contents) == [_raw(chunk)]:
            self._of_text = message
        return message


def _raw(text: str) -> bytes:
    """An element of a BYTES tensor."""
    data = text.encode()
    return _LENGTH.pack(len(data)) + data
