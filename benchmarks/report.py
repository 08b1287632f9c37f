"""What a benchmark answers with: a table, what was asked, and whether it was reached."""

import datetime
import os
import platform
from collections.abc import Callable, Sequence
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

    def to_markdown(self) -> str:
        lines = [f"### {self.title}", "", _line(self.header), _line(["---"] * len(self.header))]
        lines += [_line(row) for row in self.rows]
        lines.append("")
        for bar in self.bars:
            mark = "reached" if bar.reached else "**not reached**"
            lines.append(f"- asked: {bar.asked}; measured: {bar.value} ({mark})")
        lines += [f"- {note}" for note in self.notes]
        return "\n".join(lines) + "\n"


Benchmark: TypeAlias = Callable[[bool], Report]  # the argument: a quick run


def machine() -> str:
    model = "unknown CPU"
    try:
        with open("/proc/cpuinfo") as file:
            model = next(line.split(": ")[1].strip() for line in file if "model name" in line)
    except (OSError, StopIteration):
        pass
    today = datetime.datetime.now(datetime.UTC).date()
    return (
        f"{today}, {model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}"
    )


def _line(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"
