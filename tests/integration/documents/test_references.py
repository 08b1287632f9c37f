"""The references that are written from the code are what the code would write now."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[3] / "docs" / "reference"


def generator() -> Any:
    spec = importlib.util.spec_from_file_location("generate", FOLDER / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["http.md", "cli.md", "headway-toml.md"])
def test_a_reference_is_current(name: str) -> None:
    written = generator().references()[name]
    assert (FOLDER / name).read_text() == written, "run: python docs/reference/generate.py"


def test_every_route_is_explained() -> None:
    rows = [line for line in generator().http().splitlines() if line.startswith("| `")]
    assert len(rows) > 70
    assert [row for row in rows if row.endswith("|  |")] == []
