"""A batch that failed, run again in groups until everyone has a result or an error of their own.

It names the calls to make and takes what became of them; the job makes them. Units are requests:
parts of one request fail together anyway.
"""

from collections.abc import Sequence
from typing import Any

from headway.core.bisecting import Bisection
from headway.core.items import Batch, units_of
from headway.errors import ModelFailed
from headway.runtime.calls import Answerable
from headway.runtime.faults import WorkerLost
from headway.runtime.runner import BrokenContract


class Reruns:
    def __init__(
        self,
        batch: Batch,
        calls: Sequence[Answerable],
        name: str,
        error: BaseException,
        max_reruns: int,
    ) -> None:
        self.results: list[Any] = [model_failed(name, error) for _ in calls]
        self.count = 0
        self.lost: WorkerLost | None = None
        self._batch = batch
        self._calls = calls
        self._name = name
        self._units = units_of(batch.items)
        self._group: list[int] = []
        self._bisection: Bisection | None = None
        if isinstance(error, WorkerLost):
            self.lost = error
        elif max_reruns and len(self._units) > 1 and not isinstance(error, BrokenContract):
            self._bisection = Bisection(len(self._units), error, max_reruns)

    def next_call(self) -> tuple[list[Any], int] | None:
        """The values and the padded rows of the next call; None: that was all."""
        if self._bisection is None or self.lost is not None:
            return None
        units = self._bisection.next_group()
        if units is None:
            self._blame(self._bisection)
            return None
        self.count += 1
        self._group = [index for unit in units for index in self._units[unit]]
        # The callers' values once more: the first list was the model's, to do with as it liked.
        values = [self._calls[index].value for index in self._group]
        rows = sum(self._batch.items[index].rows for index in self._group)
        fixed = self._batch.padded_rows > self._batch.rows
        return values, self._batch.padded_rows if fixed else rows

    def succeeded(self, results: list[Any]) -> None:
        assert self._bisection is not None
        for index, result in zip(self._group, results, strict=True):
            self.results[index] = result
        self._bisection.succeeded()

    def failed(self, error: BaseException) -> None:
        assert self._bisection is not None
        if isinstance(error, WorkerLost):
            self.lost = error
        else:
            self._bisection.failed(error)

    def _blame(self, bisection: Bisection) -> None:
        for unit, error in bisection.errors.items():
            for index in self._units[unit]:
                self.results[index] = model_failed(self._name, error)


def model_failed(name: str, error: BaseException) -> ModelFailed:
    """One caller's own exception: a shared instance would collect everybody's tracebacks."""
    if isinstance(error, BrokenContract):
        return BrokenContract(str(error))
    failure = ModelFailed(f"{name} raised {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
