"""Which stretches of the cache are read in place."""

from headway.engine.segments import LEAST, BlockRun, segments_of


def test_short_stretches_are_gathered() -> None:
    assert segments_of([3, 50], [LEAST - 1, 0]) == ((), (0, 0))


def test_a_long_stretch_is_read_where_it_lies() -> None:
    assert segments_of([3], [LEAST + 2]) == ((BlockRun(3, LEAST + 2, (0,)),), (LEAST + 2,))


def test_whoever_shares_a_stretch_reads_it_together() -> None:
    segments, read = segments_of([3, 9, 3], [20, 0, 20])
    assert segments == (BlockRun(3, 20, (0, 2)),)
    assert read == (20, 0, 20)


def test_what_one_has_beyond_the_shared_part_is_its_own() -> None:
    segments, read = segments_of([3, 3, 3], [20, 40, 22])
    assert segments == (BlockRun(3, 20, (0, 1, 2)), BlockRun(23, 20, (1,)))
    assert read == (20, 40, 20)


def test_a_short_shared_beginning_does_not_spoil_long_stretches() -> None:
    segments, read = segments_of([3, 3], [2, 40])
    assert segments == (BlockRun(3, 40, (1,)),)
    assert read == (0, 40)
