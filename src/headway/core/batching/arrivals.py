"""Watches arrivals and completions: how many items arrive, and whether our answers cause them.

In a closed loop, each caller sends its next request only after its answer, so a batch may be held
for callers: `returns` knows how soon they are back. All other arrivals do not depend on what we do.
"""

import math
from collections.abc import Callable, Sequence

from headway.core.batching.returns import Returns
from headway.core.queueing.running import Running

_WINDOW = 16  # batches over which the most items at once are remembered
_NEARLY = 0.5  # nearly all of n callers are here if at most this factor × √n are missing
_CLOSED = 0.7  # a closed loop: in this share of the rounds, nearly all callers were here
_SURER = 0.4  # rounds without all callers that the share starts with, if no caller was ever missing
_RATE = 0.05  # the weight of the newest value in the moving averages
_MOST_NOTED = 32  # noted arrivals after which they are learned from


class Arrivals:
    """Whether callers form a closed loop, how many they are, and when they come back.

    A round is as many batches as there are workers; a window is `_WINDOW` rounds.
    """

    def __init__(
        self, running: Running, on_arrivals: Callable[[Sequence[float]], object] | None = None
    ) -> None:
        """`on_arrivals` is called with the times of several arrivals, in order."""
        self._on_arrivals = on_arrivals
        self._running = running
        self.returns = Returns()
        # The most items here at once, queued or running:
        self._most_in_round = 0
        self._most_in_window = 0
        self._most_in_two_windows = 0  # this window and the one before
        self._most_by_last_round = 0  # `_most_in_two_windows` when the last round ended
        self._rounds = 0  # that were compared with the rounds before
        self._full_share = 0.0  # of the rounds: nearly all callers were here (moving average)
        self._is_exact = True  # were exactly all callers here in every round?
        self._is_closed = False
        self.served_in_parts = 0  # number of callers when served in parts; 0: not in parts
        self.batches = 0
        self.last_completion = -math.inf
        self.answered = 0  # items answered until the last completion
        self._thinking = 0  # callers that were not here at the last completion
        self._came_since: list[float] = []  # times of arrivals since the last completion
        # Arrivals are noted one by one, and learned from together, when a result is needed.
        self._noted: list[float] = []  # their times
        self._noted_here = 0  # the most items here when one of them arrived
        self._elapsed_s = 0.0  # seconds between two completions (moving average)
        self._came = 0.0  # arrivals between two completions (moving average)
        self._arrivals_before = 0  # arrivals until the last completion
        self._arrivals = 0  # arrivals in all

    def arrived(self, now: float, here: int) -> None:
        """An item arrived; with it, `here` items are queued or running."""
        noted = self._noted
        noted.append(now)
        if here > self._noted_here:
            self._noted_here = here
        if len(noted) >= _MOST_NOTED:
            self.learn_arrivals()

    def arrived_together(self, times: Sequence[float], here: int) -> None:
        """Items arrived at `times`; before the first, `here` items were queued or running."""
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
        if len(self._came_since) < self._thinking:
            self._came_since += times
        if here > self._most_in_round:
            self._most_in_round = here
            self._most_in_window = max(self._most_in_window, here)
            self._most_in_two_windows = max(self._most_in_two_windows, here)

    def completed(self, now: float, here: int) -> None:
        """A batch ended; without it, `here` items are queued or running."""
        self.learn_arrivals()
        since, self.last_completion = self.last_completion, now
        if since > -math.inf:
            self.returns.learn(self._came_since, since, now, self._thinking)
        self.batches += 1
        if self._most_in_round and self.batches % self._running.workers == 0:
            self._end_round()
        if since > -math.inf and now > since:
            rate = max(_RATE, 1.0 / self.batches)  # at first, the mean of all
            self._elapsed_s += (now - since - self._elapsed_s) * rate
            self._came += (self._arrivals - self._arrivals_before - self._came) * rate
        self._arrivals_before = self._arrivals
        if self.batches % (_WINDOW * self._running.workers) == 0:
            # A caller that left is forgotten after two windows.
            self._most_in_two_windows, self._most_in_window = self._most_in_window, 0
        self._came_since = []
        self.answered = self._arrivals - here
        self._thinking = max(0, self._most_in_two_windows - here, self.served_in_parts - here)

    def _end_round(self) -> None:
        """Learn whether the loop is closed.

        A closed loop has a fixed number of callers, and nearly all are present again and again.
        Independent callers are rarely as many at once as in their largest crowd.
        """
        callers = self._most_in_two_windows
        before, self._most_by_last_round = self._most_by_last_round, callers
        here, self._most_in_round = self._most_in_round, 0
        if not before:
            return
        self._rounds += 1
        self._is_exact &= here == before
        unsure = _SURER if self._is_exact and before > 2 else 1.0
        rate = max(_RATE, 1.0 / (self._rounds + unsure))
        nearly_all = callers - _NEARLY * math.sqrt(callers)
        is_full = before > 1 and nearly_all <= min(here, before)
        self._full_share += (is_full - self._full_share) * rate
        self._is_closed = self._full_share >= _CLOSED

    @property
    def is_closed(self) -> bool:
        """Does each caller send its next request only after its answer?"""
        return self._is_closed or self.served_in_parts > 0

    @property
    def callers(self) -> int:
        """The number of callers of a closed loop: the most items here at once lately."""
        self.learn_arrivals()
        return max(self._most_in_two_windows, self.served_in_parts)

    @property
    def rate_rps(self) -> float:
        """Arrivals per second, lately; 0: unknown."""
        return self._came / self._elapsed_s if self._elapsed_s else 0.0
