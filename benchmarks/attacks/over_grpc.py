"""Attacks on the gRPC port by messages: small ones that grow, and large ones for nothing."""

import gzip
import time
from collections.abc import Iterable

from benchmarks.attacks.peer import INFER, STREAM, Told, peers
from benchmarks.attacks.scene import MIB, Attack, Outcome, Target
from headway.wire.http2 import frames
from headway.wire.varint import varint

_GZIP = ("grpc-encoding", "gzip")
_EMPTY_INPUT = b"\x2a\0"  # two bytes, and a message of a hundred


def _packed(data: bytes) -> bytes:
    """A compressed message, framed."""
    packed = gzip.compress(data, 9)
    return b"\1" + len(packed).to_bytes(4, "big") + packed


def _sent(target: Target, tried: str, path: str, data: bytes, *more: tuple[str, str]) -> Outcome:
    """The same message again and again, on four connections."""
    told, ends_at, number = Told(), time.monotonic() + target.seconds, 1
    with peers(target, 4) as found:
        while time.monotonic() < ends_at and not all(each.is_cut for each in found):
            for peer in found:
                if peer.is_cut:
                    continue
                before = peer.answered
                peer.send(peer.head(number, path, *more) + b"".join(_data(number, data)))
                peer.wait(target.seconds, lambda: peer.answered > before)  # noqa: B023
            number += 2
        for peer in found:
            told.add(peer)
    # A stream's request is refused by a message of its own; the stream itself ends well.
    is_refused = told.total() > 0 and (told["OK"] == 0 or path == STREAM)
    return Outcome(f"{tried}: {told.total()} times", str(told), is_refused)


def _data(number: int, data: bytes) -> Iterable[bytes]:
    for at in range(0, len(data), frames.MAX_FRAME):
        is_last = at + frames.MAX_FRAME >= len(data)
        flags = frames.END_STREAM if is_last else 0
        yield frames.frame(frames.DATA, flags, number, data[at : at + frames.MAX_FRAME])


def empty_inputs(target: Target) -> Outcome:
    message = _EMPTY_INPUT * (MIB // 2 - 100)
    data = b"\0" + len(message).to_bytes(4, "big") + message
    return _sent(target, "half a million empty inputs", INFER, data)


def packed_inputs(target: Target) -> Outcome:
    data = _packed(_EMPTY_INPUT * (MIB // 2 - 100))
    return _sent(target, f"half a million inputs in {len(data):,} bytes", INFER, data, _GZIP)


def packed_zeros(target: Target) -> Outcome:
    data = _packed(bytes(64 * MIB))
    return _sent(target, f"64 MiB in {len(data):,} bytes", INFER, data, _GZIP)


def packed_stream(target: Target) -> Outcome:
    data = _packed(_EMPTY_INPUT * (MIB // 2 - 100))
    return _sent(target, "half a million inputs, in a stream", STREAM, data, _GZIP)


def typed_numbers(target: Target) -> Outcome:
    """A million numbers of a byte, of which eight are made."""
    numbers = bytes(MIB - 1000)
    contents = b"\x1a" + varint(len(numbers)) + numbers  # int64_contents
    tensor = b"\x0a\x01x\x2a" + varint(len(contents)) + contents
    message = b"\x0a\x05shout\x2a" + varint(len(tensor)) + tensor
    data = b"\0" + len(message).to_bytes(4, "big") + message
    return _sent(target, "a million typed numbers", INFER, data)


def large_calls(target: Target) -> Outcome:
    """Eight calls, each but for the last byte of its message: they would fill the room."""
    told, data = Told(), b"\0" + (MIB - 100).to_bytes(4, "big") + bytes(MIB - 200)
    with peers(target, 8) as found:
        for peer in found:
            peer.send(peer.head(1, INFER) + b"".join(list(_data(1, data))[:-1]))
        for peer in found:
            peer.wait(target.seconds + 1, lambda peer=peer: peer.answered > 0)  # type: ignore[misc]
            told.add(peer)
    return Outcome("8 calls of 1 MB but for the end", str(told), told["OK"] == 0)


ATTACKS: dict[str, Attack] = {
    "empty inputs": empty_inputs,
    "packed inputs": packed_inputs,
    "packed zeros": packed_zeros,
    "packed inputs in a stream": packed_stream,
    "typed numbers": typed_numbers,
    "large calls": large_calls,
}
