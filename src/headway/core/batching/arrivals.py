"""Watches arrivals and completions: how many come, and whether they come because of our answers.

In a closed loop, callers wait for their answers before they ask again, and a batch is held for
them: `returns` says how soon they are back. All other arrivals do not depend on what we do.
"""

import math
from collections.abc import Callable, Sequence

from headway.core.batching.returns import Returns

_WINDOW = 16  # batches over which the most items at once are remembered
_NEARLY = 0.5  # times the square root of their number are missing: nearly all callers are here
_CLOSED = 0.7  # of the batches had nearly all callers here before they ended: a closed loop
_RATE = 0.05  # of each batch goes into that share, and into how many come
_MOST_NOTED = 32  # arrivals that wait to be learned from


class Arrivals:
    """Whether callers come in a closed loop, how many they are, and when they come back."""

    def __init__(
        self, workers: int = 1, on_arrivals: Callable[[Sequence[float]], object] | None = None
    ) -> None:
        """`on_arrivals` is called with the times of arrivals, some after each other."""
        self._on_arrivals = on_arrivals
        self.workers = workers
        self.returns = Returns()
        self._most_at_once = 0
        self._most_here = 0  # in this window of batches
        self._peak = 0  # the most here since every worker has ended a batch
        self._peaks = 0
        self._known = 0  # `_most_at_once` at the last peak
        self._at_peak = 0.0
        self._is_closed = False
        self.served_in_parts = 0  # so many callers, of whom only some are here at once; 0: none
        self.batches = 0
        self._first_arrival = math.inf
        self._last_arrival = -math.inf
        self.last_completion = -math.inf
        self.answered = 0  # items, by then
        self._thinking = 0  # callers that were not here then
        self._came_since: list[float] = []  # since the last completion
        # Arrivals are noted one by one, and learned from together, when a result is needed.
        self._noted: list[float] = []
        self._noted_here = 0  # the most, with any of them
        self._elapsed_s = 0.0  # between completions, on average
        self._came = 0.0  # between completions, on average
        self._arrivals_before = 0  # the last completion
        self._arrivals = 0

    def arrived(self, now: float, here: int) -> None:
        """An item arrived; with it, so many are here, queued or running."""
        noted = self._noted
        noted.append(now)
        if here > self._noted_here:
            self._noted_here = here
        if len(noted) >= _MOST_NOTED:
            self.learn_arrivals()

    def arrived_together(self, times: Sequence[float], here: int) -> None:
        """The same as `arrived` for each of them; `here`: items before the first."""
        self._noted += times
        self._noted_here = max(self._noted_here, here + len(times))
        if len(self._noted) >= _MOST_NOTED:
            self.learn_arrivals()

    def learn_arrivals(self) -> None:
        """Learn from the arrivals noted so far."""
        times = self._noted
        if not times:
            return
        self._noted = []
        here, self._noted_here = self._noted_here, 0
        if self._on_arrivals is not None:
            self._on_arrivals(times)
        self._arrivals += len(times)
        if self._last_arrival == -math.inf:
            self._first_arrival = times[0]
        self._last_arrival = times[-1]
        if len(self._came_since) < self._thinking:
            self._came_since += times
        if here > self._peak:
            self._peak = here
            self._most_here = max(self._most_here, here)
            self._most_at_once = max(self._most_at_once, here)

    def completed(self, now: float, here: int) -> None:
        """A batch ended; without it, so many items are here."""
        self.learn_arrivals()
        since, self.last_completion = self.last_completion, now
        if since > -math.inf:
            self.returns.learn(self._came_since, since, now, self._thinking)
        self.batches += 1
        if self._peak and self.batches % self.workers == 0:
            self._learn_peak()
        if since == -math.inf:
            since = min(self._first_arrival, now)
        if now > since:
            rate = max(_RATE, 1.0 / self.batches)  # at first, the mean of all
            self._elapsed_s += (now - since - self._elapsed_s) * rate
            self._came += (self._arrivals - self._arrivals_before - self._came) * rate
            self._arrivals_before = self._arrivals
        if self.batches % (_WINDOW * self.workers) == 0:
            # A caller that left is forgotten after two windows.
            self._most_at_once, self._most_here = self._most_here, 0
        self._came_since = []
        self.answered = self._arrivals - here
        self._thinking = max(0, self._most_at_once - here, self.served_in_parts - here)

    def _learn_peak(self) -> None:
        """The callers of a closed loop are so and so many, and nearly all are here time and again.
        Of independent ones, the most at once are a rare coincidence."""
        known, self._known = self._known, self._most_at_once
        peak, self._peak = self._peak, 0
        if not known:
            return
        self._peaks += 1
        rate = max(_RATE, 1.0 / (self._peaks + 1))
        nearly = self._most_at_once - _NEARLY * math.sqrt(self._most_at_once)
        is_at_peak = known > 1 and nearly <= min(peak, known)
        self._at_peak += (is_at_peak - self._at_peak) * rate
        self._is_closed = self._at_peak >= _CLOSED

    @property
    def is_closed(self) -> bool:
        """Do callers wait for their answers before they ask again?"""
        return self._is_closed or self.served_in_parts > 0

    @property
    def callers(self) -> int:
        """In a closed loop: the most items seen at once lately."""
        self.learn_arrivals()
        return max(self._most_at_once, self.served_in_parts)

    @property
    def rate_rps(self) -> float:
        """Arrivals a second, lately."""
        if self._elapsed_s:
            return self._came / self._elapsed_s
        self.learn_arrivals()
        seen_s = self._last_arrival - self._first_arrival
        return (self._arrivals - 1) / seen_s if seen_s > 0.0 and self._arrivals > 2 else 0.0
