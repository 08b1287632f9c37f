"""What has taken workers down: remembered for a while, and never too much of it."""

from headway.core.faults.poison_memory import PoisonMemory


def test_what_was_remembered_is_known_until_it_is_forgotten() -> None:
    memory = PoisonMemory(keep_s=10.0)
    assert not memory
    memory.remember(b"digest", now=100.0)
    assert memory
    assert memory.is_known(b"digest", now=109.0)
    assert not memory.is_known(b"other", now=109.0)
    assert not memory.is_known(b"digest", now=110.0)
    assert not memory


def test_remembered_again_it_is_known_for_longer() -> None:
    memory = PoisonMemory(keep_s=10.0)
    memory.remember(b"a", now=0.0)
    memory.remember(b"b", now=1.0)
    memory.remember(b"a", now=8.0)
    assert memory.is_known(b"a", now=15.0)
    assert not memory.is_known(b"b", now=15.0)
    assert len(memory) == 1


def test_the_longest_known_make_room() -> None:
    memory = PoisonMemory(most=3)
    for number in range(5):
        memory.remember(bytes([number]), now=float(number))
    assert len(memory) == 3
    assert [memory.is_known(bytes([number]), now=5.0) for number in range(5)] == [
        *(False, False),
        *(True, True, True),
    ]
