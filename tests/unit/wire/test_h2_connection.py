"""One connection, held against the `h2` package: calls, windows, resets, floods, ends."""

import asyncio
import gzip
from typing import Any

import h2.events
import h2.settings
import hpack
import pytest
from h2_peer import CONFIG, GREETING, LIMIT_BYTES, Link, head, message, raw_call

from headway.wire.http2 import connection as ours
from headway.wire.http2 import frames
from headway.wire.http2.budget import CAPACITY
from headway.wire.http2.call_state import WINDOW
from headway.wire.http2.frames import Code


@pytest.fixture(autouse=True)
def _nothing_is_logged(caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest) -> Any:
    yield
    if "mistake" not in request.node.name:
        assert not caplog.records


def greeted(**more: Any) -> Link:
    link = Link(**more)
    link.greet()
    return link


# ---- calls


async def test_a_call_is_answered() -> None:
    link = greeted()
    number = link.ask(b"hello")
    await link.turn()
    assert link.answer(number) == ("0", [b"hello"])
    assert len(link.of(h2.events.StreamEnded, number)) == 1
    assert len(link.service.is_done) == 1


async def test_many_calls_at_once() -> None:
    link = greeted()
    numbers = [link.ask(b"%d" % n) for n in range(100)]
    await link.turn()
    assert [link.answer(each) for each in numbers] == [("0", [b"%d" % n]) for n in range(100)]


async def test_a_stream_answers_each_message_and_the_end() -> None:
    link = greeted()
    number = link.ask(None, "/test/stream")
    link.client.send_data(number, message(b"a") + message(b"b") + message(b"c")[:3])
    link.send()
    await link.turn()
    assert link.data(number) == message(b"a") + message(b"b")
    link.client.send_data(number, message(b"c")[3:], end_stream=True)
    link.send()
    await link.turn()
    assert link.answer(number) == ("0", [b"a", b"b", b"c"])


async def test_trailers_of_the_client_end_its_request() -> None:
    link = greeted()
    number = link.ask(None)
    link.client.send_data(number, message(b"a"))
    link.client.send_headers(number, [("x", "y")], end_stream=True)
    link.send()
    await link.turn()
    assert link.answer(number) == ("0", [b"a"])


@pytest.mark.parametrize(
    ("path", "data", "more", "status", "said"),
    [
        ("/test/none", message(b"a"), {}, "12", "Method not found!"),
        ("/test/echo", b"", {}, "13", "the call takes exactly one message"),
        ("/test/echo", message(b"a") * 2, {}, "13", "the call takes exactly one message"),
        ("/test/echo", b"\x07\0\0\0\0", {}, "13", "a message begins with 0 or 1, not 7"),
        ("/test/stream", b"\0\0\0\0\x02a", {}, "13", "the last message has been cut off"),
        ("/test/echo", message(bytes(LIMIT_BYTES + 1)), {}, "8", "larger than max"),
        ("/test/echo", message(b"a", 1), {}, "13", "on a call without a compression"),
        ("/test/echo", message(b"a", 1), {"grpc_encoding": "gzip"}, "3", "not valid gzip"),
        ("/test/echo", message(b"a"), {"grpc_encoding": "br"}, "12", "'br' is not known"),
        ("/test/fail", message(b"a"), {}, "2", "internal error"),
    ],
)
async def test_a_mistake_is_told(
    path: str, data: bytes, more: dict[str, str], status: str, said: str
) -> None:
    link = greeted()
    number = link.ask(None, path, **more)
    while data:
        room = min(link.client.local_flow_control_window(number), 2**14)
        link.client.send_data(number, data[:room])
        data = data[room:]
        link.send()
        await link.turn(1)
        if link.of(h2.events.StreamEnded, number):
            break
    else:
        link.client.end_stream(number)
        link.send()
    await link.turn()
    assert link.answer(number)[0] == status
    [ended] = [
        dict(each.headers)
        for kind in (h2.events.ResponseReceived, h2.events.TrailersReceived)
        for each in link.of(kind, number)
        if "grpc-status" in dict(each.headers)
    ]
    assert said in ended["grpc-message"]
    assert link.goodbye is None


