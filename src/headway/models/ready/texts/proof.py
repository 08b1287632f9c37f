"""A network proves itself before it answers: each of a few texts of made-up tokens, in company as
when it serves, gives what the library's own forward gives for that text alone.

Networks whose batches differ by nature (no mask, buckets by the batch's length) are served one
length at a time, or one text at a time. The result is kept in the cache folder, by a hash of
the configuration, the tokenizer and all that computes it: weights do not change what is computed.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy

from headway.errors import ConfigError
from headway.files import ProofNote

Array = numpy.ndarray[Any, Any]
Together = Literal["any", "one length", "one text"]

MOST = 2e-3  # of the largest number, and of 1
_NOISE = 4.0  # times by which half precision alone differs from float32
LENGTHS = (7, 17, 40)  # of the texts in company, beside the shortest that there can be
LONG = 136  # of one text in company: more than the window that attention has in most networks

_log = logging.getLogger(__name__)


class Difference(NamedTuple):
    """The first one that was found."""

    tokens: int  # of the text
    says: str


def companies(count: int) -> list[list[int]]:
    """Places of texts, the shortest first and the longest last: all but that one, and these two."""
    return [[*range(count - 1)], [0, count - 1]] if count > 1 else [[0]]


def find_together(
    run: Callable[[list[int], Together], Sequence[Array]],
    alone: Sequence[Array],
    bounds: Sequence[float],
    where: Path,
) -> Together:
    """Which texts may share a batch. `run` computes those at the places. Raises ConfigError."""
    first: Difference | None = None
    for together in get_args(Together):
        found = _difference(run, alone, bounds, together)
        if found is None:
            if first is not None:
                _log.info("%s: a text of %d tokens %s", where, first.tokens, first.says)
            known: Together = together
            return known
        first = first or found
    assert first is not None
    raise ConfigError(f"{where}: a text of {first.tokens} tokens {first.says}, even by itself")


def _difference(
    run: Callable[[list[int], Together], Sequence[Array]],
    alone: Sequence[Array],
    bounds: Sequence[float],
    together: Together,
) -> Difference | None:
    for places in companies(len(alone)):
        try:
            rows = run(places, together)
        except Exception as error:  # noqa: BLE001  the library's own, of many kinds
            return Difference(len(alone[places[0]]), f"cannot be computed in company: {error}")
        for place, row in zip(places, rows, strict=True):
            expected = alone[place]
            error_of = distance(row, expected)
            if not error_of <= bounds[place]:
                return Difference(
                    len(expected),
                    f"gives other numbers than the library's own forward: by {error_of:.2g}, "
                    f"where {bounds[place]:.2g} is rounding",
                )
    return None


def distance(row: Array, expected: Array) -> float:
    """The largest difference; infinite where one is no number."""
    if row.shape != expected.shape or not numpy.isfinite(expected).all():
        return float("inf")
    difference = numpy.abs(row.astype(numpy.float64) - expected)
    return float(difference.max(initial=0.0)) if numpy.isfinite(difference).all() else float("inf")


def bounds_of(alone: Sequence[Array], in_float32: Sequence[Array]) -> list[float]:
    """How far an answer may be off: by rounding alone; in half precision, by what that is off."""
    return [
        MOST * max(1.0, float(numpy.abs(own).max(initial=0.0))) + _NOISE * distance(own, exact)
        for own, exact in zip(alone, in_float32, strict=True)
    ]


def tell(together: Together, where: Path) -> Together:
    """Log at every start whether a text's answer changes with the batch."""
    if together != "any":
        _log.warning(
            "%s: its result for a text changes with the batch, so it is served %s at a time",
            where,
            together,
        )
    return together


# ---- earlier proofs


def note_of(files: Iterable[Path], *parts: object) -> ProofNote:
    """The note that says which network, code and `parts` a proof holds for."""
    code = ("encoders", "opening", "packed", "proof")
    return ProofNote([*files, *(Path(__file__).with_name(f"{name}.py") for name in code)], *parts)


def noted(note: ProofNote) -> Together | None:
    found = note.read()
    return next((each for each in get_args(Together) if each == found), None)
