"""Tokens a minute: reserved before, given back after."""

import pytest

from headway.core.queueing.quota import Allowance, Quota
from headway.errors import QuotaExceeded


def allowance(tokens_per_minute: float | None) -> Allowance:
    return Allowance("a", Quota(tokens_per_minute=tokens_per_minute), 0.0)


def test_without_a_quota_nothing_is_counted() -> None:
    free = allowance(None)
    free.reserve_tokens(10**9, 0.0)
    free.refund_tokens(10**9, 0.0)


def test_a_minutes_worth_is_there_at_once_and_comes_back_in_a_minute() -> None:
    keyed = allowance(600)
    keyed.reserve_tokens(600, 0.0)
    with pytest.raises(
        QuotaExceeded, match="600 tokens a minute; this request may take 100"
    ) as refused:
        keyed.reserve_tokens(100, 0.0)
    assert refused.value.retry_after_s == pytest.approx(10.0)
    keyed.reserve_tokens(100, 10.0)


def test_what_is_not_used_is_given_back_and_no_more() -> None:
    keyed = allowance(600)
    keyed.reserve_tokens(600, 0.0)
    keyed.refund_tokens(500, 0.0)
    keyed.reserve_tokens(500, 0.0)
    keyed.refund_tokens(10_000, 0.0)
    keyed.reserve_tokens(600, 0.0)
    with pytest.raises(QuotaExceeded):
        keyed.reserve_tokens(1, 0.0)


def test_an_answer_larger_than_the_minute_is_slow_not_impossible() -> None:
    keyed = allowance(60)
    keyed.reserve_tokens(600, 0.0)
    with pytest.raises(QuotaExceeded) as refused:
        keyed.reserve_tokens(1, 0.0)
    assert refused.value.retry_after_s == pytest.approx(541.0)


def test_another_quota_keeps_what_was_taken() -> None:
    keyed = allowance(600)
    keyed.reserve_tokens(600, 0.0)
    keyed.change(Quota(tokens_per_minute=1200), 0.0)
    with pytest.raises(QuotaExceeded):
        keyed.reserve_tokens(100, 0.0)
    keyed.change(Quota(), 0.0)
    keyed.reserve_tokens(10**6, 0.0)
