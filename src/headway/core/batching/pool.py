"""The workers of one scheduler: how fast each is, and when it will be free.

Workers are known by number. They need not be alike (two kinds of GPU, a core that is shared). Each
worker's slowness, the factor by which its batches take longer than usual, is learned.
"""

import math

from headway.core.costs import Costs
from headway.core.items import Batch
from headway.core.queueing.running import Running

_RATE = 0.1  # the weight of the newest batch in its worker's slowness; at first, the mean of all
_OUTLIER = 2.0  # one batch changes the slowness by no more than this factor
_OVERDUE = 0.1  # an overdue batch is expected to run on for this part of the time it has run
_FAR = 2  # batches per worker: in a longer queue there is work for the slow workers, too
_UNEQUAL = 1.3  # the slowest worker ÷ the fastest: below this, all count as alike


class Pool:
    def __init__(self, running: Running, costs: Costs) -> None:
        self._running = running
        self._costs = costs
        self._times: dict[int, float] = {}  # by worker: its slowness
        self._seen: dict[int, int] = {}  # by worker: batches
        self.is_unequal = False

    def next_worker(self) -> int:
        """The fastest free worker."""
        if len(self._running.numbers) == 1:
            return self._running.numbers[0]
        busy = {batch.worker for batch in self._running.batches.values()}
        free = [number for number in self._running.numbers if number not in busy]
        if not self.is_unequal or len(free) < 2:
            return free[0] if free else 0
        return min(free, key=lambda number: (self.times(number), number))

    def times(self, number: int) -> float:
        return self._times.get(number, 1.0) if self.is_unequal else 1.0

    def observe(self, batch: Batch, ran_s: float) -> bool:
        """Learn from a batch that took `ran_s`. True: `is_unequal` has changed."""
        usual_s = self._costs.predict(batch.padded_rows, batch.size)
        if len(self._running.numbers) < 2 or not usual_s:
            return False
        number, was_unequal = batch.worker, self.is_unequal
        known = self._times.get(number, 1.0)
        seen = self._seen[number] = self._seen.get(number, 0) + 1
        ratio = min(max(ran_s / usual_s / known, 1 / _OUTLIER), _OUTLIER)
        self._times[number] = known * (1.0 + max(_RATE, 1.0 / seen) * (ratio - 1.0))
        least = min(self._seen.get(each, 0) for each in self._running.numbers)
        if not least:  # a worker that has run no batch is not compared
            return False
        times = [self._times.get(each, 1.0) for each in self._running.numbers]
        mean = math.exp(sum(map(math.log, times)) / len(times))
        for each in self._times:
            self._times[each] /= mean
        self.is_unequal = max(times) > _UNEQUAL * min(times)
        return self.is_unequal != was_unequal

    @property
    def speeds(self) -> tuple[float, ...]:
        """The slowness of each worker: how many times as long as usual its batches take."""
        return tuple(self.times(number) for number in self._running.numbers)

    def faster_power(self) -> float:
        """The workers that are faster than the next free one, in workers of the usual speed."""
        slow = self.times(self.next_worker())
        times = (self.times(number) for number in self._running.numbers)
        return sum(1.0 / each for each in times if each * _UNEQUAL < slow)

    def better_at(self, now: float, batch_s: float, batches: int, waited_s: float) -> float:
        """When to ask again, if the waiting batches are better left to the busy workers.

        In the past if the free worker should take the first batch, which has waited for `waited_s`.
        It should if that makes the longest wait shorter: the first batch then ends when the free
        worker is done with it. Otherwise the last of `batches` ends when the busy workers are done
        with all of them.
        """
        ends = {batch.worker: _end(batch, now) for batch in self._running.batches.values()}
        if not ends:
            return -math.inf
        first_at, first_end, end = min(ends.values()), math.inf, now
        for _ in range(min(batches, _FAR * len(self._running.numbers))):
            worker = min(ends, key=lambda each: ends[each] + self.times(each) * batch_s)
            end = ends[worker] = ends[worker] + self.times(worker) * batch_s
            first_end = min(first_end, end)
        longest_s = max(waited_s + first_end - now, end - now)
        alone_s = waited_s + self.times(self.next_worker()) * batch_s
        return -math.inf if alone_s < longest_s else first_at


def _end(batch: Batch, now: float) -> float:
    """The predicted end of a running batch; if it is overdue, a little later than now."""
    ran_s = now - batch.fired_at
    return now + max((batch.predicted_s or 0.0) - ran_s, _OVERDUE * ran_s)
