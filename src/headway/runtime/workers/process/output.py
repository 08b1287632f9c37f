"""Writes a worker's output to the log, by lines."""

import logging
import os
from collections import deque

_READ_BYTES = 64 * 2**10
_PIPE_BYTES = 2**20  # the most that one holds
_MOST_BYTES = 8192  # of a line; longer ones are cut into several
_LAST_LINES = 5


class ProcessOutput:
    """One output stream of one process. `last`: its latest lines, which often say why it ended."""

    def __init__(self, fd: int, log: logging.Logger, level: int, name: str) -> None:
        self.fd = fd
        self.last: deque[str] = deque(maxlen=_LAST_LINES)
        self._log = log
        self._level = level
        self._name = name
        self._rest = b""
        os.set_blocking(fd, False)

    def read(self) -> bool:
        """Log what has been printed. False: the stream has ended."""
        data = self._take()
        return data is None or bool(data)

    def finish(self) -> None:
        """Its process has ended: log what the pipe still holds, and an unfinished last line."""
        for _ in range(_PIPE_BYTES // _READ_BYTES):  # what it started may still write to it
            if not self._take():
                break
        if self._rest:
            self._write(self._rest)
            self._rest = b""

    def _take(self) -> bytes | None:
        """None: the pipe is empty."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._write(line)
        if len(self._rest) > _MOST_BYTES:
            self._write(self._rest)
            self._rest = b""
        return data

    def _write(self, line: bytes) -> None:
        for start in range(0, len(line), _MOST_BYTES):
            text = line[start : start + _MOST_BYTES].decode(errors="replace").rstrip()
            if text:
                self.last.append(text)
                self._log.log(self._level, "%s: %s", self._name, text)
