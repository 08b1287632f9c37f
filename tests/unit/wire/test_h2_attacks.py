"""What a hostile peer may cost: attacks on one connection, in frames, bytes and refusals."""

import asyncio
import gc
from collections.abc import Callable

import h2.events
import h2.settings
import hpack
import pytest
from h2_peer import CONFIG, GREETING, Link, head, message, raw_call
from msgspec.structs import replace

from headway.wire import read_turns
from headway.wire.body_room import UNCOUNTED_BYTES
from headway.wire.http2 import connection as ours
from headway.wire.http2 import frames
from headway.wire.http2.budget import ADDRESS_CAPACITY, CAPACITY
from headway.wire.http2.call_state import CALL_BYTES
from headway.wire.http2.frames import Code
from headway.wire.http2.lifetime import UNREAD_CALLS

CALM = int(Code.ENHANCE_YOUR_CALM).to_bytes(4, "big")


def opening(number: int, path: str = "/test/stream", **more: str) -> bytes:
    block = hpack.Encoder().encode(head(path, **more))
    return frames.headers(number, block, is_last=False)


async def ended(link: Link) -> None:
    link.lose()
    await asyncio.sleep(0.1)
    assert link.owner.room.held_bytes == 0
    assert link.server._account.held_bytes == 0
    assert not link.server._calls


# ---- before the key


async def test_without_a_key_a_call_ends_at_its_head() -> None:
    link = Link()
    link.owner.keys = {"secret"}
    link.feed(GREETING, opening(1, "/test/echo"))
    written = bytes(link.transport.written)
    assert b"\x0bgrpc-status\x0216" in written  # UNAUTHENTICATED
    assert frames.rst_stream(1, Code.NO_ERROR) in written  # the rest is not wanted
    assert not link.server._calls
    link.feed(opening(3, "/test/echo", x_api_key="secret"))
    assert len(link.server._calls) == 1
    await ended(link)


async def test_calls_without_a_key_use_the_budget_up_and_earn_nothing() -> None:
    link = Link()
    link.owner.keys = {"secret"}
    link.feed(GREETING)
    tried = 0
    while not link.transport.is_closed:
        link.feed(opening(2 * tried + 1))
        tried += 1
        assert tried <= CAPACITY
    assert CALM in link.transport.written[-60:]
    await ended(link)


async def test_an_open_method_takes_little_and_few_at_a_time() -> None:
    link = Link(replace(CONFIG, max_body_bytes=2**26))
    link.owner.keys = {"secret"}
    link.feed(GREETING, opening(1, "/test/open"))
    link.feed(frames.frame(frames.DATA, 0, 1, b"\0" + (2**14 + 1).to_bytes(4, "big")))
    assert b"larger than max (16385 vs. 16384)" in link.transport.written
    for n in range(ours.MAX_OPEN_CALLS + 1):
        link.feed(opening(2 * n + 3, "/test/open"))
    number = 2 * ours.MAX_OPEN_CALLS + 3
    assert frames.rst_stream(number, Code.REFUSED_STREAM) in link.transport.written
    assert len(link.server._calls) == ours.MAX_OPEN_CALLS
    link.feed(frames.rst_stream(3, Code.CANCEL), opening(number + 2, "/test/open"))
    assert len(link.server._calls) == ours.MAX_OPEN_CALLS
    await ended(link)


async def test_an_open_call_that_sends_nothing_has_a_heads_time() -> None:
    link = Link()
    link.feed(GREETING, opening(1, "/test/open"))
    await asyncio.sleep(CONFIG.header_timeout_s + 6)
    assert not link.server._calls
    await ended(link)


# ---- bytes


async def test_every_byte_of_every_stream_is_counted() -> None:
    """32 KiB of each of 100 streams were nobody's."""
    link = Link()
    link.feed(GREETING)
    part = b"\0" + (50_000).to_bytes(4, "big") + bytes(16_000)
    for n in range(100):
        link.feed(opening(2 * n + 1, "/test/echo"), frames.frame(frames.DATA, 0, 2 * n + 1, part))
    expected = 100 * (len(part) + CALL_BYTES)
    assert link.server._account.held_bytes == expected
    assert link.owner.room.held_bytes == expected - UNCOUNTED_BYTES
    await ended(link)


