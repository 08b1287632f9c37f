"""Buckets and allowances, with time as an argument."""

import pytest

from headway.core.queueing.quota import Allowance, Bucket, Quota
from headway.errors import QuotaExceeded


def allowance(**limits: float) -> Allowance:
    return Allowance("acme", Quota(**limits), now=0.0)  # type: ignore[arg-type]


def test_a_bucket_holds_a_seconds_worth_and_fills_at_its_rate() -> None:
    bucket = Bucket(4.0, now=0.0)
    for _ in range(4):
        assert bucket.wait_s(1, now=0.0) == 0.0
        bucket.take(1, now=0.0)
    assert bucket.wait_s(1, now=0.0) == 0.25
    assert bucket.wait_s(1, now=0.25) == 0.0


def test_a_bucket_never_holds_more_than_a_seconds_worth() -> None:
    bucket = Bucket(4.0, now=0.0)
    bucket.take(4, now=1000.0)
    assert bucket.wait_s(1, now=1000.0) == 0.25


def test_less_than_one_a_second_is_one_at_a_time() -> None:
    bucket = Bucket(0.5, now=0.0)
    assert bucket.wait_s(1, now=0.0) == 0.0
    bucket.take(1, now=0.0)
    assert bucket.wait_s(1, now=0.5) == 1.5


def test_more_than_a_bucket_holds_leaves_a_debt_and_is_not_impossible() -> None:
    bucket = Bucket(10.0, now=0.0)
    assert bucket.wait_s(100, now=0.0) == 0.0
    bucket.take(100, now=0.0)
    assert bucket.wait_s(1, now=0.0) == pytest.approx(9.1)
    assert bucket.wait_s(100, now=9.0) == pytest.approx(1.0)
    assert bucket.wait_s(100, now=10.0) == 0.0


def test_a_clock_that_steps_back_gives_nothing_away() -> None:
    bucket = Bucket(1.0, now=10.0)
    bucket.take(1, now=10.0)
    assert bucket.wait_s(1, now=5.0) == 1.0
    assert bucket.wait_s(1, now=10.5) == 0.5


def test_an_account_without_limits_admits_everything() -> None:
    free = allowance()
    for _ in range(1000):
        free.begin(0.0)
        free.take_rows(1000, 0.0)
    assert free.running == 1000


def test_too_many_requests_a_second_are_told_when_to_come_back() -> None:
    limited = allowance(requests_per_s=2.0)
    limited.begin(0.0)
    limited.begin(0.0)
    with pytest.raises(QuotaExceeded, match="'acme' may send 2 requests a second") as refused:
        limited.begin(0.0)
    assert refused.value.retry_after_s == 0.5
    limited.begin(0.5)


def test_too_many_rows_a_second_are_told_when_to_come_back() -> None:
    limited = allowance(rows_per_s=100.0)
    limited.take_rows(100, 0.0)
    with pytest.raises(QuotaExceeded, match="100 rows a second") as refused:
        limited.take_rows(50, 0.0)
    assert refused.value.retry_after_s == 0.5


def test_too_many_at_once_wait_for_an_end() -> None:
    limited = allowance(concurrent=1)
    limited.begin(0.0)
    with pytest.raises(QuotaExceeded, match="1 requests at once"):
        limited.begin(0.0)
    limited.end()
    limited.begin(0.0)


def test_whoever_is_refused_is_not_counted() -> None:
    limited = allowance(requests_per_s=1.0, concurrent=2)
    limited.begin(0.0)
    with pytest.raises(QuotaExceeded):
        limited.begin(0.0)
    assert limited.running == 1


def test_a_new_quota_forgets_nothing_that_has_been_used() -> None:
    limited = allowance(requests_per_s=10.0, concurrent=1)
    for _ in range(10):
        limited.begin(0.0)
        limited.end()
    limited.begin(1.0)
    limited.change(Quota(requests_per_s=10.0, concurrent=1), now=1.0)
    with pytest.raises(QuotaExceeded, match="at once"):
        limited.begin(1.0)
    limited.change(Quota(requests_per_s=1.0), now=1.0)
    limited.begin(1.0)
    with pytest.raises(QuotaExceeded, match="1 requests a second"):
        limited.begin(1.0)
    limited.change(Quota(), now=1.0)
    limited.begin(1.0)
