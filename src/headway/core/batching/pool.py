"""The workers of one scheduler: which there are, how fast each is, and when it will be free.

Workers are known by number. They need not be alike (two kinds of GPU, a core that is shared): how
many times as long a batch takes on each is learned from what it took there.
"""

import math
from collections.abc import Mapping, Sequence

from headway.core.items import Batch

_RATE = 0.1  # of each batch goes into its worker's speed
_OUTLIER = 2.0  # one batch counts as if it were no further off than this factor
_UNEQUAL = 1.3  # between the slowest and the fastest: less is noise, and all count as alike


class Pool:
    def __init__(self, workers: int, running: Mapping[int, Batch]) -> None:
        self._running = running
        self._numbers: tuple[int, ...] = tuple(range(workers))
        self._times: dict[int, float] = {}  # by worker: how many times as long a batch takes
        self._is_unequal = False

    def set(self, numbers: Sequence[int]) -> None:
        """These are there now."""
        self._numbers = tuple(numbers)

    def next_worker(self) -> int:
        """The fastest of those that are free."""
        if len(self._numbers) == 1:
            return self._numbers[0]
        busy = {batch.worker for batch in self._running.values()}
        free = [number for number in self._numbers if number not in busy]
        if not self._is_unequal or len(free) < 2:
            return free[0] if free else 0
        return min(free, key=lambda number: (self.times(number), number))

    def times(self, number: int) -> float:
        return self._times.get(number, 1.0) if self._is_unequal else 1.0

    def observe(self, number: int, ratio: float) -> None:
        """A batch took so many times as long as one does on average."""
        if len(self._numbers) < 2:
            return
        known = self._times.get(number, 1.0)
        ratio = min(max(ratio / known, 1 / _OUTLIER), _OUTLIER)
        self._times[number] = known * (1.0 + _RATE * (ratio - 1.0))
        times = [self._times.get(each, 1.0) for each in self._numbers]
        mean = math.exp(sum(map(math.log, times)) / len(times))
        for each in self._times:
            self._times[each] /= mean
        self._is_unequal = max(times) > _UNEQUAL * min(times)

    @property
    def speeds(self) -> tuple[float, ...]:
        """By worker: how many times as long a batch takes."""
        return tuple(self.times(number) for number in self._numbers)

    def faster_power(self) -> float:
        """How many workers of the usual speed those are worth that are faster than the next."""
        slow = self.times(self.next_worker())
        times = (self.times(number) for number in self._numbers)
        return sum(1.0 / each for each in times if each * _UNEQUAL < slow)

    @property
    def is_unequal(self) -> bool:
        return self._is_unequal

    def better_at(self, now: float, batch_s: float) -> float:
        """When a faster worker will be free, and be done before the one that is free now; in the
        past where there is none."""
        slow = self.times(self.next_worker())
        ends = [
            _end(batch)
            for batch in self._running.values()
            if _end(batch) > now
            and _end(batch) + self.times(batch.worker) * batch_s < now + slow * batch_s
        ]
        return min(ends, default=-math.inf)


def _end(batch: Batch) -> float:
    return batch.fired_at + (batch.predicted_s or 0.0)
