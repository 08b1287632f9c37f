"""Watches arrivals and completions: how many come, and whether they come because of our answers.

In a closed loop, callers wait for their answers before they ask again: batches are held for them,
and `returns` says when they come back. All other arrivals do not depend on what we do, and
`rehearsal` says what would have served them best.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence

from headway.core.batching.returns import Held, Returns

_WINDOW = 16  # batches over which the most items at once are remembered
_NEARLY = 0.5  # times the square root of their number are missing: nearly all callers are here
_CLOSED = 0.7  # of the batches had nearly all callers here before they ended: a closed loop
_PEAK_RATE = 0.05  # of each batch goes into that share
_UNSURE = 1  # batch without: what that share starts with …
_SURER = 0.5  # … where none of several callers was ever missing
_SEVERAL = 4
_LOAD_RATE = 0.02  # of each batch goes into how busy the workers are, and how many come
_MOST_CAME = 96  # arrivals after one answer that are looked at: a batch and a half
_MOST_NOTED = 32  # arrivals that wait to be learned from, …
_BATCHES_NOTED = 128  # … and batches with those who came after them: older ones hardly count


class Arrivals:
    """Whether callers come in a closed loop, and how long to wait for them there."""

    def __init__(
        self, workers: int = 1, on_arrivals: Callable[[Sequence[float]], object] | None = None
    ) -> None:
        """`on_arrivals` is called with the times of arrivals, some after each other."""
        self._on_arrivals = on_arrivals
        self.workers = workers
        self._most_at_once = 0
        self._most_here = 0  # in this window of batches
        self._most_here_before = 0  # in the one before: a caller that left is forgotten after two
        self._peak = 0  # the most here since every worker has ended a batch
        self._peaks = 0
        self._known = 0  # `_most_at_once` at the last peak
        self._at_peak = 0.0
        self._is_exact = True  # was everyone here at every peak?
        self.is_closed = False  # do callers wait for their answers before they ask again?
        self.batches = 0
        self._first_arrival = math.inf
        self._last_arrival = -math.inf
        self._last_completion = -math.inf
        self._returns = Returns()  # after an answer …
        self._followers = Returns()  # … and after the first caller that comes then
        self._came_since: list[float] = []  # since the last completion
        # Only a closed loop asks when callers come back: until then, nothing is counted.
        self._uncounted: deque[tuple[float, list[float]]] = deque(maxlen=_BATCHES_NOTED)
        # Arrivals are noted one by one, and learned from together, when a result is needed.
        self._noted: list[float] = []
        self._noted_here = 0  # the most, with any of them
        self._elapsed_s = 0.0  # between completions, on average
        self._ran_s = 0.0
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
        room = _MOST_CAME - len(self._came_since)
        if room > 0:
            self._came_since += times[:room]
        if here > self._peak:
            self._peak = here
            self._most_here = max(self._most_here, here)
            self._most_at_once = max(self._most_at_once, here)

    def completed(self, now: float, ran_s: float) -> None:
        self.learn_arrivals()
        since, self._last_completion = self._last_completion, now
        if since > -math.inf:
            self._uncounted.append((since, self._came_since))
        self._came_since = []
        self.batches += 1
        if self._peak and self.batches % self.workers == 0:
            self._learn_peak()
        if since == -math.inf:
            since = min(self._first_arrival, now)
        if now > since:
            rate = max(_LOAD_RATE, 1.0 / self.batches)  # at first, the mean of all
            self._elapsed_s += (now - since - self._elapsed_s) * rate
            self._ran_s += (ran_s - self._ran_s) * rate
            self._came += (self._arrivals - self._arrivals_before - self._came) * rate
            self._arrivals_before = self._arrivals
        if self.batches % (_WINDOW * self.workers) == 0:
            self._most_here_before, self._most_here = self._most_here, 0
            self._most_at_once = self._most_here_before

    def _learn_returns(self) -> None:
        for ended_at, came in self._uncounted:
            self._returns.learn(ended_at, came)
            if came:
                self._followers.learn(came[0], came[1:])
        self._uncounted.clear()

    def _learn_peak(self) -> None:
        """The callers of a closed loop are so and so many, and nearly all are here time and again.
        Of independent ones, the most at once are a rare coincidence."""
        known, self._known = self._known, self._most_at_once
        peak, self._peak = self._peak, 0
        if not known:
            return
        self._peaks += 1
        self._is_exact &= peak == known
        unsure = _SURER if self._is_exact and known >= _SEVERAL else _UNSURE
        rate = max(_PEAK_RATE, 1.0 / (self._peaks + unsure))
        nearly = self._most_at_once - _NEARLY * math.sqrt(self._most_at_once)
        is_at_peak = known > 1 and nearly <= min(peak, known)
        self._at_peak += (is_at_peak - self._at_peak) * rate
        self.is_closed = self._at_peak >= _CLOSED

    @property
    def count(self) -> int:
        return self._arrivals + len(self._noted)

    @property
    def most_at_once(self) -> int:
        """The most items seen at once lately."""
        self.learn_arrivals()
        return self._most_at_once

    @property
    def callers(self) -> int:
        """How many there are in a closed loop; 0: it is none, or another has come."""
        return self._most_at_once if self.is_closed and self._most_at_once == self._known else 0

    @property
    def rate_rps(self) -> float:
        """Arrivals a second, lately."""
        if self._elapsed_s:
            return self._came / self._elapsed_s
        self.learn_arrivals()
        seen_s = self._last_arrival - self._first_arrival
        return (self._arrivals - 1) / seen_s if seen_s > 0.0 and self._arrivals > 2 else 0.0

    @property
    def busy(self) -> float:
        """The share of the time that a worker has been running lately."""
        return min(1.0, self._ran_s / self._elapsed_s) if self._elapsed_s else 0.0

    def return_wait(self, now: float, held: Held) -> float:
        """How long to hold a batch for callers that come back after their answers."""
        self.learn_arrivals()
        self._learn_returns()
        wait = self._returns.best_wait(now - self._last_completion, held)
        if not self._came_since:
            return wait
        return max(wait, self._followers.best_wait(now - self._came_since[0], held))
