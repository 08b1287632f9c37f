"""What a benchmark answers with: a table, what was asked, and whether it was reached.

RESULTS.md keeps the table, or, of a benchmark of a single part, one row for each figure asked for.
"""

import datetime
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure that was asked for."""

    asked: str
    value: str
    reached: bool


@dataclass(frozen=True, slots=True)
class Report:
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    bars: Sequence[Bar]
    notes: Sequence[str] = field(default_factory=list)
    kept: int | None = None  # RESULTS.md keeps this many rows, the first ones; None: all

    def to_markdown(self, most: int | None = None) -> str:
        lines = [f"### {self.title}", "", _line(self.header), _line(["---"] * len(self.header))]
        lines += [_line(row) for row in self.rows[:most]]
        lines += ["", *self._as_asked()]
        lines += [f"- {note}" for note in self.notes]
        return "\n".join(lines) + "\n"

    def to_rows(self, how: str) -> list[str]:
        """A row for each figure asked for; the first has the title."""
        titles = [self.title, *[""] * len(self.bars)]
        return [
            _line(
                [title, bar.asked, bar.value + ("" if bar.reached else " (**not reached**)"), how]
            )
            for title, bar in zip(titles, self.bars, strict=False)
        ]

    def _as_asked(self) -> Iterator[str]:
        for mark, is_reached in (("reached", True), ("**not reached**", False)):
            bars = [bar for bar in self.bars if bar.reached == is_reached]
            if bars:
                told = "; ".join(f"{bar.asked} (measured: {bar.value})" for bar in bars)
                yield f"- asked and {mark}: {told}"


Benchmark: TypeAlias = Callable[[bool], Report]  # the argument: a quick run


def machine() -> str:
    system = f"{platform.system()} {platform.release()}"
    return f"{machine_in_short()}, {system}, Python {platform.python_version()}"


def machine_in_short() -> str:
    model = "unknown CPU"
    try:
        with open("/proc/cpuinfo") as file:
            model = next(line.split(": ")[1].strip() for line in file if "model name" in line)
    except (OSError, StopIteration):
        pass
    today = datetime.datetime.now(datetime.UTC).date()
    return f"{today}, {model}, {os.cpu_count()} cores"


def _line(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"
