"""How a stream's chunks come to their client: in order, and much of them in several turns."""

import asyncio
from typing import Any

from headway.model import END
from headway.runtime.driving.streams import AT_ONCE_BYTES, OpenStream, StreamCall, wake_all
from headway.server.service.event_stream import ToSink


class Sink:
    writable: "asyncio.Future[None] | None" = None
    pause = None

    def __init__(self) -> None:
        self.written: list[bytes] = []

    @property
    def out(self) -> Any:
        return self

    async def wait_writable(self) -> None: ...

    def write(self, data: bytes) -> None:
        self.written.append(data)


async def test_a_large_backlog_is_written_in_several_turns() -> None:
    """Four megabytes that had waited for a slow client were encoded in one go."""
    call = StreamCall(1, None, asyncio.get_running_loop())
    stream: Any = OpenStream(call, lambda call: None)
    large = [chr(ord("a") + number) * (AT_ONCE_BYTES + 1) for number in range(4)]
    for chunk in [*large, "x", "y", END]:
        call.put(chunk)
    sink = Sink()
    pumping = ToSink(stream, str.encode, sink)
    pumping.advance()
    for count in range(1, 5):
        assert sink.written == [each.encode() for each in large[:count]]
        await asyncio.sleep(0)
    assert sink.written[4:] == [b"xy"]
    assert pumping.done.done()


async def test_a_step_that_comes_between_two_turns_is_not_lost() -> None:
    call = StreamCall(1, None, asyncio.get_running_loop())
    stream: Any = OpenStream(call, lambda call: None)
    sink = Sink()
    pumping = ToSink(stream, str.encode, sink)
    stream.attach(pumping.advance)
    for chunk in ["a" * (AT_ONCE_BYTES + 1), "b"]:
        call.put(chunk)
    wake_all([call])
    for chunk in ["c", END]:
        call.put(chunk)
    wake_all([call])
    await asyncio.wait_for(pumping.done, 10)
    assert b"".join(sink.written)[AT_ONCE_BYTES:] == b"abc"
