"""However the bytes are cut and whatever they are, a connection answers as it should or hangs up,
and leaves nothing behind."""

import asyncio
from typing import Any

import h2.events
import h2.settings
import hpack
from h2_peer import GREETING, Link, head, message, messages, raw_call
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from test_h2_frames import cut

from headway.testing.virtual_time import VirtualTimeLoop, run
from headway.wire.http2 import frames
from headway.wire.http2.frames import Code


def session() -> bytes:
    """Several calls, with all that makes frames hard to read."""
    encoder = hpack.Encoder()
    first = raw_call(1, b"a", encoder)
    block = encoder.encode(head("/test/stream", x="y" * 50))
    padded = frames.frame(frames.DATA, frames.PADDED, 3, b"\x03" + message(b"b")[:4] + b"pad")
    return b"".join(
        (
            *(GREETING, first),
            frames.frame(frames.HEADERS, 0, 3, block[:5]),
            frames.frame(frames.CONTINUATION, 0, 3, block[5:6]),
            frames.frame(frames.CONTINUATION, frames.END_HEADERS, 3, block[6:]),
            *(padded, frames.frame(frames.PING, 0, 0, b"pingpong")),
            frames.frame(frames.DATA, 0, 3, message(b"b")[4:] + message(b"c") + message(b"d")[:7]),
            *(frames.window_update(0, 9), frames.window_update(3, 9)),
            raw_call(5, b"e" * 300, encoder),
            *(raw_call(7, b"f", encoder, "/test/wait"), frames.rst_stream(7, Code.CANCEL)),
            frames.frame(frames.DATA, frames.END_STREAM, 3, b""),
        )
    )


SESSION = session()


async def exchange(pieces: list[bytes]) -> tuple[dict[int, list[Any]], bool]:
    """What was answered on each stream, and whether we hung up."""
    link = Link()
    for piece in pieces:
        link.feed(piece)
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    decoder, answers = hpack.Decoder(), {}
    for kind, flags, number, payload in frames.FrameReader().feed(bytes(link.transport.written)):
        if kind == frames.HEADERS:
            fields = [tuple(each) for each in decoder.decode(payload)]
            answers.setdefault(number, []).append((kind, flags, fields))
        elif kind in (frames.DATA, frames.PING, frames.GOAWAY, frames.RST_STREAM):
            answers.setdefault(number, []).append((kind, flags, payload))
    is_closed = link.transport.is_closed
    link.lose()
    await asyncio.sleep(0.01)
    assert all(task.done() for task in link.owner.tasks)
    assert len(asyncio.all_tasks()) == 1
    return answers, is_closed


def test_answers_do_not_depend_on_where_the_bytes_are_cut_once() -> None:
    whole, is_closed = run(exchange([SESSION]))
    assert not is_closed
    assert whole[1][1][2] == message(b"a")
    for place in range(1, len(SESSION)):
        assert run(exchange([SESSION[:place], SESSION[place:]]))[0] == whole, place


def test_answers_do_not_depend_on_where_the_bytes_are_cut_everywhere() -> None:
    whole, _ = run(exchange([SESSION]))
    assert run(exchange([bytes([byte]) for byte in SESSION]))[0] == whole


kinds = st.one_of(st.integers(0, 9), st.integers(0, 255))
numbers = st.sampled_from([0, 1, 1, 3, 5, 2, 2**31 - 1])
payloads = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([message(b"a"), hpack.Encoder().encode(head()), bytes(4), bytes(5), bytes(8)]),
)
wild_frames = st.builds(frames.frame, kinds, st.integers(0, 255), numbers, payloads)


@given(st.lists(st.one_of(wild_frames, st.binary(max_size=12)), max_size=20))
def test_any_frames_are_answered_or_hung_up_on(pieces: list[bytes]) -> None:
    run(exchange([GREETING, *pieces]))


@given(st.lists(st.binary(max_size=30), max_size=5))
def test_any_bytes_are_hung_up_on(pieces: list[bytes]) -> None:
    run(exchange(pieces))


@given(st.integers(0, len(SESSION) - 1), st.integers(0, 255), st.lists(st.integers(0, 10**4)))
def test_a_damaged_byte_leaves_nothing_behind(at: int, byte: int, places: list[int]) -> None:
    damaged = SESSION[:at] + bytes([byte]) + SESSION[at + 1 :]
    run(exchange(cut(damaged, places[:5])))


class Conversation(RuleBasedStateMachine):
    """Random calls, resets and windows: every call ends as it should, and nothing is left."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.link = self.within(self._greeted)
        self.expected: dict[int, bytes] = {}  # what each call sent
        self.open: dict[int, bytes] = {}  # streams that have not ended

    async def _greeted(self) -> Link:
        link = Link()
        link.greet()
        link.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 50})
        link.send()
        return link

    def within(self, call: Any) -> Any:
        return self.runner.run(call())

    def turn(self) -> None:
        self.within(self.link.turn)
        self.open = {n: each for n, each in self.open.items() if not self.has_ended(n)}

    def has_ended(self, number: int) -> bool:
        kinds = (h2.events.StreamEnded, h2.events.StreamReset)
        return any(self.link.of(kind, number) for kind in kinds)

    @rule(data=st.binary(max_size=200))
    def call(self, data: bytes) -> None:
        self.within(lambda: self._call(data))

    async def _call(self, data: bytes) -> None:
        self.expected[self.link.ask(data)] = message(data)

    @precondition(lambda self: len(self.open) < 5)
    @rule()
    def begin_stream(self) -> None:
        self.within(self._begin)

    async def _begin(self) -> None:
        self.open[self.link.ask(None, "/test/stream")] = b""

    @precondition(lambda self: self.open)
    @rule(data=st.data(), parts=st.lists(st.binary(max_size=60), max_size=3), ends=st.booleans())
    def send(self, data: st.DataObject, parts: list[bytes], ends: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        sent = b"".join(map(message, parts))
        self.open[number] += sent
        self.within(lambda: self._send(number, sent, ends))
        if ends:
            self.expected[number] = self.open.pop(number)

    async def _send(self, number: int, data: bytes, ends: bool) -> None:
        self.link.client.send_data(number, data, end_stream=ends)
        self.link.send()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        del self.open[number]

        async def send() -> None:
            self.link.client.reset_stream(number, Code.CANCEL)
            self.link.send()

        self.within(send)

    @rule(size=st.integers(1, 500))
    def widen(self, size: int) -> None:
        self.within(lambda: self._widen(size))

    async def _widen(self, size: int) -> None:
        """Every stream that still wants something."""
        for number in [*self.expected, *self.open]:
            if not self.has_ended(number):
                self.link.client.increment_flow_control_window(size, number)
        self.link.client.increment_flow_control_window(size)
        self.link.send()

    @rule()
    def look(self) -> None:
        self.turn()
        assert self.link.goodbye is None
        for number, sent in {**self.expected, **self.open}.items():
            assert sent.startswith(self.link.data(number))

    def teardown(self) -> None:
        for _ in range(60):
            self.turn()
            if all(map(self.has_ended, self.expected)):
                break
            self.within(lambda: self._widen(2000))
        for number, sent in self.expected.items():
            assert self.link.answer(number) == ("0", messages(sent))
        assert sorted(self.link.server._calls) == sorted(self.open)

        async def end() -> None:
            self.link.lose()
            await asyncio.sleep(0.01)
            assert len(asyncio.all_tasks()) == 1

        self.within(end)
        assert not self.link.server._calls
        self.runner.close()


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=40, stateful_step_count=30)
