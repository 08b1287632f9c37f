"""Finds out whether the rows of a tensor model depend on each other, and reacts to it.

A mean over the batch, a softmax along it, a first axis that is not rows: such a model silently
gives a row another answer in a batch than alone. So before traffic it runs made-up rows alone,
beside two different neighbours, and among many. Where an answer changes, every request runs by
itself, its own rows in one call. Where no such rows can be made, its first batches of real requests
are looked at.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from headway.errors import InputTooLarge, InvalidInput
from headway.model import TensorModel
from headway.runtime.calling.samples import SampleRows, are_finite, deciding, differing

DependentRows = Literal["alone", "refuse", "batch"]
Arrays = Mapping[str, Any]

JUDGED = (0, 1)  # contents of the compared rows: the first and the last of a batch
NEIGHBOURS = (3, 5)  # contents of the rows between them; the second has large numbers
# Equal shapes run by the same kernels: the other rows of a batch must not matter at all.
_NEIGHBOUR_SLACK = 1e-2
_SERVING_SLACK = 10.0  # callers' rows have other shapes, alone, and run by other kernels
_MOST_LOOKS = 4


class RowDependence:
    """The verdict on one model; shared by all of its callers."""

    def __init__(self, model: TensorModel) -> None:
        self.samples = SampleRows(model.inputs)
        self.is_alone = False  # one request a run, with all its rows
        self.max_rows: int | None = None  # of one request, if it runs alone …
        self.row_counts: Sequence[int] = ()  # … and the only numbers there may be
        self.revoked: Callable[[Sequence[str]], object] = tuple  # gets the outputs that changed
        self._looks_left = 0

    # ---- before traffic

    def judge(
        self, apart: Sequence[Arrays], together: Sequence[Sequence[Arrays]]
    ) -> "list[str] | None":
        """The outputs of the judged rows that change with the other rows; None: the samples
        are useless, because their answers show nothing."""
        if not are_finite(apart):
            return None
        found: list[str] = []
        for index, alone in enumerate(apart):
            one, other = (batch[index] for batch in together)
            found += differing(one, other, slack=_NEIGHBOUR_SLACK)
            # A class may be another where two are as good as equal: here only numbers count.
            found += differing(deciding(alone), one)
        if not found and not differing(apart[0], apart[1], slack=0.0):
            return None
        return list(dict.fromkeys(found))

    def judge_many(self, few: Sequence[Arrays], many: Sequence[Arrays]) -> list[str]:
        """The outputs of the judged rows that differ between many neighbours and few."""
        found = [
            name
            for one, other in zip(few, many, strict=True)
            for name in differing(deciding(one), other)
        ]
        return list(dict.fromkeys(found))

    def is_steady(self, batch: Sequence[Arrays], again: Sequence[Arrays]) -> bool:
        """Does the same batch give the same answers twice?"""
        pairs = zip(batch, again, strict=True)
        return not any(differing(one, other, slack=_NEIGHBOUR_SLACK) for one, other in pairs)

    # ---- while it serves

    def watch(self) -> None:
        """Undecided: compare in the first batches of real requests."""
        self._looks_left = _MOST_LOOKS

    @property
    def is_watched(self) -> bool:
        return self._looks_left > 0

    def look(self, count: int) -> int:
        """The place in the batch of the request to compare: the last, the first, and so on."""
        self._looks_left -= 1
        return 0 if self._looks_left % 2 == 0 else count - 1

    def differing(self, alone: Arrays, batched: Arrays) -> list[str]:
        """The outputs of one request that differ between running alone and in a batch."""
        return differing(deciding(alone), batched, slack=_SERVING_SLACK)

    def revoke(self, outputs: Sequence[str]) -> None:
        """Every request runs alone from now on."""
        self.is_alone, self._looks_left = True, 0
        self.revoked(outputs)

    def check_rows(self, rows: int) -> None:
        """Check a request that runs alone. Raises InvalidInput, InputTooLarge."""
        if self.row_counts and rows not in self.row_counts:
            counts = " or ".join(map(str, self.row_counts))
            raise InvalidInput(
                f"a request needs {counts} rows, not {rows}: this model's rows depend on each "
                "other, so none can be added"
            )
        if self.max_rows is not None and rows > self.max_rows:
            raise InputTooLarge(
                f"a request has at most {self.max_rows} rows, not {rows}: this model's rows depend "
                "on each other, so it cannot be cut",
                limit=self.max_rows,
            )
