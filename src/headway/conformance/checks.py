"""A check of one clause of the specification, and its outcome."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

Asked = TypeVar("Asked")


class ClauseOutcome(Enum):
    KEPT = "kept"
    BROKEN = "BROKEN"
    NOT_OFFERED = "not offered"
    NOT_JUDGED = "not judged"


class ClauseBroken(Exception):
    """The server does not do what the clause says."""


class NotOffered(Exception):
    """The clause is about something that this server does not claim to have."""


class NotJudged(Exception):
    """What the clause says cannot be seen on this model."""


class Check(NamedTuple, Generic[Asked]):
    clause: str  # the document, and the heading in it
    what: str
    run: Callable[[Asked], str | None]  # what is to be said though the clause is kept


@dataclass(frozen=True, slots=True)
class ReportLine:
    clause: str
    what: str
    outcome: ClauseOutcome
    why: str = ""


def run_all(checks: Iterable[Check[Asked]], asked: Asked) -> Iterator[ReportLine]:
    for clause, what, run in checks:
        try:
            remark = run(asked)
        except ClauseBroken as error:
            yield ReportLine(clause, what, ClauseOutcome.BROKEN, str(error))
        except NotOffered as error:
            yield ReportLine(clause, what, ClauseOutcome.NOT_OFFERED, str(error))
        except NotJudged as error:
            yield ReportLine(clause, what, ClauseOutcome.NOT_JUDGED, str(error))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            yield ReportLine(
                clause, what, ClauseOutcome.BROKEN, f"an answer of another form: {error!r}"
            )
        else:
            yield ReportLine(clause, what, ClauseOutcome.KEPT, remark or "")


def hold(condition: object, otherwise: str) -> None:
    if not condition:
        raise ClauseBroken(otherwise)
