"""The messages between the front and the engine's process, as values that travel cheaply.

Most of a step's outputs are plain tokens: they go as two lists of numbers.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from headway.core.generation.limits import EngineLimits
from headway.errors import HeadwayError, ModelFailed
from headway.runtime.generation.loop import Report, SequenceOutput, parted
from headway.runtime.workers.process.failures import Failure, error_of, failure_of


class Welcome(NamedTuple):
    """The engine's first message."""

    limits: EngineLimits
    vocabulary: int
    has_grammars: bool
    computes: str = ""  # how and where, for the log


class PackedReport(NamedTuple):
    numbers: list[int]
    tokens: list[int]
    others: list[tuple[Any, ...]]  # outputs that are more than a token, as tuples
    load: tuple[int, ...]
    returned: tuple[int, Any] | None


def packed(report: Report) -> tuple[Any, ...]:
    plain, outputs = parted(report.outputs)
    others = []
    for sequence, token, logprobs, finished, error, cached in outputs:
        failure = failure_of(error) if error is not None else None
        others.append((sequence, token, logprobs, finished, failure, cached))
    returned = report.returned
    if returned is not None and isinstance(returned[1], BaseException):
        returned = (returned[0], failure_of(returned[1]))
    return *plain, others, tuple(report.load), returned


def others_of(step: PackedReport) -> Iterator[SequenceOutput]:
    for sequence, token, logprobs, finished, failure, cached in step.others:
        error = None if failure is None else _error_of(failure)
        yield SequenceOutput(sequence, token, logprobs, finished, error, cached)


def result_of(returned: Any) -> Any:
    """The result of a call. Raises the error of the call."""
    if isinstance(returned, Failure):
        raise error_of(returned)
    return returned


def _error_of(failure: Failure) -> HeadwayError:
    error = error_of(failure)
    if isinstance(error, HeadwayError):
        return error
    failed = ModelFailed(f"{type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed
