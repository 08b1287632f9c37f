"""Who broke the batch? Halve, rerun, and only the culprit fails.

Pure bookkeeping: it names the next group to run and takes its outcome. The number of reruns is
bounded; after that, the remaining suspects all get the last error. Running out of memory is no
item's fault: such groups are halved until they fit, without a bound on reruns (each failure halves
the group, each success clears an item).
"""

from collections.abc import Sequence
from typing import NamedTuple

MAX_RERUNS = 16  # finds one culprit among 256 (2 × log2), or a few among 64


class _Suspects(NamedTuple):
    units: range
    error: BaseException
    too_many: bool  # they only ran out of memory together


class Bisection:
    """Give it the units of a failed batch: things that run, and fail, as one."""

    def __init__(
        self,
        units: int,
        error: BaseException,
        max_reruns: int = MAX_RERUNS,
        *,
        out_of_memory: bool = False,
    ) -> None:
        self.errors: dict[int, BaseException] = {}  # by unit, once known
        self._all = self._most = units  # `_most`: units that may run together
        self._reruns_left = max_reruns
        self._suspects: list[_Suspects] = []
        self._running = range(units)
        self.failed(error, out_of_memory=out_of_memory)

    def next_group(self) -> Sequence[int] | None:
        """The units to run together next; None when every case is settled."""
        while self._suspects:
            units, error, too_many = self._suspects.pop()
            if not too_many and not self._reruns_left:
                self.errors.update((unit, error) for unit in units)
                continue
            if not too_many:
                self._reruns_left -= 1
            if len(units) > self._most:
                self._suspects.append(_Suspects(units[self._most :], error, too_many=True))
            self._running = units[: self._most]
            return self._running
        return None

    def succeeded(self) -> None:
        """The group ran: its units are cleared."""
        self._running = range(0)

    def failed(self, error: BaseException, *, out_of_memory: bool = False) -> None:
        group = self._running
        middle = len(group) // 2
        if out_of_memory:
            # If one unit alone does not fit, the number of units was not the cause.
            self._most = middle or self._all
        if not middle:
            self.errors.update((unit, error) for unit in group)
            return
        self._suspects.append(_Suspects(group[middle:], error, out_of_memory))
        self._suspects.append(_Suspects(group[:middle], error, out_of_memory))
