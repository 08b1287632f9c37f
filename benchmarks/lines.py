"""How many lines the sources have, room by room, without generated files: all lines, and those of
code (no blanks, comments and docstrings).

    python -m benchmarks.lines [OLD [NEW]]

OLD and NEW are commits. Without NEW: the working tree; without OLD, too: the working tree alone.
A room is a folder of `src/headway`, and in large packages a folder of those.
"""

import argparse
import ast
import io
import subprocess
import tarfile
import tokenize
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

SOURCES = "src/headway"
LARGE = ("core", "engine", "hosting", "models", "runtime", "server", "wire")
_NOT_CODE = frozenset(
    [
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
        tokenize.ENDMARKER,
    ]
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Lines(NamedTuple):
    every: Counter[str]
    code: Counter[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", nargs="?", help="a commit")
    parser.add_argument("new", nargs="?", help="another; default: the files as they are")
    given = parser.parse_args()
    new = lines_by_room(given.new)
    old = new if given.old is None else lines_by_room(given.old)
    rooms = sorted(old.every | new.every)
    print(f"{'room':<26}{'lines, old':>12}{'new':>8}{'code, old':>12}{'new':>8}")
    for room in rooms:
        figures = old.every[room], new.every[room], old.code[room], new.code[room]
        print(_row(room, *figures))
    totals = old.every.total(), new.every.total(), old.code.total(), new.code.total()
    print(_row("all", *totals))


def _row(room: str, *figures: int) -> str:
    every, of_new, code, of_new_code = figures
    return f"{room:<26}{every:>12}{of_new:>8}{code:>12}{of_new_code:>8}"


def lines_by_room(commit: str | None) -> Lines:
    found = Lines(Counter(), Counter())
    for path, text in _files(commit).items():
        if "_pb2" not in path:
            room = _room(path)
            found.every[room] += text.count("\n")
            found.code[room] += code_lines(text)
    return found


def code_lines(text: str) -> int:
    documentation: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            documentation.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOT_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - documentation)


def _room(path: str) -> str:
    *folders, _ = path.removeprefix(f"{SOURCES}/").split("/")
    depth = 2 if folders and folders[0] in LARGE else 1
    return "/".join(folders[:depth]) or "(files)"


def _files(commit: str | None) -> Mapping[str, str]:
    if commit is None:
        return {str(path): path.read_text() for path in Path(SOURCES).rglob("*.py")}
    packed = subprocess.run(
        ["git", "archive", "--format=tar", commit, SOURCES], capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return {
            member.name: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive
            if member.isfile() and member.name.endswith(".py")
        }


if __name__ == "__main__":
    main()
