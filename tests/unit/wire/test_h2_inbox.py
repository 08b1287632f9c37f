"""Messages come out as they went in, however they were cut."""

from contextlib import suppress

import pytest
from h2_peer import message
from hypothesis import given
from hypothesis import strategies as st
from test_h2_frames import cut

from headway.wire.http2.inbox import Broken, GrpcMessage, MessageInbox, TooLong, framed, whole


@given(st.lists(st.binary(max_size=30), max_size=8), st.lists(st.integers(0, 10_000), max_size=12))
def test_messages_come_out_as_they_went_in(sent: list[bytes], places: list[int]) -> None:
    inbox, found = MessageInbox(30), []
    for piece in cut(b"".join(framed(each) for each in sent), places):
        inbox.feed(piece)
        while (taken := inbox.take()) is not None:
            found.append(taken)
    assert found == [GrpcMessage(False, each) for each in sent]
    assert len(inbox) == 0


@given(st.binary(max_size=100))
def test_any_bytes_are_messages_or_refused(data: bytes) -> None:
    inbox = MessageInbox(50)
    with suppress(Broken, TooLong):
        inbox.feed(data)
        while inbox.take() is not None:
            pass


def test_a_vast_message_is_refused_before_it_comes() -> None:
    with pytest.raises(TooLong, match=r"\(51 vs. 50\)"):
        MessageInbox(50).feed(message(bytes(51))[:5])


@given(st.binary(max_size=40))
def test_the_short_way_says_what_the_long_one_does(data: bytes) -> None:
    inbox = MessageInbox(20)
    try:
        inbox.feed(data)
        taken = inbox.take()
    except (Broken, TooLong):
        taken = None
    is_one = taken is not None and not len(inbox) and not taken.is_compressed
    assert whole(data, 20) == (taken.data if taken is not None and is_one else None)
