"""ARCHITECTURE.md is true: its files exist, its names are defined, its table is the tests' own."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from test_imports import TABLE

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headway"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
PATH = re.compile(r"[\w.]+(?:/[\w.]+)+/?|\w+/|\w+\.(?:py|md|toml)")
NAME = re.compile(r"(?:(\w+)\.)?(\w+)")


def quoted(text: str) -> list[str]:
    """What stands in backticks, outside of code blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.M))


def paths(line: str) -> Iterator[Path]:
    """The files and folders that a line names. One without a folder is beside the one before it."""
    before = SOURCE
    for each in quoted(line):
        if PATH.fullmatch(each):
            found = [base / each for base in (ROOT, SOURCE, before) if (base / each).exists()]
            yield found[0] if found else SOURCE / each
            if found:
                before = found[0] if found[0].is_dir() else found[0].parent


def walked() -> list[str]:
    (block,) = re.findall(r"^### The walk.*?^```text\n(.*?)^```", TEXT, re.DOTALL | re.M)
    return re.findall(r"^ +([\w/]+\.py) ", block, re.M)


def test_every_file_and_folder_it_names_exists() -> None:
    named = [path for line in TEXT.splitlines() for path in paths(line)]
    named += [SOURCE / each for each in walked()]
    assert len(named) > 100
    assert [str(path) for path in named if not path.exists()] == []


def test_every_class_and_function_it_names_is_defined() -> None:
    defined = set(_definitions())
    body = TEXT.partition("## The packages")
    rows = body[2].partition("## Where do I add")[2]
    wanted = [NAME.fullmatch(each) for each in quoted(body[0] + rows)]
    names = [each for each in wanted if each is not None and _is_ours(each[2], each[1])]
    assert len(names) > 60
    assert [each[0] for each in names if not {each[2], each[1] or each[2]} <= defined] == []


def test_every_row_of_its_table_says_what_the_tests_allow() -> None:
    (rows,) = re.findall(r"^\|---\|---\|---\|---\|\n(.*?)\n\n", TEXT, re.DOTALL | re.M)
    told = {}
    for row in rows.splitlines():
        package, _, headway, _ = [cell.strip() for cell in row.strip("|").split(" | ")]
        told[package.strip("`")] = {"*"} if headway == "everything" else set(quoted(headway))
    held = {name: set(row.headway) for name, row in TABLE.items() if name != "__init__"}
    assert {name: each - {"errors"} for name, each in told.items()} == held


def _is_ours(name: str, owner: str | None) -> bool:
    """Classes, constants, methods, and functions of two words: one word may be anything."""
    looks = owner is None and ("_" in name or name[:1].isupper())
    return looks or bool(owner and owner[:1].isupper())


def _definitions() -> Iterator[str]:
    for path in (*SOURCE.rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                    yield name
                case ast.AsyncFunctionDef(name=name):
                    yield name
                case ast.Name(id=name, ctx=ast.Store()):
                    yield name
                case ast.Attribute(attr=name, ctx=ast.Store()):
                    yield name
