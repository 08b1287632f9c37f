"""What a bucket promises, whatever comes when."""

from hypothesis import given
from hypothesis import strategies as st

from headway.core.queueing.quota import Bucket

rates = st.floats(0.01, 10_000)
asks = st.lists(st.tuples(st.floats(0, 5), st.integers(1, 200)), max_size=60)


@given(rates, asks)
def test_over_any_time_no_more_is_admitted_than_the_rate_and_one_bucket(
    rate: float, asked: list[tuple[float, int]]
) -> None:
    bucket, now = Bucket(rate, now=0.0), 0.0
    admitted: list[tuple[float, int]] = []
    for gap, amount in asked:
        now += gap
        if bucket.wait_s(amount, now) == 0:
            bucket.take(amount, now)
            admitted.append((now, amount))
    for start in range(len(admitted)):
        since, last = admitted[start][0], admitted[-1]
        before_last = sum(amount for _, amount in admitted[start:-1])
        room = max(1.0, rate) + rate * (last[0] - since)
        # The last one may leave a debt; what was taken before it is within the rate.
        assert before_last + min(last[1], max(1.0, rate)) <= room * (1 + 1e-6) + 1e-6


@given(rates, asks)
def test_whoever_comes_back_when_it_was_told_to_is_admitted(
    rate: float, asked: list[tuple[float, int]]
) -> None:
    bucket, now = Bucket(rate, now=0.0), 0.0
    for gap, amount in asked:
        now += gap
        now += bucket.wait_s(amount, now)
        assert bucket.wait_s(amount, now) == 0
        bucket.take(amount, now)


@given(rates, asks)
def test_asking_costs_nothing(rate: float, asked: list[tuple[float, int]]) -> None:
    curious, quiet, now = Bucket(rate, now=0.0), Bucket(rate, now=0.0), 0.0
    for gap, amount in asked:
        now += gap
        first = curious.wait_s(amount, now)
        assert curious.wait_s(amount, now) == first
    assert abs(curious.wait_s(1, now) - quiet.wait_s(1, now)) < 1e-6
