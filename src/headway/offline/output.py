"""The output file: it has only whole lines, in order, even if the process is killed at any moment.

The file itself shows how far it got: its last whole line has a number, and a torn line is cut off.
A note beside it says what made it, so that no file is continued with another model or another
input.
"""

import os
import re
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec

from headway.errors import ConfigError
from headway.offline.lines import FileHead, head_of

_ERROR = re.compile(rb'\{"line":\d+,"error":')
_BLOCK = 64 * 2**10


class OutputNote(msgspec.Struct, frozen=True, kw_only=True):
    """The model and input that made the output: `OUT.headway`, beside it."""

    model: str
    options: dict[str, Any]
    input_head: FileHead
    cut: tuple[int, int] | None = None  # the input's last line without a newline, its end in bytes

    @staticmethod
    def path_of(output: Path) -> Path:
        return output.with_name(output.name + ".headway")


class _Record(msgspec.Struct, frozen=True):
    line: int


class Output:
    """An output being written by this process and no other. `with` opens and closes it."""

    def __init__(
        self, path: Path, note: OutputNote, source: Path, *, overwrite: bool = False
    ) -> None:
        self._path = path
        self._note = note
        self._source = source
        self._overwrite = overwrite
        self.last_line = 0  # of the input, that is answered already
        self.failed = 0  # of those: error records

    def __enter__(self) -> Self:
        try:
            # Not truncated, not yet: it may be another one's.
            self._file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        except OSError as error:
            raise ConfigError(f"{self._path}: {error.strerror or error}") from error
        try:
            _lock(self._file, self._path)
            if self._overwrite:
                self._file.truncate(0)
                OutputNote.path_of(self._path).unlink(missing_ok=True)
            self._begin_or_resume()
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._file:
            self._file.flush()
            os.fsync(self._file.fileno())

    def write(self, records: bytes) -> None:
        """Whole lines, each with its newline."""
        self._file.write(records)
        self._file.flush()

    def note_cut(self, line: int, end: int) -> None:
        """The input ended at this byte, within a line that is answered all the same."""
        self._note = msgspec.structs.replace(self._note, cut=(line, end))
        self._write_note()

    def _write_note(self) -> None:
        note = msgspec.json.format(msgspec.json.encode(self._note)) + b"\n"
        _replace(OutputNote.path_of(self._path), note)

    def _begin_or_resume(self) -> None:
        beside = OutputNote.path_of(self._path)
        whole_bytes, last = _last_line(self._file)
        if beside.exists():
            self._note = self._check_note(beside)
        elif self._file.seek(0, os.SEEK_END):
            raise ConfigError(
                f"{self._path} exists, and this command did not begin it: "
                "choose another name, or --overwrite"
            )
        else:
            self._write_note()
        self._file.truncate(whole_bytes)
        self._file.seek(whole_bytes)
        if last:
            self.last_line = self._number_of(last)
            self.failed = _count_errors(self._file, whole_bytes)
            self._check_cut()

    def _check_cut(self) -> None:
        """Raises ConfigError where the last line that was answered has become another."""
        line, end = self._note.cut or (0, 0)
        if line != self.last_line:
            return  # it was not answered, or had its newline when the next one was
        with self._source.open("rb") as file:
            file.seek(end)
            if file.read(1) not in (b"", b"\n"):
                raise ConfigError(
                    f"line {line} of the input has grown since it was answered: choose another "
                    "name, or --overwrite"
                )

    def _check_note(self, beside: Path) -> OutputNote:
        try:
            found = msgspec.json.decode(beside.read_bytes(), type=OutputNote)
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"{beside}: {error}") from error
        same_input = head_of(self._source, found.input_head.size_bytes) == found.input_head
        for what, is_same in (
            (f"model {found.model!r}", found.model == self._note.model),
            (f"options {found.options}", found.options == self._note.options),
            ("another input", same_input),
        ):
            if not is_same:
                raise ConfigError(
                    f"{self._path} was begun with {what}: choose another name, or --overwrite"
                )
        return found

    def _number_of(self, last: bytes) -> int:
        try:
            return msgspec.json.decode(last, type=_Record).line
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"{self._path}: its last line is not one that headway map writes ({error}), so "
                "it cannot be continued: choose another name, or --overwrite"
            ) from error


def is_failure(record: bytes) -> bool:
    return _ERROR.match(record) is not None


def _last_line(file: BinaryIO) -> tuple[int, bytes]:
    """The end of the whole lines, and the last of them."""
    position = file.seek(0, os.SEEK_END)
    tail = b""
    while position:
        start = max(0, position - _BLOCK)
        file.seek(start)
        tail = file.read(position - start) + tail
        position = start
        newline = tail.rfind(b"\n")
        before = tail.rfind(b"\n", 0, max(newline, 0))
        if before >= 0:
            return position + newline + 1, tail[before + 1 : newline]
    newline = tail.rfind(b"\n")
    return newline + 1, tail[: max(newline, 0)]


def _count_errors(file: BinaryIO, whole_bytes: int) -> int:
    """Leaves the file where its whole lines end."""
    file.seek(0)
    found = sum(is_failure(line) for line in file)
    file.seek(whole_bytes)
    return found


def _replace(path: Path, content: bytes) -> None:
    """The whole file or none of it."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.replace(path)


def _lock(file: BinaryIO, path: Path) -> None:
    """The kernel lets go of it when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(f"{path}: another process is writing it") from error
    except OSError as error:
        raise ConfigError(
            f"{path}: its file system cannot lock it ({error.strerror or error}), and two commands "
            "could write it at once: choose another place"
        ) from error
