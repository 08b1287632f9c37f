"""Who broke the batch? Halve, rerun, and only the culprit fails.

Pure bookkeeping: it names the next group to run and takes what became of it. The number of reruns
is bounded; past the bound, whoever is not cleared shares the last error.
"""

from collections.abc import Sequence

MAX_RERUNS = 16  # finds one culprit among 256 (2 × log2), or a few among 64


class Bisection:
    """Give it the units of a failed batch: things that run, and fail, as one."""

    def __init__(self, units: int, error: BaseException, max_reruns: int = MAX_RERUNS) -> None:
        self.errors: dict[int, BaseException] = {}  # by unit, once known
        self._reruns_left = max_reruns
        self._suspects: list[tuple[range, BaseException]] = []
        self._running = range(0)
        self._split(range(units), error)

    def next_group(self) -> Sequence[int] | None:
        """The units to run together next; None when everyone's case is settled."""
        if self._suspects and self._reruns_left == 0:
            self._give_up()
        if not self._suspects:
            return None
        self._reruns_left -= 1
        self._running, _ = self._suspects.pop()
        return self._running

    def succeeded(self) -> None:
        """The group ran: its units are cleared."""
        self._running = range(0)

    def failed(self, error: BaseException) -> None:
        self._split(self._running, error)

    def _split(self, group: range, error: BaseException) -> None:
        if len(group) <= 1:
            self.errors.update((unit, error) for unit in group)
            return
        middle = len(group) // 2
        self._suspects.append((group[middle:], error))
        self._suspects.append((group[:middle], error))

    def _give_up(self) -> None:
        for group, error in self._suspects:
            self.errors.update((unit, error) for unit in group)
        self._suspects.clear()
