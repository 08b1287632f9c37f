"""How long a thread looks for the one that it waits for, before it sleeps.

Threads meet more than a hundred times a step, and one that is woken comes some 50 µs late: looking
is worth half of a step. But where other processes want the cores, a thread that looks keeps one
from the very thread that it waits for, and looks in vain. Then threads had better sleep; and try
again from time to time whether the machine has become quiet.
"""

LONG, SHORT = 600_000, 3_000  # cycles: some 0.2 ms, and 1 µs
_MANY = 10  # looks in vain in a step; on a quiet machine there are 0 to 5
_IN_A_ROW = 2  # such steps: one alone says nothing, for a prompt's has more to wait for
_FIRST, _LONGEST = 16, 256  # steps until the next try


class Patience:
    def __init__(self) -> None:
        self._before = 0
        self._bad = 0  # steps in a row
        self._asleep_for = 0  # steps
        self._pause = _FIRST

    def cycles(self, missed: int) -> int:
        """For the next step; `missed`: how many looks were in vain until now, in all."""
        news, self._before = missed - self._before, missed
        if self._asleep_for:
            self._asleep_for -= 1
            return SHORT if self._asleep_for else LONG
        if news < _MANY:
            self._bad, self._pause = 0, _FIRST
            return LONG
        self._bad += 1
        if self._bad < _IN_A_ROW:
            return LONG
        self._asleep_for, self._pause = self._pause, min(2 * self._pause, _LONGEST)
        self._bad = _IN_A_ROW - 1  # one bad step is enough after a pause
        return SHORT
