"""The heads of gRPC calls: HPACK blocks to what a call asks for, and answers to HPACK blocks.

Pure, but for the decoder's table. What we send never uses the peer's table: then we keep no state,
and the blocks of most answers are constants.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias
from urllib.parse import quote_from_bytes

import hpack
from hpack.table import HeaderTable

from headway.wire.http2.frames import Code, ConnectionFailed, StreamFailed

Value: TypeAlias = str | bytes
Metadata: TypeAlias = tuple[tuple[str, Value], ...]

_MOST_REMEMBERED_BYTES = 16 * 2**10  # of a connection, decoded
_FIELD_BYTES = 32  # for each header, as HPACK counts
_FIELDS_A_UNIT = 2  # of a budget: 4 µs each, those that enter the table 8
_BYTES_A_UNIT = 48  # Huffman's code takes 0.2 µs a byte
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_PSEUDO = frozenset([b":method", b":scheme", b":path", b":authority"])
_NEEDED = frozenset([b":method", b":scheme", b":path"])
_OF_HTTP_1 = frozenset(
    [b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"]
)


class CallHead(NamedTuple):
    """The contents of a call's first frame."""

    path: str
    metadata: Metadata  # what is not the protocol's own
    timeout_s: float | None
    encoding: str  # of its messages, where they say that they are compressed
    is_grpc: bool
    is_plain: bool  # it has no options
    size_bytes: int  # in memory, about


class _Table(HeaderTable):
    """A header table that notes every change."""

    has_changed = False

    def add(self, name: bytes, value: bytes) -> None:
        self.has_changed = True
        super().add(name, value)

    @property
    def maxsize(self) -> int:
        return self._maxsize

    @maxsize.setter
    def maxsize(self, value: int) -> None:
        self.has_changed = True
        HeaderTable.maxsize.fset(self, value)  # type: ignore[attr-defined]


class HeadReader:
    """Decodes the blocks of one connection, in order.

    A client repeats its blocks, to the byte, once its table has settled. A block that changes
    nothing in the table means the same until another one does: so long it is remembered.
    """

    def __init__(self, *, limit_bytes: int) -> None:
        self._decoder = hpack.Decoder(limit_bytes)
        self._table = self._decoder.header_table = _Table()
        self._known: dict[bytes, CallHead] = {}
        self._known_bytes = 0
        self.cost = 0  # of the last block; nothing where it was known

    def read(self, block: bytes) -> CallHead:
        """Raises ConnectionFailed, or StreamFailed where only this call is broken."""
        known = self._known.get(block)
        if known is not None:
            self.cost = 0
            return known
        found = _head_of(self.decode(block))
        size_bytes = found.size_bytes + len(block)
        if not self._table.has_changed and self._known_bytes + size_bytes <= _MOST_REMEMBERED_BYTES:
            self._known[block] = found
            self._known_bytes += size_bytes
        return found

    def decode(self, block: bytes) -> list[tuple[bytes, bytes]]:
        """Decode a block. Every block must be decoded, wanted or not: they share a table."""
        self._table.has_changed = False
        try:
            fields: list[tuple[bytes, bytes]] = list(self._decoder.decode(block, raw=True))
            self.cost = len(fields) // _FIELDS_A_UNIT + len(block) // _BYTES_A_UNIT
            return fields
        except hpack.OversizedHeaderListError as error:
            raise ConnectionFailed(Code.ENHANCE_YOUR_CALM, str(error)) from error
        except (hpack.HPACKError, ValueError, IndexError) as error:
            raise ConnectionFailed(Code.COMPRESSION_ERROR, f"HPACK: {error}") from error
        finally:
            if self._table.has_changed:
                self._known.clear()
                self._known_bytes = 0