async def test_a_packed_message_is_unpacked() -> None:
    link = greeted()
    number = link.ask(None, grpc_encoding="gzip")
    packed = gzip.compress(b"a" * 1000)
    link.client.send_data(number, message(packed, 1), end_stream=True)
    link.send()
    await link.turn()
    assert link.answer(number) == ("0", [b"a" * 1000])


async def test_a_bomb_is_refused() -> None:
    link = greeted()
    number = link.ask(None, grpc_encoding="gzip")
    packed = gzip.compress(bytes(2 * LIMIT_BYTES))
    link.client.send_data(number, message(packed, 1), end_stream=True)
    link.send()
    await link.turn()
    assert link.answer(number)[0] == "3"


async def test_other_content_is_not_ours() -> None:
    link = greeted()
    number = link.ask(b"{}", content_type="application/json")
    await link.turn()
    [answer] = link.of(h2.events.ResponseReceived, number)
    assert dict(answer.headers) == {":status": "415"}


# ---- time


async def test_the_deadline_ends_a_call_and_its_work() -> None:
    link = greeted()
    number = link.ask(b"", "/test/wait", grpc_timeout="1S")
    await asyncio.sleep(0.9)
    await link.turn()
    assert not link.of(h2.events.StreamEnded, number)
    await asyncio.sleep(0.2)
    await link.turn()
    assert link.answer(number) == ("4", [])
    assert link.service.cancelled == 1


async def test_a_request_must_arrive_in_time() -> None:
    link = greeted()
    late, idle = link.ask(None), link.ask(None, "/test/stream")
    for _ in range(14):
        await asyncio.sleep(5)
        await link.turn()
    assert link.answer(late)[0] == "4"
    assert not link.of(h2.events.StreamEnded, idle)  # a stream may wait as long as it likes


@pytest.mark.parametrize("sent", [b"", frames.PREFACE[:7], frames.PREFACE])
async def test_who_does_not_greet_is_left(sent: bytes) -> None:
    link = Link()
    link.feed(sent)
    await asyncio.sleep(16)
    assert link.transport.is_closed


async def test_who_is_silent_is_asked_and_then_left() -> None:
    link = greeted()
    await asyncio.sleep(81)
    await link.turn()  # h2 answers
    assert link.of(h2.events.PingReceived)
    await asyncio.sleep(70)
    assert not link.transport.is_closed
    await asyncio.sleep(40)
    assert link.transport.is_aborted


async def test_who_does_not_read_is_left() -> None:
    link = greeted()
    link.transport.unsent_bytes = 1000
    link.server.pause_writing()
    await asyncio.sleep(50)
    link.transport.unsent_bytes = 900
    await asyncio.sleep(50)
    assert not link.transport.is_closed
    await asyncio.sleep(20)
    assert link.transport.is_aborted


async def test_who_opens_no_window_is_reset() -> None:
    link = greeted()
    link.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 10})
    link.send()
    await link.turn()
    number = link.ask(b"x" * 100)
    await link.turn()
    await asyncio.sleep(70)
    await link.turn()
    [reset] = link.of(h2.events.StreamReset, number)
    assert reset.error_code == Code.CANCEL


# ---- windows


@pytest.mark.parametrize("window", [1, 7, 1000])
async def test_a_small_window_only_slows(window: int) -> None:
    link = greeted()
    link.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
    link.send()
    await link.turn()
    number = link.ask(b"0123456789" * 20)
    for _ in range(300):
        await link.turn(1)
        got = len(link.data(number))
        assert got <= 205
        if link.of(h2.events.StreamEnded, number):
            break
        link.client.increment_flow_control_window(window, number)
        link.send()
    assert link.answer(number) == ("0", [b"0123456789" * 20])


async def test_the_connections_window_holds_all_and_they_share_it() -> None:
    link = greeted()
    numbers = [link.ask(b"x" * 40_000) for _ in range(3)]
    await link.turn()
    assert sum(len(link.data(each)) for each in numbers) == frames.FIRST_WINDOW
    for _ in range(20):
        link.client.increment_flow_control_window(10_000)
        link.send()
        await link.turn(1)
    assert [link.answer(each) for each in numbers] == [("0", [b"x" * 40_000])] * 3


