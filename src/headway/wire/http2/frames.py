"""HTTP/2 frames (RFC 9113) as bytes. Pure: it knows no streams, no sockets and no clock."""

import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Final, TypeAlias

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MAX_FRAME: Final = 2**14  # bytes of payload; no client may send us more
MAX_WINDOW: Final = 2**31 - 1
FIRST_WINDOW: Final = 2**16 - 1  # of a connection, and of a stream until SETTINGS say otherwise

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITISED: Final = 0x20

ENABLE_PUSH: Final = 2
MAX_CONCURRENT_STREAMS: Final = 3
INITIAL_WINDOW_SIZE: Final = 4
MAX_FRAME_SIZE: Final = 5
MAX_HEADER_LIST_SIZE: Final = 6

Frame: TypeAlias = tuple[int, int, int, bytes]  # kind, flags, stream, payload
HEAD: Final = struct.Struct(">HBBBL")  # length (high, low), kind, flags, stream
_SETTING = struct.Struct(">HL")
_RESERVED = 0x7FFFFFFF  # masks the bit that means nothing


class Code(IntEnum):
    """The reason why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class ConnectionFailed(Exception):
    """The peer broke a rule that all its streams depend on."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class StreamFailed(Exception):
    """The peer broke a rule on one stream; the others go on."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class FrameReader:
    """Whole frames out of bytes that come in any pieces."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def is_between(self) -> bool:
        """Whether no frame has begun that has not ended."""
        return not self._rest

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Raises ConnectionFailed where a frame is larger than we allow, after those before it."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        at, end, unpack = 0, len(data), HEAD.unpack_from
        while at + 9 <= end:
            high, low, kind, flags, stream_id = unpack(data, at)
            length = high << 8 | low
            if length > MAX_FRAME:
                raise failed_size(f"a frame has {length} bytes, at most {MAX_FRAME} are allowed")
            start = at + 9
            if start + length > end:
                break
            at = start + length
            yield kind, flags, stream_id & _RESERVED, data[start:at]
        self._rest = data[at:]


def failed_size(message: str) -> ConnectionFailed:
    return ConnectionFailed(Code.FRAME_SIZE_ERROR, message)


# ---- reading payloads


def unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & PADDED:
        return payload
    if not payload:
        raise failed_size("a padded frame says how much it is padded")
    if payload[0] >= len(payload):
        raise ConnectionFailed(Code.PROTOCOL_ERROR, "more padding than there is room for")
    return payload[1 : len(payload) - payload[0]]


def block_of(flags: int, payload: bytes) -> bytes:
    """The header block of HEADERS, without padding and priority."""
    block = unpadded(flags, payload)
    if not flags & PRIORITISED:
        return block
    if len(block) < 5:
        raise failed_size("a priority takes 5 bytes")
    return block[5:]


def parse_settings(payload: bytes) -> dict[int, int]:
    """The last value of each. Raises ConnectionFailed where one cannot be."""
    if len(payload) % 6:
        raise failed_size("a setting takes 6 bytes")
    settings = dict(_SETTING.iter_unpack(payload))
    if settings.get(INITIAL_WINDOW_SIZE, 0) > MAX_WINDOW:
        raise ConnectionFailed(Code.FLOW_CONTROL_ERROR, "an initial window beyond 2^31 - 1")
    if not MAX_FRAME <= settings.get(MAX_FRAME_SIZE, MAX_FRAME) < 2**24:
        raise ConnectionFailed(Code.PROTOCOL_ERROR, "a largest frame outside of 2^14 to 2^24 - 1")
    if settings.get(ENABLE_PUSH, 0) > 1:
        raise ConnectionFailed(Code.PROTOCOL_ERROR, "push is on or off")
    return settings


def parse_number(payload: bytes) -> int:
    """The 31 bits of WINDOW_UPDATE, or the code of RST_STREAM."""
    if len(payload) != 4:
        raise failed_size("this frame takes 4 bytes")
    return int.from_bytes(payload, "big")


def increment_of(payload: bytes) -> int:
    return parse_number(payload) & _RESERVED


# ---- writing


def head(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    return HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return head(kind, flags, stream_id, len(payload)) + payload


def settings(values: Mapping[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*each) for each in values.items()))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, increment.to_bytes(4, "big"))


def rst_stream(stream_id: int, code: Code) -> bytes:
    return frame(RST_STREAM, 0, stream_id, code.to_bytes(4, "big"))


def goaway(last_stream_id: int, code: Code, message: str = "") -> bytes:
    payload = last_stream_id.to_bytes(4, "big") + code.to_bytes(4, "big") + message.encode()
    return frame(GOAWAY, 0, 0, payload)


def headers(stream_id: int, block: bytes, *, is_last: bool) -> bytes:
    """A HEADERS frame, and CONTINUATION frames if the block is large."""
    parts = [block[at : at + MAX_FRAME] for at in range(0, len(block), MAX_FRAME)] or [b""]
    flags = END_STREAM if is_last else 0
    frames = []
    for number, part in enumerate(parts):
        if number == len(parts) - 1:
            flags |= END_HEADERS
        frames.append(frame(CONTINUATION if number else HEADERS, flags, stream_id, part))
        flags = 0
    return b"".join(frames)