def _head_of(fields: Sequence[tuple[bytes, bytes]]) -> CallHead:
    pseudo: dict[bytes, bytes] = {}
    rest: dict[str, str] = {}
    metadata: list[tuple[str, Value]] = []
    for name, value in fields:
        if name[:1] == b":":
            if name in pseudo or name not in _PSEUDO or rest or metadata:
                raise _broken(f"{name.decode('latin-1')!r} is not allowed here")
            pseudo[name] = value
            continue
        key, text = _field(name, value)
        if key.startswith("grpc-") or key in ("content-type", "te"):
            rest[key] = text
        else:
            metadata.append((key, _from_wire(key, text)))
    if not pseudo.keys() >= _NEEDED:
        raise _broken("a request has a method, a scheme and a path")
    kind = rest.get("content-type", "")
    return CallHead(
        path=pseudo[b":path"].decode("latin-1"),
        metadata=tuple(metadata),
        timeout_s=_timeout_of(rest.get("grpc-timeout")),
        encoding=rest.get("grpc-encoding", "identity"),
        is_grpc=pseudo[b":method"] == b"POST"
        and re.fullmatch(r"application/grpc([+;].*)?", kind) is not None,
        is_plain="grpc-timeout" not in rest
        and not any(key.startswith("headway-") for key, _ in metadata),
        size_bytes=sum(len(name) + len(value) + _FIELD_BYTES for name, value in fields),
    )


def _field(name: bytes, value: bytes) -> tuple[str, str]:
    if not _NAME.fullmatch(name) or name in _OF_HTTP_1:
        raise _broken(f"{name.decode('latin-1')!r} is not a header of HTTP/2")
    if b"\r" in value or b"\n" in value or b"\0" in value:
        raise _broken(f"{name.decode()!r} has a line break in it")
    return name.decode(), value.decode("latin-1")


def _from_wire(key: str, text: str) -> Value:
    """`-bin` is base64, padded or not."""
    if not key.endswith("-bin"):
        return text
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _broken(f"{key!r} is not base64") from error


def _timeout_of(text: str | None) -> float | None:
    if text is None:
        return None
    found = _TIMEOUT.fullmatch(text)
    if found is None:
        raise _broken(f"grpc-timeout {text!r} is not a time")
    return int(found[1]) * _UNITS[found[2]]


def _broken(message: str) -> StreamFailed:
    return StreamFailed(Code.PROTOCOL_ERROR, message)


# ---- writing


def _literal(name: bytes, value: bytes) -> bytes:
    """A header that is not indexed, with its name."""
    return b"\0" + _length(len(name)) + name + _length(len(value)) + value


def _length(size: int) -> bytes:
    """HPACK's integer with a prefix of 7 bits."""
    if size < 127:
        return bytes([size])
    size -= 127
    out = bytearray([127])
    while size >= 128:
        out.append(size & 127 | 128)
        size >>= 7
    out.append(size)
    return bytes(out)


_STATUS_200 = b"\x88"  # in the static table, as is the name of content-type
_TYPE = b"\x0f\x10" + _length(16) + b"application/grpc"
HEAD_BLOCK = _STATUS_200 + _TYPE + _literal(b"grpc-accept-encoding", b"identity, deflate, gzip")
OK_BLOCK = _literal(b"grpc-status", b"0")
NOT_GRPC_BLOCK = _literal(b":status", b"415")  # as the protocol has it for other content types


def metadata_block(metadata: Iterable[tuple[str, Value]]) -> bytes:
    """Raises ValueError where something is not a header."""
    block = b""
    for key, value in metadata:
        name = key.encode()
        if not _NAME.fullmatch(name) or name.startswith(b"grpc-"):
            raise ValueError(f"{key!r} is not a name for metadata")
        block += _literal(name, _to_wire(key, value))
    return block


def trailers_block(status: int, message: str, metadata: Iterable[tuple[str, Value]] = ()) -> bytes:
    block = _literal(b"grpc-status", b"%d" % status)
    if message:
        block += _literal(b"grpc-message", _percent_encoded(message))
    return block + metadata_block(metadata)


def only_trailers_block(block: bytes) -> bytes:
    """The block for a call that is answered without a message: head and trailers in one."""
    return _STATUS_200 + _TYPE + block


_PLAIN = bytes(each for each in range(0x20, 0x7F) if each != ord("%")).decode()


def _percent_encoded(message: str) -> bytes:
    return quote_from_bytes(message.encode(errors="replace"), safe=_PLAIN).encode()


def _to_wire(key: str, value: Value) -> bytes:
    if key.endswith("-bin"):
        raw = value if isinstance(value, bytes) else value.encode()
        return base64.b64encode(raw).rstrip(b"=")
    data = value if isinstance(value, bytes) else value.encode("latin-1", "replace")
    # A line break would be a header of its own, once a proxy passes it on as HTTP/1.1.
    return data.replace(b"\r", b" ").replace(b"\n", b" ").replace(b"\0", b" ")
