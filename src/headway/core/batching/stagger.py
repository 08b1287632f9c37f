"""Callers in step: those that all come back the same time after their answers.

Callers of a closed loop that think for the same time stay together for ever: they share one large
batch, think, and come back together. In smaller groups, one served while the others think, every
batch is shorter. Only a trial shows whether they come back in groups: callers that wait for each
other come back together whatever the scheduler does. So groups are tried for one round, and given
up if the callers come back together.

The scheduler does not know who an item's caller is. Where all callers think for the same time,
they come back in the order of their answers. So an arrival is taken for a caller of the oldest
batch that has callers missing.
"""

import math
from collections import deque
from collections.abc import Sequence

from headway.core.batching.sizing import HAND_OVER_S
from headway.core.costs import Costs

# Think times are the same if they differ by less than this share of what a batch of one item takes,
_TOGETHER = 0.05
_SAME = 0.02  # and surely the same below this share.
# Rounds in which all callers must have had the same think time before they are served in groups.
_SURE, _LESS_SURE = 2, 32
_WORTH_IT = 0.95  # groups must bring an answer's time down to this share of what it takes together
_STRAGGLERS = 1.05  # batches take so many times what was predicted, on average: some are far longer
_MOST_ANSWERS = 64  # batches that are remembered until their callers are back
_MOST_GROUPS = 64
_FIRST_REST = 32  # batches to wait after groups did not hold, before they are tried again;
_REST_GROWS = 8  # each further failure makes that wait so many times as long
_LONGEST_REST = 2**20


class Stagger:
    def __init__(self, costs: Costs, max_rows: int) -> None:
        self._costs = costs
        self._max_rows = max_rows
        self._answers: deque[tuple[float, int]] = deque()  # when, and callers that are not back
        self._away = 0  # callers of all of these
        self._think_s = -math.inf
        self._in_step = 0  # callers in a row that thought as long, …
        self._apart_s = 0.0  # … by so much more or less
        self._batches = 0
        self._rest_until = 0  # by the number of batches
        self._rest = _FIRST_REST
        self._chosen: tuple[int, int, int] = (0, 0, 0)  # callers, version of the costs, group
        self._is_on = False

    def answered(self, now: float, items: int) -> None:
        self._batches += 1
        if len(self._answers) >= _MOST_ANSWERS:  # callers that never come back
            self._answers.clear()
            self._away = 0
        self._answers.append((now, items))
        self._away += items

    def arrived(self, times: Sequence[float]) -> None:
        """In the order in which they came."""
        answers, at = self._answers, 0
        most_s = self.together_s
        while at < len(times) and answers:
            answered_at, items = answers[0]
            came = min(items, len(times) - at)
            first_s, last_s = times[at] - answered_at, times[at + came - 1] - answered_at
            is_one = last_s - first_s <= most_s
            apart_s = max(abs(first_s - self._think_s), abs(last_s - self._think_s))
            if is_one and apart_s <= most_s:
                self._in_step += came
                self._apart_s = max(self._apart_s, apart_s)
            else:
                self._lose_step()
                if len(answers) > 1:  # its callers may have gone for good
                    answers.popleft()
                    self._away -= items
                    continue
                self._think_s, self._in_step = first_s, came if is_one else 0
                self._apart_s = last_s - first_s
            at += came
            self._away -= came
            if came == items:
                answers.popleft()
            else:
                answers[0] = (answered_at, items - came)

    def _lose_step(self) -> None:
        self._in_step = 0
        if self._is_on:
            self._is_on = False
            self._rest_until = self._batches + self._rest
            self._rest = min(self._rest * _REST_GROWS, _LONGEST_REST)

    @property
    def may_be_in_step(self) -> bool:
        """Is it worth asking?"""
        return self._in_step > 1

    @property
    def together_s(self) -> float:
        """Callers of one group are this close together."""
        return _TOGETHER * (self._costs.predict(1) or 0.0)

    def group(self, here: int) -> int:
        """How many callers leave together, where so many are here; 0: all of them may."""
        callers = here + self._away
        rounds = self._in_step / callers
        if rounds < _SURE or callers < 2 or self._batches < self._rest_until:
            return 0
        if rounds < _LESS_SURE and not self._is_on:
            is_same = self._apart_s * _TOGETHER <= self.together_s * _SAME
            if not is_same:
                return 0
        version = self._costs.version
        if self._chosen[:2] != (callers, version):
            self._chosen = (callers, version, self._best_group(callers))
        self._is_on = self._chosen[2] > 0
        return self._chosen[2]

    def _best_group(self, callers: int) -> int:
        """Of so many groups, a caller's answer takes a batch, or the batches of all groups less
        the time in which it thinks."""
        if self._costs.mean_ratio() > _STRAGGLERS:  # one holds the other groups up as well
            return 0
        least = -(-callers // self._max_rows)
        together_s = self._answer_s(callers, least)
        found = [
            (self._answer_s(callers, groups), groups)
            for groups in range(least + 1, min(callers, _MOST_GROUPS) + 1)
        ]
        if not found or min(found)[0] > _WORTH_IT * together_s:
            return 0
        return -(-callers // min(found)[1])

    def _answer_s(self, callers: int, groups: int) -> float:
        batch_s = (self._costs.predict(-(-callers // groups)) or 0.0) + HAND_OVER_S
        return max(batch_s, groups * batch_s - self._think_s)
