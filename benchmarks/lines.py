"""How many lines of code there are, room by room, at two commits: without blanks, comments,
docstrings and generated files.

    python -m benchmarks.lines OLD [NEW]

NEW is the working tree unless it is given. A room is a folder of `src/headway`.
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

SOURCES = "src/headway"
_NOT_CODE = frozenset(
    [
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
        tokenize.ENDMARKER,
    ]
)
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", help="a commit")
    parser.add_argument("new", nargs="?", help="another; default: the files as they are")
    given = parser.parse_args()
    old, new = lines_by_room(given.old), lines_by_room(given.new)
    print(f"{'room':<34}{'old':>8}{'new':>8}")
    for room in sorted(old | new):
        print(f"{room:<34}{old[room]:>8}{new[room]:>8}")
    print(f"{'all':<34}{old.total():>8}{new.total():>8}")


def lines_by_room(commit: str | None) -> Counter[str]:
    found: Counter[str] = Counter()
    for path, text in _files(commit).items():
        if not path.endswith("_pb2.py"):
            found[_room(path)] += code_lines(text)
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
    inner = path.removeprefix(f"{SOURCES}/")
    room, is_folder, _ = inner.partition("/")
    return room if is_folder else "(files)"


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