async def test_a_window_may_shrink_below_nothing() -> None:
    link = greeted()
    number = link.ask(b"x" * 80_000)
    await link.turn()
    assert len(link.data(number)) == frames.FIRST_WINDOW
    link.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    link.send()
    await link.turn()
    link.client.increment_flow_control_window(100_000)
    link.send()
    await link.turn()
    assert len(link.data(number)) == frames.FIRST_WINDOW
    link.client.increment_flow_control_window(100_000, number)
    link.send()
    await link.turn()
    assert link.answer(number) == ("0", [b"x" * 80_000])


async def test_a_writer_waits_for_a_reader() -> None:
    link = greeted()
    number = link.ask(b"1000", "/test/many")
    await link.turn()
    assert len(link.data(number)) == frames.FIRST_WINDOW
    [call] = link.server._calls.values()
    assert call.outbox is not None
    assert len(call.outbox) < 2000  # the next message is not made before
    while not link.of(h2.events.StreamEnded, number):
        link.client.increment_flow_control_window(30_000)
        link.client.increment_flow_control_window(30_000, number)
        link.send()
        await link.turn(1)
    status, found = link.answer(number)
    assert (status, len(found)) == ("0", 1000)


async def test_what_nobody_reads_is_not_given_back() -> None:
    link = greeted()
    number = link.ask(None, "/test/count")
    await link.turn()
    sent = 0
    while link.client.local_flow_control_window(number) >= 16_000:
        link.client.send_data(number, message(bytes(15_995)))
        sent += 1
        link.send()
        await link.turn(1)
    assert sent == WINDOW // 16_000
    link.service.gate.set()
    await link.turn()
    assert link.client.local_flow_control_window(number) > WINDOW // 2
    link.client.end_stream(number)
    link.send()
    await link.turn()
    assert link.answer(number) == ("0", [b"%d" % sent])


