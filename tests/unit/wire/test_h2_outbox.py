"""What waits on a stream comes out as it went in, whatever is taken at a time."""

from hypothesis import given
from hypothesis import strategies as st

from headway.wire.http2.outbox import Outbox


@given(
    st.lists(st.binary(max_size=20), max_size=10),
    st.lists(st.integers(0, 30), max_size=40),
)
def test_bytes_come_out_in_order(parts: list[bytes], sizes: list[int]) -> None:
    outbox, whole, taken = Outbox(), b"".join(parts), b""
    for part in parts:
        outbox.put(part)
    for size in [*sizes, 1000]:
        assert len(outbox) == len(whole) - len(taken)
        data = outbox.take(size)
        assert len(data) == min(size, len(whole) - len(taken))
        taken += data
    assert taken == whole
    assert not outbox


def test_a_large_part_is_not_copied_whole() -> None:
    outbox, part = Outbox(), b"a" * 1000
    outbox.put(b"head")
    outbox.put(part)
    assert outbox.take(4) == b"head"
    assert outbox._parts[0] is part
    assert outbox.take(1000) is part
