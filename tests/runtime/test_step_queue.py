"""Steps of a model on their way to its streams: whole, in order, within the streams' limits."""

import asyncio
import threading
from typing import Any

import pytest

from headway import END, Shed
from headway.runtime.driving.streams import (
    MAX_BACKLOG,
    MAX_BACKLOG_BYTES,
    OpenStream,
    StepQueue,
    StreamCall,
)


class _Loop:
    """The readers', as seen from a thread: it looks when the test says so."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def call_soon_threadsafe(self, callback: Any, *arguments: Any) -> None:
        self.told.append(lambda: callback(*arguments))

    call_soon = call_soon_threadsafe

    def look(self) -> None:
        told, self.told = self.told, []
        for callback in told:
            callback()


def begun(count: int) -> tuple[_Loop, list[StreamCall], StepQueue]:
    loop: Any = _Loop()
    calls = [StreamCall(number, None, loop) for number in range(count)]
    return loop, calls, StepQueue(calls)


def test_steps_that_come_before_the_loop_looks_are_one_hand_over() -> None:
    loop, calls, queue = begun(3)
    for step in ("a", "b", "c"):
        queue.deliver([f"{step}{number}" for number in range(3)])
    assert len(loop.told) == 1
    loop.look()
    assert [call.take() for call in calls] == [[f"{s}{n}" for s in "abc"] for n in range(3)]
    queue.deliver(["d"] * 3)
    assert len(loop.told) == 1


def test_texts_and_other_chunks_keep_their_order() -> None:
    loop, [first, second], queue = begun(2)
    for step in (["a", "b"], ["c", None], [1, {"d": 2}], ["e", "f"], [END, b"g"], ["lost", "h"]):
        queue.deliver(step)
    loop.look()
    assert first.take() == ["a", "c", 1, "e"]
    assert first.is_at_end()
    assert second.take() == ["b", {"d": 2}, "f", b"g", "h"]
    assert not second.is_at_end()


def test_what_came_before_a_failure_is_read_before_it() -> None:
    loop, [first, second], queue = begun(2)
    queue.deliver(["a", "b"])
    first.fail(Shed("no more"))
    queue.deliver(["lost", "c"])
    loop.look()
    assert first.take() == ["a"]
    with pytest.raises(Shed, match="no more"):
        first.is_at_end()
    assert second.take() == ["b", "c"]


def test_the_model_knows_at_once_that_a_stream_has_ended() -> None:
    _, calls, queue = begun(2)
    queue.deliver(["a", "b"])
    queue.deliver([END, END])
    assert all(call.is_done for call in calls)


def test_a_loop_that_does_not_look_holds_no_more_than_its_streams_may() -> None:
    loop, calls, queue = begun(2)
    for _ in range(MAX_BACKLOG + 100):
        queue.deliver(["a", "b"])
    assert len(loop.told) == 1
    assert all(call.is_done for call in calls)
    assert [len(call.take()) for call in calls] == [MAX_BACKLOG] * 2
    for call in calls:
        with pytest.raises(Shed, match="behind"):
            call.is_at_end()


class _Reader:
    """Takes what has come, unless it is full."""

    def __init__(self, call: StreamCall) -> None:
        self.taken: list[Any] = []
        self.is_full = False
        self.told = 0
        self._stream = OpenStream(call, lambda call: None)
        self._stream.attach(self.tell)

    def tell(self) -> None:
        self.told += 1
        if not self.is_full:
            self.taken += self._stream.take()


def test_a_reader_is_told_once_of_all_steps_that_have_come() -> None:
    loop, calls, queue = begun(2)
    readers = [_Reader(call) for call in calls]
    for step in ("a", "b"):
        queue.deliver([f"{step}{number}" for number in range(2)])
    loop.look()
    assert [reader.taken for reader in readers] == [["a0", "b0"], ["a1", "b1"]]
    assert [reader.told for reader in readers] == [1, 1]
    assert all(call.has_begun for call in calls)


def test_what_a_reader_has_no_room_for_stays_before_what_comes_after_it() -> None:
    loop, [call, other], queue = begun(2)
    reader, neighbour = _Reader(call), _Reader(other)
    reader.is_full = True
    queue.deliver(["a", "b"])
    loop.look()
    assert (reader.taken, reader.told) == ([], 1)
    assert neighbour.taken == ["b"]
    queue.deliver(["c", "d"])
    queue.deliver([END, END])
    loop.look()
    assert call.take() == ["a", "c"]
    assert call.is_at_end()


def test_a_reader_that_raises_costs_its_neighbours_nothing() -> None:
    loop, calls, queue = begun(3)
    readers = [_Reader(call) for call in calls]

    def fail() -> None:
        raise RuntimeError("broken")

    calls[1].reader = fail
    queue.deliver(list("abc"))
    with pytest.raises(RuntimeError, match="broken"):
        loop.look()
    loop.look()
    assert readers[0].taken == ["a"]
    assert readers[2].taken == ["c"]
    calls[1].reader = readers[1].tell
    queue.deliver(list("efg"))
    loop.look()
    assert [reader.taken for reader in readers] == [["a", "e"], ["b", "f"], ["c", "g"]]


def test_what_a_reader_has_no_room_for_counts_in_its_backlog() -> None:
    loop, [call], queue = begun(1)
    reader = _Reader(call)
    reader.is_full = True
    queue.deliver(["a" * 4000])
    loop.look()
    queue.deliver([b"b" * (MAX_BACKLOG_BYTES - 1000)])
    assert call.take() == ["a" * 4000]
    with pytest.raises(Shed, match="behind"):
        call.is_at_end()


@pytest.mark.real_time
async def test_readers_in_several_loops_get_their_own_chunks() -> None:
    calls: list[StreamCall] = []
    found: dict[int, list[Any]] = {}

    def read_elsewhere(is_ready: threading.Event) -> None:
        async def read() -> None:
            calls.append(StreamCall(1, None, asyncio.get_running_loop()))
            stream = OpenStream(calls[1], lambda call: None)
            is_ready.set()
            found[1] = [chunk async for chunk in stream]

        asyncio.run(read())

    calls.append(StreamCall(0, None, asyncio.get_running_loop()))
    is_ready = threading.Event()
    thread = threading.Thread(target=read_elsewhere, args=(is_ready,))
    thread.start()
    is_ready.wait()
    queue = StepQueue(calls)

    def run() -> None:
        for step in range(200):
            queue.deliver([f"{step}", f"-{step}"])
        queue.deliver([END, END])

    model = threading.Thread(target=run)
    model.start()
    found[0] = [chunk async for chunk in OpenStream(calls[0], lambda call: None)]
    model.join()
    thread.join()
    assert found == {
        0: [f"{step}" for step in range(200)],
        1: [f"-{step}" for step in range(200)],
    }
