"""A large file as parts of whole lines, for whoever works on several of them at once."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from headway.errors import ConfigError
from headway.offline.lines import InputLine, lines_of

PART_LINES = 4096  # enough to compose batches from
PART_BYTES = 2**20


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
