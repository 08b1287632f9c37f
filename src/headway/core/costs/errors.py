"""The errors of recent predictions."""

from collections import deque
from collections.abc import Iterable

_KEPT = 256


class Errors:
    """Relative errors: 0.1 if a batch took 10 % longer than predicted."""

    def __init__(self, errors: Iterable[float] = ()) -> None:
        self._errors: deque[float] = deque(errors, maxlen=_KEPT)
        self._ordered: list[float] = []

    def add(self, error: float) -> None:
        """Add an error. It counts after the next `forget_derived`."""
        self._errors.append(error)

    def forget_derived(self) -> None:
        self._ordered = []

    def at(self, percent: float) -> float:
        """The error at that percentile; 0 while too little is known."""
        ordered = self._ordered
        if not ordered:
            ordered = self._ordered = sorted(self._errors)
        if len(ordered) < 2:
            return 0.0
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
