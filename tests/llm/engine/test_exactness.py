"""The short form of `python -m benchmarks.exactness`: exact, or refused by name."""

import importlib
import importlib.util
from pathlib import Path

import pytest
from benchmarks.exactness.__main__ import GROUPS
from benchmarks.exactness.cases import Case, is_right, verdict_of

_THERE = [
    group
    for group in GROUPS
    if importlib.util.find_spec(f"benchmarks.exactness.{group}") is not None
]


def short_cases() -> list[Case]:
    modules = (importlib.import_module(f"benchmarks.exactness.{group}") for group in _THERE)
    return [case for module in modules for case in module.cases() if case.is_short]


@pytest.mark.filterwarnings("default")  # the libraries' own are no finding
@pytest.mark.parametrize("case", [pytest.param(each, id=each.name) for each in short_cases()])
def test_a_tiny_model_is_exact_or_refused_by_name(case: Case, tmp_path: Path) -> None:
    verdict = verdict_of(case, tmp_path)
    assert is_right(case, verdict), verdict