async def test_more_than_the_window_is_a_mistake_of_its_stream() -> None:
    link = Link()
    encoder = hpack.Encoder()
    block = encoder.encode(head("/test/count"))
    link.feed(GREETING, frames.headers(1, block, is_last=False))
    part = frames.frame(frames.DATA, 0, 1, message(bytes(2**14 - 5)))
    link.feed(*[part] * (WINDOW // 2**14 + 1))
    assert frames.rst_stream(1, Code.FLOW_CONTROL_ERROR) in link.transport.written


# ---- resets and ends


@pytest.mark.parametrize("path", ["/test/wait", "/test/stream"])
async def test_a_reset_cancels_the_work(path: str) -> None:
    link = greeted()
    number = link.ask(b"" if path == "/test/wait" else None, path)
    await link.turn()
    link.client.reset_stream(number, Code.CANCEL)
    link.send()
    await link.turn()
    assert link.service.cancelled == 1
    assert all(task.done() for task in link.owner.tasks)
    after = link.ask(b"after")
    await link.turn()
    assert link.answer(after) == ("0", [b"after"])


async def test_a_lost_connection_cancels_everything() -> None:
    link = greeted()
    for path in ("/test/wait", "/test/stream"):
        link.ask(b"" if path == "/test/wait" else None, path)
    await link.turn()
    link.lose()
    await asyncio.sleep(0.1)
    assert link.service.cancelled == 2
    assert link.owner.is_closed
    assert all(task.done() for task in link.owner.tasks)


async def test_finishing_answers_what_has_begun_and_sees_nothing_new() -> None:
    link = greeted()
    begun = link.ask(b"1", "/test/wait")
    await link.turn()
    link.server.finish_calls()
    late = raw_call(begun + 2, b"late", hpack.Encoder())
    link.feed(late)
    assert not link.transport.is_closed
    link.service.gate.set()
    await asyncio.sleep(0.1)
    found = list(frames.FrameReader().feed(bytes(link.transport.written)))
    goodbye = frames.goaway(begun, Code.NO_ERROR, "the server stops")
    assert [each[0] for each in found if each[2] in (0, begun)] == [
        *(frames.GOAWAY, frames.HEADERS, frames.DATA, frames.HEADERS),
    ]
    assert link.transport.written.startswith(goodbye)
    assert not [each for each in found if each[2] > begun]
    assert link.transport.is_closed
    assert not link.transport.is_aborted


async def test_cutting_tells_who_waits() -> None:
    link = greeted()
    number = link.ask(b"1", "/test/wait")
    await link.turn()
    link.server.cut()
    link.take()
    await asyncio.sleep(0.1)
    assert link.answer(number)[0] == "14"
    assert link.service.cancelled == 1
    assert link.transport.is_closed


async def test_no_room_for_another_connection() -> None:
    link = Link(has_room=False)
    assert frames.goaway(0, Code.ENHANCE_YOUR_CALM, "too many connections") in bytes(
        link.transport.written
    )
    assert link.transport.is_closed


async def test_no_room_for_another_call() -> None:
    link = greeted()
    encoder = hpack.Encoder()
    for n in range(ours.MAX_CALLS + 1):
        link.feed(raw_call(2 * n + 1, b"", encoder, "/test/wait"))
    number = 2 * ours.MAX_CALLS + 1
    assert link.transport.written.endswith(frames.rst_stream(number, Code.REFUSED_STREAM))
    link.lose()
    await asyncio.sleep(0.1)


# ---- rules


def first(path: str = "/test/wait", *, is_last: bool = False) -> bytes:
    return frames.headers(1, hpack.Encoder().encode(head(path)), is_last=is_last)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", Code.PROTOCOL_ERROR),
        (frames.PREFACE + frames.frame(frames.PING, 0, 0, bytes(8)), Code.PROTOCOL_ERROR),
        (GREETING + frames.frame(frames.DATA, 0, 0, b"x"), Code.PROTOCOL_ERROR),
        (GREETING + frames.frame(frames.DATA, 0, 5, b"x"), Code.PROTOCOL_ERROR),
        (GREETING + frames.frame(frames.HEADERS, 4, 2, b""), Code.PROTOCOL_ERROR),
        (GREETING + frames.frame(frames.HEADERS, 4, 0, b""), Code.PROTOCOL_ERROR),
        (GREETING + frames.frame(frames.HEADERS, 4, 1, b"\xff\xff"), Code.COMPRESSION_ERROR),
        (GREETING + frames.frame(frames.HEADERS, 12, 1, b"\x05x"), Code.PROTOCOL_ERROR),
        (GREETING + frames.frame(frames.HEADERS, 0, 1, b"") + first(), Code.PROTOCOL_ERROR),
        (
            GREETING
            + frames.frame(frames.HEADERS, 0, 1, b"")
            + frames.frame(frames.CONTINUATION, 4, 3, b""),
            Code.PROTOCOL_ERROR,
        ),
        (GREETING + frames.frame(frames.CONTINUATION, 4, 1, b""), Code.PROTOCOL_ERROR),
        (GREETING + frames.frame(frames.PRIORITY, 0, 1, b""), Code.FRAME_SIZE_ERROR),
        (GREETING + frames.rst_stream(1, Code.CANCEL), Code.PROTOCOL_ERROR),
        (
            GREETING + first() + frames.frame(frames.RST_STREAM, 0, 1, b""),
            Code.FRAME_SIZE_ERROR,
        ),
        (GREETING + frames.frame(frames.SETTINGS, 0, 1, b""), Code.PROTOCOL_ERROR),
        (GREETING + frames.frame(frames.SETTINGS, 0, 0, b"x"), Code.FRAME_SIZE_ERROR),
        (GREETING + frames.frame(frames.SETTINGS, 1, 0, bytes(6)), Code.FRAME_SIZE_ERROR),
        (
            GREETING + frames.settings({frames.INITIAL_WINDOW_SIZE: 2**31}),
            Code.FLOW_CONTROL_ERROR,
        ),
        (GREETING + frames.frame(frames.PUSH_PROMISE, 4, 1, bytes(4)), Code.PROTOCOL_ERROR),
        (GREETING + frames.frame(frames.PING, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
        (GREETING + frames.frame(frames.PING, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
        (GREETING + frames.frame(frames.GOAWAY, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
        (GREETING + frames.frame(frames.GOAWAY, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
        (GREETING + frames.window_update(0, 0), Code.PROTOCOL_ERROR),
        (GREETING + frames.window_update(1, 1), Code.PROTOCOL_ERROR),
        (GREETING + frames.window_update(0, 2**31 - 1), Code.FLOW_CONTROL_ERROR),
        (GREETING + first() + frames.window_update(1, 2**31 - 1), Code.FLOW_CONTROL_ERROR),
        (GREETING + frames.head(frames.DATA, 0, 1, 2**14 + 1), Code.FRAME_SIZE_ERROR),
    ],
)
async def test_breaking_a_rule_of_the_connection(sent: bytes, code: Code) -> None:
    link = Link()
    link.feed(sent)
    link.client.initiate_connection()
    link.take()
    assert link.goodbye == code
    assert link.transport.is_closed
    link.feed(GREETING)  # and nothing more is heard
    link.lose()
    await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (first() + frames.window_update(1, 0), Code.PROTOCOL_ERROR),
        (first() + first(), Code.PROTOCOL_ERROR),
        (first("/test/stream", is_last=True) + frames.frame(0, 0, 1, b"x"), Code.STREAM_CLOSED),
        (frames.headers(1, hpack.Encoder().encode([("a", "b")]), is_last=True), 1),
    ],
)
async def test_breaking_a_rule_of_a_stream(sent: bytes, code: int) -> None:
    link = Link()
    link.feed(GREETING, sent)
    assert frames.rst_stream(1, Code(code)) in link.transport.written
    assert not link.transport.is_closed
    link.lose()
    await asyncio.sleep(0.1)


async def test_what_we_do_not_know_is_ignored_and_so_is_what_came_too_late() -> None:
    link = Link()
    link.feed(GREETING, frames.frame(0x77, 0xFF, 3, b"whatever"))
    link.feed(frames.frame(frames.PRIORITY, 0, 3, bytes(5)))
    link.feed(frames.settings({0x99: 5}), frames.goaway(0, Code.NO_ERROR))
    encoder = hpack.Encoder()
    link.feed(raw_call(1, b"a", encoder))
    await asyncio.sleep(0.1)
    link.feed(frames.frame(frames.DATA, 1, 1, b"late"), frames.window_update(1, 5))
    link.feed(frames.rst_stream(1, Code.CANCEL), raw_call(3, b"b", encoder))
    await asyncio.sleep(0.1)
    link.client.initiate_connection()
    assert link.goodbye is None
    assert bytes(link.transport.written).count(message(b"a")) == 1
    assert bytes(link.transport.written).count(message(b"b")) == 1


# ---- floods


@pytest.mark.parametrize(
    "one",
    [
        lambda n: frames.frame(frames.PING, 0, 0, bytes(8)),
        lambda n: frames.settings({}),
        lambda n: frames.frame(frames.DATA, 0, 1, b""),
        lambda n: frames.frame(frames.DATA, frames.PADDED, 1, b"\x03abc"),
        lambda n: frames.frame(frames.PRIORITY, 0, 1, bytes(5)),
        lambda n: frames.window_update(1, 1),
        lambda n: frames.frame(0x99, 0, 0, b""),
        lambda n: (
            frames.headers(2 * n + 3, hpack.Encoder().encode(head()), is_last=False)
            + frames.rst_stream(2 * n + 3, Code.CANCEL)
        ),
        lambda n: frames.headers(2 * n + 3, b"", is_last=False),  # reset by us
    ],
    ids=["ping", "settings", "empty", "padding", "priority", "window", "odd", "reset", "broken"],
)
async def test_a_flood_is_cut_off(one: Any) -> None:
    link = Link()
    link.feed(GREETING, first("/test/stream"))
    for n in range(CAPACITY + 10):
        if link.transport.is_closed:
            break
        link.feed(one(n))
    assert link.transport.is_closed
    assert int(Code.ENHANCE_YOUR_CALM).to_bytes(4, "big") in link.transport.written[-60:]
    link.lose()
    await asyncio.sleep(0.1)


async def test_a_head_without_an_end_is_cut_off() -> None:
    link = Link()
    link.feed(GREETING, frames.frame(frames.HEADERS, 0, 1, b""))
    for _ in range(CONFIG.max_header_bytes // 1000 + 1):
        link.feed(frames.frame(frames.CONTINUATION, 0, 1, bytes(1000)))
    assert b"a head without an end" in link.transport.written
    assert link.transport.is_closed


async def test_patience_comes_back_with_time_and_with_work() -> None:
    link = Link()
    link.feed(GREETING)
    ping = frames.frame(frames.PING, 0, 0, bytes(8))
    for _ in range(3):
        link.feed(ping * (CAPACITY - 10))
        await asyncio.sleep(4.1)
    encoder = hpack.Encoder()
    for n in range(CAPACITY):
        link.feed(ping * 4, raw_call(2 * n + 1, b"", encoder))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not link.transport.is_closed
