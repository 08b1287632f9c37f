"""Lines from a file, one at a time, however long the file or a line is; or in parts of whole
lines."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from headway.errors import ConfigError

MAX_LINE_BYTES = 64 * 2**20
PART_LINES = 4096  # enough to compose batches from
PART_BYTES = 2**20
_HEAD_BYTES = 2**20  # of the file: enough to tell two files apart


@dataclass(frozen=True, slots=True)
class InputLine:
    number: int  # from 1, blank lines counted
    text: bytes | None  # None: it is longer than MAX_LINE_BYTES
    end: int  # where the next line begins, in bytes

    @property
    def is_cut(self) -> bool:
        """The input ended here, without a newline: it may be the last line, or the begin of one."""
        return self.text is not None and not self.text.endswith(b"\n")


@dataclass(frozen=True, slots=True)
class FileHead:
    """How a file begins: a file that grows keeps its head, another file has another one."""

    size_bytes: int
    sha256: str


def lines_of(
    file: BinaryIO, *, after: int = 0, max_bytes: int = MAX_LINE_BYTES
) -> Iterator[InputLine]:
    """The lines that are not blank, from the one after line `after`. Raises ConfigError if there is
    no such line. Text written meanwhile after a last line without a newline is not read."""
    number, end, text = 0, 0, b"\n"
    while text.endswith(b"\n") and (text := file.readline(max_bytes + 1)):
        number += 1
        end += len(text)
        is_whole = len(text.rstrip(b"\n")) <= max_bytes
        if not is_whole:
            text, skipped = _skip_line(file, text, max_bytes)
            end += skipped
        if number <= after:
            continue
        if not is_whole:
            yield InputLine(number, None, end)
        elif text.strip():
            yield InputLine(number, text, end)
    if number < after:
        raise ConfigError(f"the input has {number} lines; the output already has line {after}")


def head_of(path: Path, size_bytes: int | None = None) -> FileHead:
    """The first bytes of a file; as many as another head has, to compare them."""
    try:
        with path.open("rb") as file:
            start = file.read(_HEAD_BYTES if size_bytes is None else size_bytes)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    return FileHead(len(start), hashlib.sha256(start).hexdigest())


def _skip_line(file: BinaryIO, text: bytes, max_bytes: int) -> tuple[bytes, int]:
    """Read on to the end of a line that is too long: its last part, and how many bytes that was."""
    skipped = 0
    while text and not text.endswith(b"\n"):
        text = file.readline(max_bytes)
        skipped += len(text)
    return text, skipped


# ---- the lines in parts, where several programs work on one file


@dataclass(frozen=True, slots=True)
class FilePart:
    begin: int  # in bytes
    end: int
    before: int  # lines of the file before its first one


def parts_of(
    path: Path, *, after: int = 0, most_lines: int = PART_LINES, most_bytes: int = PART_BYTES
) -> Iterator[FilePart]:
    """The lines from the one after line `after`. Raises ConfigError if there is no such line."""
    with path.open("rb") as file:
        begin = before = 0
        last: InputLine | None = None
        for line in lines_of(file, after=max(0, after - 1)):
            if line.number <= after:
                begin, before = line.end, line.number
                continue
            last = line
            if line.number - before >= most_lines or line.end - begin >= most_bytes:
                yield FilePart(begin, line.end, before)
                begin, before, last = line.end, line.number, None
        if before < after:
            raise ConfigError(f"the input has fewer lines than the output, which has line {after}")
        if last is not None:
            yield FilePart(begin, last.end, before)


def lines_of_part(path: Path, part: FilePart) -> Iterator[InputLine]:
    with path.open("rb") as file:
        file.seek(part.begin)
        for line in lines_of(file):
            end = part.begin + line.end
            yield replace(line, number=part.before + line.number, end=end)
            if end >= part.end:
                return
