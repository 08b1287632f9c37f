"""The table of tests/README.md names tests that exist, and none of its rows is empty."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = (TESTS / "README.md").read_text().partition("| what a newcomer does")
ROWS = [line.split("|")[1:3] for line in "".join(TABLE[1:]).splitlines() if line.startswith("| ")]


def named_in(cell: str) -> list[tuple[str, str]]:
    """Files and tests; `::name` alone is of the file before."""
    found, file = [], ""
    for text in re.findall(r"`([^`]+)`", cell):
        path, _, name = text.partition("::")
        file = path or file
        found.append((file, name))
    return found


def test_each_step_of_the_first_hour_is_held_by_tests_that_exist() -> None:
    steps = [(what.strip(), named_in(cell)) for what, cell in ROWS][1:]
    assert len(steps) >= 22
    for what, tests in steps:
        assert tests, what
        for file, name in tests:
            tree = ast.parse((TESTS / file).read_text())
            names = {
                each.name
                for each in ast.walk(tree)
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            assert name in names, f"{file} has no {name}"
