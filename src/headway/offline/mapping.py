"""Runs every line through the model, many at a time; writes the answers in the order of the lines.

It knows neither models nor files: `answer` turns a line's value into its result as JSON. The lines
read ahead are bounded in number and bytes, so files may be larger than memory.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import msgspec

from headway.errors import HeadwayError, InputTooLarge, InvalidInput, ModelFailed, RequestError
from headway.offline.lines import MAX_LINE_BYTES, InputLine

Answer: TypeAlias = Callable[[Any], Awaitable[bytes]]  # of one value: its result, as JSON
MAX_HELD_BYTES = 64 * 2**20
_FORMS = 'such as "a text", 3 or {"x": 1}'


@dataclass(slots=True)
class Tally:
    """Counts of written lines."""

    SHOWN: ClassVar[int] = 10  # first errors
    lines: int = 0
    failed: int = 0
    end: int = 0  # in bytes of the input
    first_errors: list[tuple[int, str]] = field(default_factory=list)  # line and message
    gave_up: bool = False  # more lines failed than are allowed

    def count(self, made: "_Made") -> None:
        self.lines += 1
        self.end = made.end
        if made.error is None:
            return
        self.failed += 1
        if len(self.first_errors) < self.SHOWN:
            self.first_errors.append((made.line, made.error))


@dataclass(frozen=True, slots=True)
class _Made:
    line: int
    end: int
    record: bytes
    error: str | None = None
    is_cut: bool = False


async def map_lines(
    lines: Iterator[InputLine],
    answer: Answer,
    write: Callable[[bytes], None],
    *,
    ahead: int,
    max_errors: int | None = None,
    failed_before: int = 0,
    cut: Callable[[int, int], None] = lambda line, end: None,
    report: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """Write a record for each line; a line that fails gets an error record. An error that is not
    the line's fault (the model has stopped) is raised; a later run can take the unwritten lines.
    `cut` is called for a last line without a newline, before its record is written."""
    tally, todo = Tally(), _Ahead(lines, answer, ahead)
    try:
        while not tally.gave_up and todo.read_on():
            records = []
            for made in await todo.wait_next():
                tally.count(made)
                if made.is_cut:
                    cut(made.line, made.end)
                records.append(made.record)
                tally.gave_up = max_errors is not None and (
                    failed_before + tally.failed > max_errors
                )
                if tally.gave_up:
                    break
            write(b"".join(records))
            report(tally)
    finally:
        await todo.cancel()
    return tally


class _Ahead:
    """The lines that are under way, in order."""

    def __init__(self, lines: Iterator[InputLine], answer: Answer, most: int) -> None:
        self._lines = lines
        self._answer = answer
        self._most = most
        self._tasks: deque[asyncio.Task[_Made]] = deque()
        self._held_bytes = 0  # of lines that wait for their answer, and answers for their turn

    def read_on(self) -> bool:
        """Read as many lines as there is room for. False: all is done."""
        while len(self._tasks) < self._most and self._held_bytes < MAX_HELD_BYTES:
            line = next(self._lines, None)
            if line is None:
                break
            self._held_bytes += len(line.text or b"")
            self._tasks.append(asyncio.create_task(self._make(line)))
        return bool(self._tasks)

    async def wait_next(self) -> list[_Made]:
        """The next answer, and those after it that are complete already."""
        await asyncio.wait([self._tasks[0]])
        made = []
        while self._tasks and self._tasks[0].done():
            made.append(self._tasks.popleft().result())
            self._held_bytes -= len(made[-1].record)
        return made

    async def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
            for task in self._tasks:
                if not task.cancelled():
                    task.exception()  # seen: the first error is the one that is raised

    async def _make(self, line: InputLine) -> _Made:
        try:
            made = await self._result(line)
        except (RequestError, ModelFailed) as error:
            made = _error_record(line, error)
        except HeadwayError:
            raise
        except Exception as error:  # noqa: BLE001  the model's own answer for this line
            made = _error_record(line, ModelFailed(f"{type(error).__name__}: {error}"))
        self._held_bytes += len(made.record) - len(line.text or b"")
        return made

    async def _result(self, line: InputLine) -> _Made:
        if line.text is None:
            raise InputTooLarge(
                f"the line is longer than {MAX_LINE_BYTES} bytes", limit=MAX_LINE_BYTES
            )
        try:
            value = msgspec.json.decode(line.text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise InvalidInput(f"the line is not JSON, {_FORMS}: {error}") from error
        result = await self._answer(value)
        record = b'{"line":%d,"result":%b}\n' % (line.number, result)
        return _Made(line.number, line.end, record, is_cut=line.is_cut)


def _error_record(line: InputLine, error: HeadwayError) -> _Made:
    # A model's words may hold what no encoding can carry: half of a surrogate pair.
    message = str(error).encode("utf-8", "replace").decode()
    record = {"line": line.number, "error": {"code": error.code, "message": message}}
    encoded = msgspec.json.encode(record) + b"\n"
    return _Made(line.number, line.end, encoded, message, line.is_cut)
