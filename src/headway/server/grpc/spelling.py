"""The chunks of one stream as messages of `ModelStreamInfer`. Large ones are made off the loop.

Of a stream of texts, the commonest one, all messages but the first differ in that text alone: the
first is made as every answer is, the others are that message with another text in it.
"""

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy

from headway.errors import ModelFailed
from headway.server.bodies.background import Steps, Work, background
from headway.server.bodies.encoding import is_large
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc.large import (
    ANSWER,
    RAW,
    LargeResponse,
    LargeStreamResponse,
    joined,
    varint,
)
from headway.server.service.requests import LONG_TEXTS, is_large_raw
from headway.wire.http2.inbox import framed, prefix_of

IS_END = "triton_final_response"
_LENGTH = struct.Struct("<I")
_FRAME = struct.Struct(">BI")
_MOST_REMEMBERED = 32  # bytes of a text: a token's
InSteps: TypeAlias = Callable[[Steps], LargeResponse]


class ChunkEncoder:
    def __init__(self, encode: Callable[[Any], pb.ModelInferResponse | InSteps]) -> None:
        """`encode`: a chunk's answer, or how a large one is made."""
        self._encode = encode
        self._of_text: pb.ModelStreamInferResponse | None = None  # what texts are written into
        self._start = b""  # of the answer in it, up to its text
        self._before: dict[int, bytes] = {}  # by a text's length: all of its message before it

    async def wait_message(self, chunk: Any) -> pb.ModelStreamInferResponse | bytes:
        """Valid until the next one is asked for; a large one is serialised. Raises ModelFailed."""
        found = self.message_of(chunk)
        if isinstance(found, pb.ModelStreamInferResponse):
            return found
        return await background.run(lambda steps: joined(_parts(found, steps)))

    def message_of(self, chunk: Any) -> pb.ModelStreamInferResponse | InSteps:
        message = self._of_text
        if message is not None and type(chunk) is str and len(chunk) <= LONG_TEXTS:
            message.infer_response.raw_output_contents[0] = _raw(chunk)
            return message
        response = self._encode(chunk)
        if not isinstance(response, pb.ModelInferResponse):
            return response
        response.parameters[IS_END].bool_param = False
        message = pb.ModelStreamInferResponse(infer_response=response)
        if type(chunk) is str and list(response.raw_output_contents) == [_raw(chunk)]:
            self._of_text = message
            self._start = _without_text(response, chunk)
        return message

    def frames_of(self, chunks: Sequence[Any]) -> bytes:
        """Of short texts, in one call; nothing, where others are among them. The hot path of our
        own stack."""
        if not self._start:
            return b""
        frames, known = [], self._before
        try:
            for chunk in chunks:
                if type(chunk) is not str or len(chunk) > LONG_TEXTS:
                    return b""
                text = chunk.encode()
                before = known.get(len(text)) or self._begin(len(text))
                frames.append(before + text)
        except UnicodeEncodeError:  # half of a surrogate pair
            return b""
        return b"".join(frames)

    def frame_of(self, chunk: Any) -> bytes | Work:
        """The same, serialised, as a message of gRPC."""
        if frame := self.frames_of((chunk,)):
            return frame
        found = self.message_of(chunk)
        if isinstance(found, pb.ModelStreamInferResponse):
            return framed(found.SerializeToString())
        return partial(_large_frame, found)

    def _begin(self, text_bytes: int) -> bytes:
        """What stands before a text of this length."""
        raw_bytes = _LENGTH.size + text_bytes
        raw_size = varint(raw_bytes)
        answer_bytes = len(self._start) + len(RAW) + len(raw_size) + raw_bytes
        answer_size = varint(answer_bytes)
        size_bytes = len(ANSWER) + len(answer_size) + answer_bytes
        found = b"".join(
            (
                *(_FRAME.pack(0, size_bytes), ANSWER, answer_size),
                *(self._start, RAW, raw_size, _LENGTH.pack(text_bytes)),
            )
        )
        if text_bytes <= _MOST_REMEMBERED:
            self._before[text_bytes] = found
        return found


def is_large_chunk(chunk: Any) -> bool:
    """Would its answer hold an event loop up? (A value without a tensor's kind travels as JSON.)"""
    return is_large_raw(chunk) if isinstance(chunk, numpy.ndarray) else is_large(chunk)


def _parts(make: InSteps, steps: Steps) -> list[bytes]:
    response = make(steps)
    response.parameters[IS_END].bool_param = False
    return LargeStreamResponse(response).parts()


def _large_frame(make: InSteps, steps: Steps) -> bytes:
    parts = _parts(make, steps)
    return joined([prefix_of(*parts), *parts])


def _raw(text: str) -> bytes:
    """An element of a BYTES tensor."""
    data = _utf8(text)
    return _LENGTH.pack(len(data)) + data


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ModelFailed(f"the result cannot be written as text: {error}") from None


def _without_text(response: pb.ModelInferResponse, text: str) -> bytes:
    """Its bytes before the text's; empty: protobuf has written them in another order."""
    raw, data = _raw(text), response.SerializeToString()
    end = RAW + varint(len(raw)) + raw
    return data[: -len(end)] if data.endswith(end) else b""
