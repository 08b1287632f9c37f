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


def test_the_earliest_leave_first_in_whatever_order_they_came() -> None:
    live = set(range(100))
    deadlines = Deadlines(live)
    for item_id in live:
        deadlines.add(float(item_id * 37 % 100), item_id)
    moments = []
    while (moment := deadlines.next_at()) < math.inf:
        assert deadlines.first() == deadlines.pop()
        moments.append(moment)
    assert moments == [float(number) for number in range(100)]


def test_those_who_left_are_forgotten_before_they_pile_up() -> None:
    live: set[int] = {-1}
    deadlines = Deadlines(live)
    deadlines.add(0.0, -1)
    for item_id in range(10_000):
        live.add(item_id)
        deadlines.add(1.0, item_id)
        live.discard(item_id)
    assert len(deadlines._heap) + len(deadlines._run) < 200