async def test_streams_without_a_message_are_counted_too() -> None:
    link = Link()
    link.feed(GREETING)
    for n in range(500):
        link.feed(opening(2 * n + 1, "/test/stream"))
    assert link.server._account.held_bytes == 500 * CALL_BYTES
    await ended(link)


async def test_large_heads_are_counted_as_long_as_their_calls_live() -> None:
    link = Link()
    link.feed(GREETING)
    for n in range(10):
        link.feed(raw_call(2 * n + 1, b"", Fields(x="v" * 3000), "/test/wait"))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert link.server._account.held_bytes > 10 * 3000
    await ended(link)


class Fields:
    """An encoder that adds headers."""

    def __init__(self, **more: str) -> None:
        self._more = more

    def encode(self, fields: list[tuple[str, str]]) -> bytes:
        return hpack.Encoder().encode([*fields, *self._more.items()])


async def test_what_does_not_fit_is_refused_and_nothing_stays() -> None:
    link = Link()
    link.owner.room.change(replace(CONFIG, max_held_bytes=10_000, max_body_bytes=10_000))
    link.feed(GREETING)
    part = b"\0" + (90_000).to_bytes(4, "big") + bytes(16_000)
    for n in range(4):
        link.feed(opening(2 * n + 1, "/test/echo"), frames.frame(frames.DATA, 0, 2 * n + 1, part))
    assert b"are allowed" in link.transport.written
    assert link.owner.room.held_bytes <= 10_000
    await ended(link)


async def test_a_partial_upload_is_freed_when_its_peer_hangs_up() -> None:
    """Without a collection of garbage: a cycle kept nine times the limit."""
    link = Link()
    link.feed(GREETING, opening(1, "/test/echo"), opening(3, "/test/stream"))
    part = b"\0" + (90_000).to_bytes(4, "big") + bytes(16_000)
    for number in (1, 3):
        link.feed(frames.frame(frames.DATA, 0, number, part))
    await asyncio.sleep(0)
    inboxes = [call._inbox for call in link.server._calls.values()]
    gc.collect()
    gc.disable()
    try:
        await ended(link)
        assert [len(each) for each in inboxes if each is not None] == [0, 0]
    finally:
        gc.enable()


async def test_remembered_heads_take_little() -> None:
    link = Link(replace(CONFIG, max_header_bytes=32 * 2**10))
    link.feed(GREETING)
    for n in range(200):
        fields = [*head("/test/none"), ("x", f"{n}" * 2000)]
        block = b"".join(
            b"\0"
            + bytes([len(name)])
            + name.encode()
            + hpack.hpack.encode_integer(len(value), 7)
            + value.encode()
            for name, value in fields
        )
        link.feed(frames.headers(2 * n + 1, block, is_last=True))
        await asyncio.sleep(1)  # it is not in a hurry
    known = link.server._heads._known
    assert sum(len(block) + each.size_bytes for block, each in known.items()) <= 16 * 2**10
    await ended(link)


# ---- reading slowly


def asked_for(link: Link, count: int, size: int) -> list[int]:
    return [link.ask(b"x" * size) for _ in range(count)]


async def test_answers_that_nobody_reads_wait_in_the_room_and_not_in_the_socket() -> None:
    """Internal data buffering: the windows are open, the peer does not read."""
    link = Link()
    link.greet()
    link.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 2**30})
    link.client.increment_flow_control_window(2**30)
    link.send()
    link.server.pause_writing()
    asked_for(link, 20, 30_000)
    before = len(link.transport.written)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(link.transport.written) - before < 20 * 100  # heads at most
    assert link.owner.room.held_bytes > 19 * 30_000
    link.server.resume_writing()
    await link.turn()
    assert len(link.of(h2.events.StreamEnded)) == 20
    assert link.owner.room.held_bytes == 0
    await ended(link)


