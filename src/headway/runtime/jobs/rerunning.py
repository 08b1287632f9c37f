"""A batch that failed, run again in groups until each item has a result or an error of its own.

It names the calls to make and takes their outcomes; the job makes them.
"""

import re
from collections.abc import Sequence
from typing import Any

from headway.core.faults.bisecting import Bisection
from headway.core.faults.fitting import Misfit
from headway.core.items import Batch
from headway.errors import HeadwayError, ModelFailed, RequestError, Unavailable
from headway.runtime.calling.faults import (
    UnreadableError,
    WorkerLost,
    is_out_of_memory,
    name_of,
    readable,
    release_memory,
    text_of,
)
from headway.runtime.calling.runner import BrokenContract, ModelRunner
from headway.runtime.driving.calls import Answerable

_TAKES_LIST_FOR_ITEM = re.compile(r"list indices must|'list' object has no|'list' and |, not list$")


class Reruns:
    def __init__(
        self,
        batch: Batch,
        calls: Sequence[Answerable],
        name: str,
        error: BaseException,
        max_reruns: int,
        *,
        runner: ModelRunner | None = None,
        batch_sizes: Sequence[int] = (),
    ) -> None:
        """`error`: what the whole batch failed with. Every item has it until it has run again."""
        error = readable(error)
        self._has_own = {0} if len(calls) == 1 else set[int]()  # items that failed alone
        self.results: list[Any] = own_errors(name, error, len(calls), is_alone=bool(self._has_own))
        self.count = 0
        self.lost: WorkerLost | None = None
        self.ran_out_of_memory = False
        self._smallest_misfit: Misfit | None = None
        self._one_row_too_many = False
        self._batch = batch
        self._calls = calls
        self._name = name
        self._runner = runner  # None: requests cannot be cut
        self._batch_sizes = batch_sizes
        self.group = list(range(len(calls)))  # the items that ran last
        self._pieces: _Pieces | None = None  # of a request that did not fit even alone
        self._bisection: Bisection | None = None
        # What can be run again: several items in smaller groups, a lone one in fewer rows.
        out_of_memory = is_out_of_memory(error)
        if isinstance(error, WorkerLost):
            self.lost = error
        elif out_of_memory:
            self._note_misfit(error)
        if max_reruns and not isinstance(error, WorkerLost | BrokenContract):
            if len(calls) > 1:
                self._bisection = Bisection(
                    len(calls), error, max_reruns, out_of_memory=out_of_memory
                )
            elif out_of_memory:
                self._cut()

    @property
    def misfit(self) -> Misfit | None:
        """None also if a single row did not fit: then the number of rows was not the cause."""
        return None if self._one_row_too_many else self._smallest_misfit

    def next_call(self) -> tuple[list[Any], int] | None:
        """The values and the padded rows of the next call; None: no call is left."""
        if self.lost is not None:
            return None
        if self._pieces is not None:
            return self._call([self._pieces.value()], self._pieces.rows)
        group = self._bisection.next_group() if self._bisection is not None else None
        if group is None:
            self._blame()
            return None
        self.group = list(group)
        # The callers' values once more: the first list was the model's, to do with as it liked.
        values = [self._calls[index].value for index in self.group]
        return self._call(values, self._rows(self.group))

    def succeeded(self, results: list[Any]) -> None:
        if self._pieces is not None:
            self._pieces.keep(results[0])
            if not self._pieces.is_complete:
                return
            results, self._pieces = [self._pieces.joined()], None
        for index, result in zip(self.group, results, strict=True):
            self.results[index] = result
        if self._bisection is not None:
            self._bisection.succeeded()

    def failed(self, error: BaseException) -> None:
        error = readable(error)
        if isinstance(error, WorkerLost):
            self.lost = error
            return
        out_of_memory = is_out_of_memory(error)
        if out_of_memory:
            self._note_misfit(error)
            if self._cut():
                return
        self._pieces = None
        if len(self.group) == 1:
            self._has_own.update(self.group)
        if self._bisection is not None:
            self._bisection.failed(error, out_of_memory=out_of_memory)
        else:
            self._fail(self.group, error)

    # ---- out of memory

    def _note_misfit(self, error: BaseException) -> None:
        release_memory(error)
        self.ran_out_of_memory = True
        rows = self._rows(self.group) if self._pieces is None else self._pieces.rows
        if rows == 1:
            self._one_row_too_many = True
        elif self._smallest_misfit is None or rows < self._smallest_misfit.rows:
            size = max(self._batch.items[index].size for index in self.group)
            self._smallest_misfit = Misfit(self._padded(rows), size)

    def _cut(self) -> bool:
        """Try fewer rows of a request that does not fit. False: there are others, or one row."""
        if self._runner is None or len(self.group) > 1:
            return False
        if self._pieces is None:
            [index] = self.group
            value, rows = self._calls[index].value, self._batch.items[index].rows
            self._pieces = _Pieces(value, rows, self._runner)
        return self._pieces.halve()

    # ---- calls and errors

    def _call(self, values: list[Any], rows: int) -> tuple[list[Any], int]:
        self.count += 1
        return values, self._padded(rows)

    def _rows(self, group: list[int]) -> int:
        return sum(self._batch.items[index].rows for index in group)

    def _padded(self, rows: int) -> int:
        return next((size for size in self._batch_sizes if size >= rows), rows)

    def _blame(self) -> None:
        for index, error in (self._bisection.errors if self._bisection else {}).items():
            self._fail([index], error, is_alone=index in self._has_own)

    def _fail(self, group: list[int], error: BaseException, *, is_alone: bool = False) -> None:
        errors = own_errors(self._name, error, len(group), is_alone=is_alone)
        for index, each in zip(group, errors, strict=True):
            self.results[index] = each


