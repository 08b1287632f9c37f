"""Sizes stay readable: a function fits on a screen, a class and a file in one's head."""

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "headway"
MOST_LINES = {"function": 60, "class": 400, "file": 500}
GENERATED = "_pb2.py"


def test_functions_classes_and_files_are_no_larger_than_agreed() -> None:
    larger = {name for name, kind, lines in _sizes() if lines > MOST_LINES[kind]}
    assert larger == set(), "look for the noun that is missing"


def _sizes() -> Iterator[tuple[str, str, int]]:
    """Each file, class and function: what it is called here, its kind and its lines."""
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name.endswith(GENERATED):
            continue
        text, name = path.read_text(encoding="utf-8"), path.relative_to(SOURCE).as_posix()
        yield f"{name} file", "file", text.count("\n")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                kind = "class" if isinstance(node, ast.ClassDef) else "function"
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                yield f"{name} {kind} {node.name}", kind, lines