async def test_answers_beyond_the_room_are_dropped() -> None:
    link = Link()
    link.greet()
    link.owner.room.change(replace(CONFIG, max_held_bytes=100_000, max_body_bytes=100_000))
    link.server.pause_writing()
    asked_for(link, 20, 30_000)
    for _ in range(5):
        await asyncio.sleep(0)
    assert link.owner.room.held_bytes <= 100_000
    assert CALM in link.transport.written
    await ended(link)


async def test_a_byte_at_a_time_is_not_reading() -> None:
    """Data dribble: a window of one byte now and then kept an answer for ever."""
    link = Link()
    link.greet()
    link.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    link.send()
    number = link.ask(b"x" * 10_000)
    for _ in range(8):
        await link.turn()
        if link.of(h2.events.StreamReset, number):
            break
        link.client.increment_flow_control_window(1, number)
        link.send()
        await asyncio.sleep(20)
    else:
        raise AssertionError("it is still waited for")
    assert not link.server._calls
    await ended(link)


# ---- answers that are not read


async def unread(link: Link, calls: int, data: bytes) -> None:
    """The windows are open, and the socket is full."""
    link.greet()
    link.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 2**30})
    link.client.increment_flow_control_window(2**30)
    link.send()
    link.server.pause_writing()
    for _ in range(calls):
        link.ask(data)
    await link.turn()


@pytest.mark.parametrize(("calls", "size"), [(UNREAD_CALLS, 10), (12, 99_000)])
async def test_who_reads_nothing_is_not_heard_until_it_does(calls: int, size: int) -> None:
    """Thousands of answers were computed that nobody took."""
    link = Link(replace(CONFIG, max_held_bytes=2**26))
    await unread(link, calls, b"x" * size)
    assert link.transport.is_paused
    answered = len(link.transport.written)
    link.server.resume_writing()
    assert not link.transport.is_paused
    assert len(link.transport.written) > answered + calls * size
    await ended(link)


async def test_a_few_unread_answers_stop_nobody() -> None:
    link = Link()
    await unread(link, UNREAD_CALLS - 1, b"x" * 10)
    assert not link.transport.pauses
    await ended(link)


async def test_windows_that_are_closed_stop_nobody() -> None:
    """Else nobody could open them."""
    link = Link()
    link.greet()
    link.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    link.send()
    for _ in range(2 * UNREAD_CALLS):
        link.ask(b"x")
    await link.turn()
    assert len(link.server._blocked) == 2 * UNREAD_CALLS
    assert not link.transport.is_paused
    await ended(link)


async def test_who_is_not_heard_is_not_asked_whether_it_lives() -> None:
    """It reads slowly: its answer to a ping would not be heard, and it would be cut off."""
    link = Link(replace(CONFIG, keep_alive_s=1, write_timeout_s=600))
    await unread(link, UNREAD_CALLS, b"x")
    await asyncio.sleep(60)
    assert not link.transport.is_aborted
    assert b"headway?" not in link.transport.written
    await ended(link)


# ---- turns


async def test_many_frames_are_handled_in_turns_and_in_order() -> None:
    link = Link()
    encoder = hpack.Encoder()
    link.feed(GREETING + b"".join(raw_call(2 * n + 1, b"%d" % n, encoder) for n in range(100)))
    assert link.transport.is_paused
    assert link.server._highest_id <= ours.AT_ONCE
    link.feed(raw_call(201, b"100", encoder))  # what was on its way
    for _ in range(100):
        await asyncio.sleep(0)
    assert not link.transport.is_paused
    found = frames.FrameReader().feed(bytes(link.transport.written))
    data = [payload for kind, _, _, payload in found if kind == frames.DATA]
    assert data == [message(b"%d" % n) for n in range(101)]
    await ended(link)


