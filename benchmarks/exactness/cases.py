"""What a case is, and how its verdict is found: exact, refused by name, wrong, or a crash."""

import faulthandler
import importlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from headway.errors import HeadwayError

_LIMIT_S = 300.0  # of a case, and of what it imports
Outcome = Literal["exact", "refused", "wrong", "crash"]


class Verdict(NamedTuple):
    outcome: Outcome
    detail: str = ""  # the first difference, or the refusal's own words


EXACT = Verdict("exact")


@dataclass(frozen=True, slots=True)
class Case:
    """One model, file or text.

    `run` gets an empty folder to build in. It compares with the library and returns a verdict; a
    `HeadwayError` that it lets through is a refusal, every other exception is a crash.
    """

    group: str
    name: str
    run: Callable[[Path], Verdict]
    # A refusal is right for what we do not support, and a regression for what we do.
    expected: Literal["exact", "refused", "either"] = "either"
    refusal: str = ""  # words that a refusal must contain: what is refused, by its name
    is_short: bool = False  # runs in the short form, too


def verdict_by_name(group: str, name: str) -> Verdict:
    """In a process of its own, which ends where the case takes too long."""
    cases: list[Case] = importlib.import_module(f"benchmarks.exactness.{group}").cases()
    case = next(each for each in cases if each.name == name)
    faulthandler.dump_traceback_later(_LIMIT_S, exit=True)
    with tempfile.TemporaryDirectory() as folder:
        verdict = verdict_of(case, Path(folder))
    faulthandler.cancel_dump_traceback_later()
    return verdict


def verdict_of(case: Case, folder: Path) -> Verdict:
    try:
        return case.run(folder)
    except HeadwayError as error:
        if case.refusal not in str(error):
            return Verdict("crash", f"refused without naming {case.refusal!r}: {error}")
        return Verdict("refused", str(error))
    except Exception as error:  # noqa: BLE001 - whatever a library or we raise is the finding
        return Verdict("crash", f"{type(error).__name__}: {error}")


def is_right(case: Case, verdict: Verdict) -> bool:
    if verdict.outcome not in ("exact", "refused"):
        return False
    return case.expected in ("either", verdict.outcome)
