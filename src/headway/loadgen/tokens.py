"""Streamed tokens: when each of them came. A server may send several at once."""

import math
import re
from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headway.lab.workload import Times

_USAGE = re.compile(rb'"(?:completion|output)_tokens": ?(\d+)')


class TokenLog:
    """The tokens of the requests of a run, in the order in which these ended."""

    def __init__(self) -> None:
        self.first = array("d")  # by request: when its first token came; NaN: it has none
        self.last = array("d")
        self.count = array("d")
        self.gaps = array("d")  # between two tokens of one request
        self.gap_ends = array("d")

    def add(self, arrived: list[tuple[float, int]], answer: bytes) -> None:
        """`arrived`: when how many pieces of text came."""
        if not arrived:
            self.add_none()
            return
        told = _USAGE.findall(answer)
        last = first = arrived[0][0]
        self.gaps.extend([0.0] * (arrived[0][1] - 1))
        self.gap_ends.extend([first] * (arrived[0][1] - 1))
        for at, pieces in arrived[1:]:
            self.gaps.append(at - last)
            self.gaps.extend([0.0] * (pieces - 1))
            self.gap_ends.extend([at] * pieces)
            last = at
        self.first.append(first)
        self.last.append(last)
        self.count.append(float(told[-1]) if told else sum(pieces for _, pieces in arrived))

    def add_none(self) -> None:
        self.first.append(math.nan)
        self.last.append(math.nan)
        self.count.append(0.0)

    def samples(self, start: float, order: NDArray[np.int64]) -> "TokenSamples":
        return TokenSamples(
            first_s=(np.array(self.first) - start)[order],
            last_s=(np.array(self.last) - start)[order],
            count=np.array(self.count)[order],
            gaps_s=np.array(self.gaps),
            gap_ends_s=np.array(self.gap_ends) - start,
        )


@dataclass(frozen=True, slots=True, eq=False)
class TokenSamples:
    """By request, beside the samples of whole requests; and every gap between two tokens."""

    first_s: Times
    last_s: Times
    count: Times
    gaps_s: Times
    gap_ends_s: Times

    def only(self, chosen: NDArray[np.bool_]) -> "TokenSamples":
        return TokenSamples(
            self.first_s[chosen],
            self.last_s[chosen],
            self.count[chosen],
            self.gaps_s,
            self.gap_ends_s,
        )

    def gaps_between(self, begin_s: float, end_s: float) -> Times:
        found: Times = self.gaps_s[(self.gap_ends_s >= begin_s) & (self.gap_ends_s < end_s)]
        return found

    @property
    def between_s(self) -> Times:
        """By request: the mean time between its tokens; 0 for a single one."""
        spans = self.last_s - self.first_s
        means: Times = spans / np.maximum(1.0, self.count - 1.0)
        return means


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """What a request must keep to be good."""

    first_s: float = math.inf
    between_s: float = math.inf


@dataclass(frozen=True, slots=True)
class TokenSummary:
    """Of one point of load."""

    per_s: float
    first_p50_s: float
    first_p99_s: float
    gap_p50_s: float
    gap_p99_s: float
    good_rps: float | None  # requests a second that kept the limits; None: there are none


def token_summary(
    tokens: TokenSamples, due_s: Times, begin_s: float, end_s: float, limits: TokenLimits
) -> TokenSummary:
    """`tokens` and `due_s`: of the requests that count."""
    has_any = np.isfinite(tokens.first_s)
    first = tokens.first_s[has_any] - due_s[has_any]
    gaps = tokens.gaps_between(begin_s, end_s)
    good = None
    if limits != TokenLimits():
        good = (first <= limits.first_s) & (tokens.between_s[has_any] <= limits.between_s)
    seconds = end_s - begin_s

    def at(values: Times, percent: float) -> float:
        return float(np.percentile(values, percent)) if len(values) else math.nan

    return TokenSummary(
        per_s=float(tokens.count.sum()) / seconds,
        first_p50_s=at(first, 50),
        first_p99_s=at(first, 99),
        gap_p50_s=at(gaps, 50),
        gap_p99_s=at(gaps, 99),
        good_rps=None if good is None else float(good.sum()) / seconds,
    )