@pytest.mark.parametrize("end", [b"", frames.frame(frames.PING, 0, 1, bytes(8))])
async def test_a_connection_that_ends_between_two_turns_is_over(end: bytes) -> None:
    link = Link()
    ping = frames.frame(frames.PING, 0, 0, bytes(8))
    link.feed(GREETING + ping * 100 + end + ping * 200)
    if end:
        for _ in range(20):
            await asyncio.sleep(0)
        assert link.transport.is_closed
    await ended(link)


async def test_frames_of_many_connections_share_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each had two milliseconds in every turn of the loop, so sixty had a hundred and twenty."""
    monkeypatch.setattr(read_turns, "SLICE_S", -1.0)
    turns = read_turns.ReadTurns()
    links = [Link() for _ in range(20)]
    ping = frames.frame(frames.PING, 0, 0, bytes(8))
    for link in links:
        link.owner.turns = turns
        link.feed(GREETING + ping * 499)

    def handled() -> int:
        return sum(bytes(each.transport.written).count(ping[:4] + b"\x01") for each in links)

    begun = handled()
    assert begun <= len(links) * ours.AT_ONCE
    for turn in range(1, 30):
        await asyncio.sleep(0)
        assert handled() <= begun + turn * ours.AT_ONCE
    for _ in range(20 * 10):
        await asyncio.sleep(0)
    assert handled() == 20 * 499
    for link in links:
        await ended(link)


async def test_heads_of_answers_that_wait_are_one_write() -> None:
    link = Link()
    link.feed(frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: 0}))
    for number in range(1, 9, 2):
        data = frames.frame(frames.DATA, frames.END_STREAM, number, b"\0\0\0\0\1x")
        link.feed(opening(number, "/test/echo") + data)
    writes: list[bytes] = []
    link.transport.write = writes.append  # type: ignore[method-assign, assignment]
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(writes) == 1
    await ended(link)


async def test_after_full_reads_one_connection_reads_on_in_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight had a quarter of a megabyte each in every turn."""
    monkeypatch.setattr(read_turns, "SLICE_S", -1.0)
    turns = read_turns.ReadTurns()
    links = [Link() for _ in range(20)]
    parts = [frames.frame(frames.DATA, 0, 1, bytes(2**14)) for _ in range(5)]
    for link in links:
        link.owner.turns = turns
        link.feed(GREETING + opening(1) + frames.frame(frames.DATA, 0, 1, b"\0\0\1\0\0"))
        buffer = link.server.get_buffer(-1)
        buffer[:] = b"".join(parts)[: len(buffer)]
        link.server.buffer_updated(len(buffer))
    assert sum(not link.transport.is_paused for link in links) <= 1
    for turn in range(1, 30):
        await asyncio.sleep(0)
        assert sum(not link.transport.is_paused for link in links) <= turn + 1
    for _ in range(30):
        await asyncio.sleep(0)
    assert not any(link.transport.is_paused for link in links)
    for link in links:
        await ended(link)


async def test_a_read_of_a_few_calls_does_not_stop_the_reading() -> None:
    link = Link()
    encoder = hpack.Encoder()
    link.feed(
        GREETING + b"".join(raw_call(2 * n + 1, b"", encoder, "/test/open") for n in range(8))
    )
    assert link.server._highest_id == 15
    assert not link.transport.pauses


async def test_a_server_that_stops_cancels_lost_calls_at_once() -> None:
    """It waits for their tasks: a task that was to be cancelled later was not waited for."""
    link = Link()
    link.feed(GREETING)
    for n in range(50):
        link.feed(opening(2 * n + 1, "/test/stream"))
    await asyncio.sleep(0)
    link.server.finish_calls()
    link.lose()
    await asyncio.sleep(0)
    assert link.service.cancelled == 50


# ---- work for nothing


def settings_storm(n: int) -> bytes:
    return frames.settings({frames.INITIAL_WINDOW_SIZE: 1000 + n % 2})


def small_data(n: int) -> bytes:
    return frames.frame(frames.DATA, 0, 1, b"\0\0\0\x10\0"[n : n + 1] or b"x")


