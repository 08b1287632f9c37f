"""A shared beginning is computed once and stays, whoever asks in which order."""

from headway.core.items import Priority
from step_world import World, counts

A, B = tuple(range(24)), tuple(range(100, 124))  # two conversations


def test_others_start_while_a_sequence_waits_for_blocks_that_are_being_computed() -> None:
    world = World(max_sequences=8, step_tokens=16, blocks=200)
    world.submit(1, (*range(60), 91))
    world.step()
    world.submit(2, (*range(60), 92))
    world.submit(3, 6)
    assert counts(world.step()) == ([], {1: 10, 3: 6})
    world.run()
    assert world.first_token[2] == world.first_token[1]
    assert world.engine.computed == 61 + 1 + 6 + 3 * 7
    assert world.finished[2].cached_tokens == 60
    assert world.finished[2].awaited_tokens == 60 - 16  # the first step's were there
    assert world.finished[1].awaited_tokens == 0


def test_blocks_that_a_waiting_sequence_will_use_are_evicted_last() -> None:
    world = World(blocks=16, max_sequences=1, max_context=64)
    world.submit(1, (*A, 91), max_tokens=1)
    world.run()
    world.submit(2, (*B, 92), max_tokens=1)
    world.run()
    # There is room for a third without one of the two. A was unused longest, but somebody waits.
    world.submit(3, 24, max_tokens=4)
    world.submit(4, (*A, 93), max_tokens=1)
    world.run()
    assert world.finished[4].cached_tokens == 24


def test_nothing_is_kept_for_a_sequence_that_left() -> None:
    world = World(blocks=16, max_sequences=1, max_context=64)
    world.submit(1, (*A, 91), max_tokens=1)
    world.run()
    world.submit(2, 8, max_tokens=8)
    world.submit(3, (*A, 92), max_tokens=1)
    world.step()
    world.scheduler.cancel(3)
    world.run()
    world.submit(4, (*B, 93), max_tokens=1)
    world.submit(5, 24, max_tokens=4)
    world.run()
    world.submit(6, (*B, 94), max_tokens=1)
    world.run()
    assert world.finished[6].cached_tokens == 24
    assert not world.scheduler._tables.prefixes._wanted


def test_where_blocks_are_short_each_conversation_has_its_turns_in_a_row() -> None:
    world = World(blocks=8, max_sequences=1, max_context=32)
    for number in range(8):
        world.submit(number, ((A, B)[number % 2]) + (200 + number,), max_tokens=1)
    world.run()
    assert world.engine.computed == 2 * 25 + 6 * 1
    assert [world.first_token[each] for each in (0, 2, 4, 6, 1, 3, 5, 7)] == list(range(1, 9))


def test_nobody_is_passed_more_than_sixteen_times() -> None:
    world = World(blocks=8, max_sequences=1, max_context=32)
    world.submit(0, (*A, 200), max_tokens=1)
    world.run()
    world.submit(1, (*B, 201), max_tokens=1)
    for number in range(2, 40):
        world.submit(number, (*A, 200 + number), max_tokens=1)
    world.run()
    assert sum(world.first_token[each] < world.first_token[1] for each in range(2, 40)) == 16


def test_a_deadline_and_a_class_are_not_passed_for_want_of_blocks() -> None:
    for fields in ({"deadline": 9.0}, {"priority": Priority.HIGH}):
        world = World(blocks=8, max_sequences=1, max_context=32)
        world.submit(0, (*A, 200), max_tokens=1)
        world.run()
        world.submit(1, (*B, 201), max_tokens=1, **fields)
        world.submit(2, (*A, 202), max_tokens=1)
        world.run()
        assert world.first_token[1] < world.first_token[2]


def test_a_lost_engine_has_no_blocks_to_keep() -> None:
    world = World(blocks=8, max_sequences=1, max_context=32)
    for number in range(4):
        world.submit(number, ((A, B)[number % 2]) + (200 + number,), max_tokens=3)
    world.step()
    world.engine.lose()
    world.scheduler.reset()
    world.run()
    assert all(each.tokens == 3 for each in world.finished.values())
    assert world.scheduler.blocks_free == 8
