import math

from headway.core.queueing.deadlines import Deadlines


def test_the_next_moment_is_that_of_an_id_that_still_counts() -> None:
    live = {1, 2, 3}
    deadlines = Deadlines(live)
    for moment, item_id in ((3.0, 3), (1.0, 1), (2.0, 2)):
        deadlines.add(moment, item_id)
    live.discard(1)
    assert (deadlines.next_at(), deadlines.first()) == (2.0, 2)
    live.clear()
    assert (deadlines.next_at(), deadlines.first()) == (math.inf, None)


def test_ids_before_a_moment_are_handed_over_earliest_first_and_no_more_than_asked_for() -> None:
    live = set(range(10))
    deadlines = Deadlines(live)
    for item_id in live:
        deadlines.add(10.0 - item_id, item_id)
    taken: list[int] = []

    def take(item_id: int) -> bool:
        taken.append(item_id)
        return item_id != 8

    assert deadlines.pop_before(5.0, 2, take) == 2
    assert taken == [9, 8, 7]
    assert deadlines.pop_before(5.0, 9, take) == 1
    assert deadlines.next_at() == 5.0


def test_those_who_left_are_forgotten_before_they_pile_up() -> None:
    live: set[int] = {-1}
    deadlines = Deadlines(live)
    deadlines.add(0.0, -1)
    for item_id in range(10_000):
        live.add(item_id)
        deadlines.add(1.0, item_id)
        live.discard(item_id)
    assert len(deadlines._heap) < 200