def half_closed(n: int) -> bytes:
    """MadeYouReset: the server is made to reset a call that it has begun."""
    number = 2001 + 2 * n
    call = raw_call(number, b"", hpack.Encoder(), "/test/wait")
    return call + frames.frame(frames.DATA, 0, number, b"x")


def zero_window(n: int) -> bytes:
    number = 2001 + 2 * n
    call = raw_call(number, b"", hpack.Encoder(), "/test/wait")
    return call + frames.window_update(number, 0)


def no_name(n: int) -> bytes:
    """0-length headers: a name of nothing, with a value of nothing."""
    block = hpack.Encoder().encode(head("/test/wait")) + b"\x40\0\0"
    return frames.headers(2001 + 2 * n, block, is_last=False)


def many_fields(n: int) -> bytes:
    block = hpack.Encoder().encode(head("/test/none")) + bytes([0x90 + n % 8]) * 100
    return frames.headers(2001 + 2 * n, block, is_last=True)


FLOODS: dict[str, tuple[Callable[[int], bytes], int]] = {
    "settings with many streams": (settings_storm, 50),
    "data of a byte": (small_data, CAPACITY + 10),
    "made you reset: closed": (half_closed, CAPACITY // 4 + 2),
    "made you reset: window": (zero_window, CAPACITY // 4 + 2),
    "headers without a name": (no_name, CAPACITY // 4 + 2),
    "headers of many fields": (many_fields, CAPACITY // 30),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_costs_what_it_takes(name: str) -> None:
    one, most = FLOODS[name]
    link = Link()
    link.feed(GREETING)
    for n in range(900 if "many streams" in name else 1):
        link.feed(raw_call(2 * n + 1, b"", hpack.Encoder(), "/test/wait"))
        link.server._account.earn(8)  # as if others had been answered
    if name == "data of a byte":
        link.feed(opening(3))
        one = lambda n: frames.frame(frames.DATA, 0, 3, small_data(n)[9:])  # noqa: E731
    sent = 0
    while not link.transport.is_closed:
        assert sent < most
        link.feed(one(sent))
        sent += 1
        if link.transport.is_paused:  # what it began has its turn first
            await asyncio.sleep(0)
    assert CALM in link.transport.written[-60:]
    assert not link.server._calls
    await ended(link)


async def test_windows_that_open_for_nothing_cost_what_is_looked_at() -> None:
    link = Link()
    link.greet()
    link.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    link.send()
    await link.turn()
    numbers = [link.ask(b"x" * 10) for _ in range(900)]
    await link.turn(rounds=50)  # a few calls in each: they have no window
    assert len(link.server._blocked) == len(numbers)
    sent = 0
    while not link.transport.is_closed:
        assert sent < 50
        link.feed(frames.window_update(0, 1))
        sent += 1
    await ended(link)


async def test_many_connections_of_one_address_share_a_budget() -> None:
    ping = frames.frame(frames.PING, 0, 0, bytes(8))
    links = [Link()]
    links += [Link(budget=links[0].owner.budget) for _ in range(39)]
    sent = 0
    for link in links:
        link.feed(GREETING)
        while not link.transport.is_closed:
            link.feed(ping)
            sent += 1
    assert sent < ADDRESS_CAPACITY + 40 * 100


async def test_an_honest_connection_of_an_attackers_address_stays() -> None:
    link = Link()
    link.greet()
    link.owner.budget.left = 0
    for _ in range(20):
        link.client.ping(b"headway!")
        number = link.ask(b"hello")
        await link.turn()
        assert link.answer(number) == ("0", [b"hello"])
    await ended(link)


async def test_a_stream_of_small_messages_pays_with_its_messages() -> None:
    link = Link()
    link.greet()
    number = link.ask(None, "/test/stream")
    for n in range(3 * CAPACITY):
        link.client.send_data(number, message(b"%d" % n))
        link.send()
        await link.turn(1)
        link.client.acknowledge_received_data(len(message(b"%d" % n)), number)
    link.client.end_stream(number)
    link.send()
    await link.turn()
    status, found = link.answer(number)
    assert (status, len(found)) == ("0", 3 * CAPACITY)
    await ended(link)
