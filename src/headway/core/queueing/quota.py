"""The quota of one key: requests and rows per second, tokens per minute, requests at once. Pure.

A bucket holds one second's worth, the token bucket one minute's. An answer reserves the most tokens
it may have, and gives back those it did not use. A request for more than a bucket can hold is
admitted when the bucket is full, and leaves a debt: a large request is slow, not impossible, and
the rate holds over time.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from headway.errors import QuotaExceeded

_ROUNDING = 1e-9  # a caller that obeys Retry-After must not be a rounding error early


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of one key. None: no limit."""

    requests_per_s: float | None = None
    rows_per_s: float | None = None
    concurrent: int | None = None
    tokens_per_minute: float | None = None


class Bucket:
    """Fills at a rate, up to the amount of `span_s` seconds, but at least 1."""

    __slots__ = ("_capacity", "_filled_at", "_level", "_span_s", "rate")

    def __init__(self, rate: float, now: float, *, span_s: float = 1.0) -> None:
        assert 0 < rate < math.inf, rate
        self.rate = rate
        self._span_s = span_s
        self._capacity = self._level = max(1.0, rate * span_s)
        self._filled_at = now

    def wait_s(self, amount: float, now: float) -> float:
        """The seconds until `amount` may be taken, if no other request arrives; 0: now."""
        self._fill(now)
        missing = min(amount, self._capacity) - self._level
        return missing / self.rate if missing > _ROUNDING * self._capacity else 0.0

    def take(self, amount: float, now: float) -> None:
        """Call it when `wait_s` is 0. The level may become negative: that is the debt."""
        self._fill(now)
        self._level -= amount

    def give_back(self, amount: float, now: float) -> None:
        """Give back `amount` of what was taken."""
        self._fill(now)
        self._level = min(self._capacity, self._level + amount)

    def change(self, rate: float, now: float) -> None:
        """Change the rate. The amount taken so far stays taken."""
        self._fill(now)
        self.rate, self._capacity = rate, max(1.0, rate * self._span_s)
        self._level = min(self._level, self._capacity)

    def _fill(self, now: float) -> None:
        elapsed_s = max(0.0, now - self._filled_at)
        self._level = min(self._capacity, self._level + elapsed_s * self.rate)
        self._filled_at = max(self._filled_at, now)


class Allowance:
    """The use that one key has made of its quota."""

    __slots__ = ("_name", "_quota", "_requests", "_rows", "_tokens", "running")

    def __init__(self, name: str, quota: Quota, now: float) -> None:
        self._name = name
        self._quota = quota
        self._requests = _bucket(quota.requests_per_s, now)
        self._rows = _bucket(quota.rows_per_s, now)
        self._tokens = _token_bucket(quota.tokens_per_minute, now)
        self.running = 0

    def begin(self, now: float) -> None:
        """Count one more request, or raise QuotaExceeded. Each `begin` needs an `end`."""
        limit = self._quota.concurrent
        if limit is not None and self.running >= limit:
            raise QuotaExceeded(f"key {self._name!r} may have {limit} requests at once")
        self._take(self._requests, 1, now, "requests")
        self.running += 1

    @contextmanager
    def running_one(self, now: float) -> Iterator[None]:
        """Call `begin` on entry and `end` on exit."""
        self.begin(now)
        try:
            yield
        finally:
            self.end()

    def may_begin(self, rows: int, now: float) -> bool:
        """Would a request of this many rows be admitted? Nothing is taken."""
        limit, requests, in_rows = self._quota.concurrent, self._requests, self._rows
        return (
            (limit is None or self.running < limit)
            and (requests is None or requests.wait_s(1, now) <= 0)
            and (in_rows is None or in_rows.wait_s(rows, now) <= 0)
        )

    def end(self) -> None:
        assert self.running > 0, "an end without a begin"
        self.running -= 1

    def take_rows(self, rows: int, now: float) -> None:
        self._take(self._rows, rows, now, "rows")

    def reserve_tokens(self, tokens: int, now: float) -> None:
        """Reserve an answer's most tokens, prompt included. Raises QuotaExceeded."""
        bucket = self._tokens
        if bucket is None:
            return
        wait_s = bucket.wait_s(tokens, now)
        if wait_s > 0:
            raise QuotaExceeded(
                f"key {self._name!r} may use {bucket.rate * 60:g} tokens a minute; "
                f"this request may take {tokens}",
                retry_after_s=wait_s,
            )
        bucket.take(tokens, now)

    def refund_tokens(self, tokens: int, now: float) -> None:
        """Give back reserved tokens that were not used."""
        if self._tokens is not None and tokens > 0:
            self._tokens.give_back(tokens, now)

    def change(self, quota: Quota, now: float) -> None:
        """Use another quota from now on. Requests under way stay counted."""
        self._requests = _changed(self._requests, quota.requests_per_s, now)
        self._rows = _changed(self._rows, quota.rows_per_s, now)
        if self._tokens is None or quota.tokens_per_minute is None:
            self._tokens = _token_bucket(quota.tokens_per_minute, now)
        else:
            self._tokens.change(quota.tokens_per_minute / 60, now)
        self._quota = quota

    def _take(self, bucket: Bucket | None, amount: int, now: float, what: str) -> None:
        if bucket is None:
            return
        wait_s = bucket.wait_s(amount, now)
        if wait_s > 0:
            raise QuotaExceeded(
                f"key {self._name!r} may send {bucket.rate:g} {what} a second", retry_after_s=wait_s
            )
        bucket.take(amount, now)


def _bucket(rate: float | None, now: float) -> Bucket | None:
    return None if rate is None else Bucket(rate, now)


def _token_bucket(tokens_per_minute: float | None, now: float) -> Bucket | None:
    if tokens_per_minute is None:
        return None
    return Bucket(tokens_per_minute / 60, now, span_s=60.0)


def _changed(bucket: Bucket | None, rate: float | None, now: float) -> Bucket | None:
    if bucket is None or rate is None:
        return _bucket(rate, now)
    bucket.change(rate, now)
    return bucket
