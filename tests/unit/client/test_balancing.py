"""Which of several servers a client's call goes to; the time is ours."""

import json
from collections import Counter

import pytest

from headway.client.balancing import Balancer
from headway.client.calls import ClientAnswer
from headway.errors import DeadlineExceeded, Unavailable

OK = ClientAnswer(200, b"")


def busy(retry_after: str | None = None) -> ClientAnswer:
    return ClientAnswer(503, b"", retry_after=retry_after)


def chosen(balancer: Balancer, now: float, count: int = 200) -> Counter[int]:
    """Where calls would go; none of them counts."""
    found: Counter[int] = Counter()
    for _ in range(count):
        place = balancer.choose("m", 10, now)
        balancer.ended(place, None, now)
        found[place.server] += 1
    return found


def answer_all(balancer: Balancer, seconds: dict[int, float], rounds: int = 100) -> float:
    now = 0.0
    for _ in range(rounds):
        place = balancer.choose("m", 10, now)
        now += seconds[place.server]
        balancer.ended(place, OK, now)
    return now


def test_equal_servers_get_equal_shares() -> None:
    found = chosen(Balancer(4), 0.0, 2000)
    assert min(found.values()) > 350


def test_a_slow_server_gets_less() -> None:
    balancer = Balancer(2)
    now = answer_all(balancer, {0: 0.010, 1: 0.100})
    assert chosen(balancer, now) == {0: 200}


def test_a_server_that_cannot_be_reached_is_left_alone_longer_each_time() -> None:
    balancer = Balancer(2)
    for at, back in ((0.0, 1.0), (1.0, 3.0), (3.0, 7.0)):
        balancer.ended(balancer.choose("m", 1, at, tried=[0]), Unavailable("down"), at)
        assert chosen(balancer, back - 0.01) == {0: 200}
        assert set(chosen(balancer, back)) == {0, 1}
    balancer.ended(balancer.choose("m", 1, 7.0, tried=[0]), OK, 7.0)
    balancer.ended(balancer.choose("m", 1, 7.0, tried=[1]), OK, 7.0)
    balancer.ended(balancer.choose("m", 1, 8.0, tried=[0]), Unavailable("down"), 8.0)
    assert not balancer.has_other(8.99, {0})
    assert balancer.has_other(9.0, {0})


def test_a_server_that_asks_for_a_pause_gets_it() -> None:
    balancer = Balancer(2)
    balancer.ended(balancer.choose("m", 1, 0.0, tried=[0]), busy("5"), 0.0)
    assert chosen(balancer, 4.9) == {0: 200}
    assert set(chosen(balancer, 5.0)) == {0, 1}


def test_where_all_are_away_the_one_that_is_back_first_is_asked() -> None:
    balancer = Balancer(3)
    for server, after in enumerate(("9", "2", "5")):
        others = [each for each in range(3) if each != server]
        balancer.ended(balancer.choose("m", 1, 0.0, tried=others), busy(after), 0.0)
    assert chosen(balancer, 1.0) == {1: 200}
    assert not balancer.has_other(1.0, ())
    assert balancer.has_other(2.0, ())
    assert not balancer.has_other(2.0, {1})


def test_long_requests_count_for_more() -> None:
    balancer = Balancer(2)
    for _ in range(50):
        balancer.ended(balancer.choose("m", 1000, 0.0), None, 0.0)
    long = balancer.choose("m", 5000, 0.0)
    short = balancer.choose("m", 1000, 0.0, tried=[long.server])
    assert set(chosen(balancer, 0.0)) >= {short.server}
    assert long.view.finish_s(0.0) > short.view.finish_s(0.0)


def test_a_servers_own_words_count_and_nonsense_does_not() -> None:
    balancer = Balancer(2)
    named = {"queue_seconds": 5.0, "batch_seconds": 0.01, "more_seconds": 0.0, "batch_rows": 8}
    for load in ("JSON {", "TEXT x=1", 'JSON {"named_metrics": {}}', f"JSON {json.dumps(3)}"):
        for other in (1, 0):
            place = balancer.choose("m", 1, 0.0, tried=[other])
            balancer.ended(place, ClientAnswer(200, b"", load=load), 0.010)
    assert set(chosen(balancer, 0.0)) == {0, 1}
    place = balancer.choose("m", 1, 0.0, tried=[0])
    load = f"JSON {json.dumps({'named_metrics': named})}"
    balancer.ended(place, ClientAnswer(200, b"", load=load), 0.0)
    assert chosen(balancer, 0.1) == {0: 200}
    assert 1 in chosen(balancer, 6.0)


def test_servers_are_asked_for_their_load_four_times_a_second_and_a_lone_one_never() -> None:
    balancer, asked = Balancer(2), 0
    for tick in range(1000):
        place = balancer.choose("m", 1, tick * 0.01, tried=[tick % 2])
        asked += bool(place.headers)
        balancer.ended(place, OK, tick * 0.01)
    assert 60 < asked <= 80
    assert not Balancer(1).choose("m", 1, 0.0).headers


@pytest.mark.parametrize("outcome", [OK, None, DeadlineExceeded("late"), busy(), Unavailable("x")])
def test_every_outcome_leaves_nothing_behind(
    outcome: ClientAnswer | DeadlineExceeded | Unavailable | None,
) -> None:
    balancer = Balancer(2)
    place = balancer.choose("m", 1, 0.0)
    balancer.ended(place, outcome, 1.0)
    assert place.view.in_flight == 0


def test_many_models_do_not_pile_up() -> None:
    balancer = Balancer(2)
    for number in range(1000):
        balancer.ended(balancer.choose(f"m{number}", 1, 0.0), OK, 0.0)
    assert balancer.models_known <= 256


def test_a_server_that_nothing_is_known_of_is_tried() -> None:
    balancer = Balancer(2)
    for tick in range(20):  # far faster than is thought of a server at first
        place = balancer.choose("m", 1, tick * 0.1, tried=[1])
        balancer.ended(place, OK, tick * 0.1 + 0.0001)
    assert set(chosen(balancer, 3.0)) == {0, 1}