class _Pieces:
    """One request, cut by rows until they fit. They run one at a time, in order."""

    def __init__(self, value: Any, rows: int, runner: ModelRunner) -> None:
        self._value = value
        self._all_rows = rows
        self._runner = runner
        self._todo = [(0, rows)]  # from which row, and up to which
        self._results: list[Any] = []

    @property
    def rows(self) -> int:
        """The rows of the next piece; 0: there is none."""
        return self._todo[0][1] - self._todo[0][0] if self._todo else 0

    @property
    def is_complete(self) -> bool:
        return not self._todo

    def value(self) -> Any:
        if self.rows == self._all_rows:
            return self._value
        return self._runner.cut(self._value, *self._todo[0])

    def halve(self) -> bool:
        if self.rows == 1:
            return False
        start, stop = self._todo[0]
        middle = (start + stop) // 2
        self._todo[:1] = [(start, middle), (middle, stop)]
        return True

    def keep(self, result: Any) -> None:
        self._todo.pop(0)
        self._results.append(result)

    def joined(self) -> Any:
        return self._results[0] if len(self._results) == 1 else self._runner.join(self._results)


def own_errors(
    name: str, error: BaseException, count: int, *, is_alone: bool
) -> list[HeadwayError]:
    """The error for each caller. An error of ours that the model raised for this request alone
    (`raise headway.InvalidInput`) is the request's own; for a batch of several, the culprit is
    unknown. The text, which may take its time, is made once."""
    if is_alone and isinstance(error, RequestError | Unavailable):
        return [error] * count
    first = model_failed(name, error)
    return [first, *(_same(first) for _ in range(count - 1))]


def _same(failure: ModelFailed) -> ModelFailed:
    """One caller's own exception: a shared instance would collect all callers' tracebacks."""
    same = ModelFailed(*failure.args)
    same.__cause__ = failure.__cause__
    return same


def model_failed(name: str, error: BaseException) -> ModelFailed:
    """The ModelFailed for callers. Its text says if the model broke its contract."""
    error = readable(error)
    if isinstance(error, BrokenContract):
        return ModelFailed(str(error))
    if isinstance(error, UnreadableError):  # its text begins with the original error's name
        failure = ModelFailed(f"{name} raised {error}")
    else:
        text = text_of(error)
        failure = ModelFailed(f"{name} raised {name_of(error)}: {text}{_advice(error, text)}")
    failure.__cause__ = error
    return failure


def unusable(name: str, error: BaseException) -> ModelFailed:
    """The error for a result that cannot be read, or with parts that cannot be joined."""
    failure = ModelFailed(f"{name} returned an unusable result: {name_of(error)}: {text_of(error)}")
    failure.__cause__ = readable(error)
    return failure


def _advice(error: BaseException, text: str) -> str:
    """A hint for a common mistake: a model written for one request per call."""
    if isinstance(error, TypeError | AttributeError) and _TAKES_LIST_FOR_ITEM.search(text):
        return " (predict is given a list of items; headway.single(…) is for one at a time)"
    return ""
