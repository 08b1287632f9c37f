"""Room for bodies, over all connections."""

import pytest

from headway.config import ServerConfig
from headway.errors import QueueFull
from headway.wire.body_room import UNCOUNTED_BYTES, BodyRoom


def room_of(limit: int, largest: int = 1) -> BodyRoom:
    return BodyRoom(ServerConfig(max_held_bytes=limit, max_body_bytes=largest))


def test_as_much_as_there_is_and_no_more() -> None:
    room = room_of(100)
    room.take(60)
    room.check(40)
    with pytest.raises(QueueFull, match="hold 60 bytes, 100 are allowed"):
        room.take(41)
    room.give_back(60)
    room.take(100)


def test_asking_takes_nothing() -> None:
    room = room_of(100)
    for _ in range(3):
        room.check(100)
    assert room.held_bytes == 0


def test_one_body_that_is_allowed_always_fits() -> None:
    room_of(10, largest=100).take(100)


def test_what_is_small_is_not_counted() -> None:
    room = room_of(100)
    with room.taken(UNCOUNTED_BYTES):
        assert room.held_bytes == 0
    with room.taken(UNCOUNTED_BYTES + 100):
        assert room.held_bytes == 100
    assert room.held_bytes == 0


def test_a_smaller_limit_counts_from_now_on() -> None:
    room = room_of(100)
    room.take(80)
    room.change(ServerConfig(max_held_bytes=50, max_body_bytes=1))
    with pytest.raises(QueueFull):
        room.take(1)
    room.give_back(80)
    room.take(50)
