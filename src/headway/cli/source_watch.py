"""`headway serve --reload`, for development: the server runs in a process of its own, which is
ended and started again whenever a source file changes."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_LOOK_EVERY_S = 0.25
_STOP_S = 10.0  # for what runs; then it is killed
_MOST_FILES = 5000
_SUFFIXES = (".py", ".toml")
_SKIPPED = frozenset(["__pycache__", "node_modules", "site-packages"])
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Seen = dict[Path, tuple[int, int]]


def run(arguments: Sequence[str], folders: Iterable[Path]) -> int:
    """Serve with these arguments until asked to stop; ends as the server ended then."""
    server = _Server(arguments, list(folders))
    before = {each: signal.signal(each, server.stop) for each in _STOPS}
    try:
        return server.run()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class _Server:
    """Runs a server process; on a change, another one after it."""

    def __init__(self, arguments: Sequence[str], folders: list[Path]) -> None:
        self._command = [sys.executable, "-m", "headway", *arguments]
        self._folders = folders
        self._stopping = threading.Event()

    def stop(self, *_: object) -> None:
        self._stopping.set()

    def run(self) -> int:
        seen = snapshot(self._folders)
        where = ", ".join(str(each) for each in self._folders)
        _say(f"watching {len(seen)} file{'' if len(seen) == 1 else 's'} in {where}")
        while True:
            # In a group of its own: only we get Ctrl-C, and end it once, not twice.
            process = subprocess.Popen(self._command, process_group=0)
            try:
                seen = self._wait_changed(process, seen)
            finally:
                code = _end(process)
            if self._stopping.is_set():
                return code

    def _wait_changed(self, process: "subprocess.Popen[bytes]", seen: Seen) -> Seen:
        """Wait until the files differ and two looks in a row agree, so that none is read half
        written."""
        has_ended = False
        last = seen
        while not self._stopping.wait(_LOOK_EVERY_S):
            if not has_ended and process.poll() is not None:
                has_ended = True
                _say(f"the server has ended ({process.returncode}); waiting for a change")
            now = snapshot(self._folders)
            if now != seen and now == last:
                _say(f"{_difference(seen, now)} changed: starting again")
                return now
            last = now
        return seen


def _end(process: "subprocess.Popen[bytes]") -> int:
    if process.poll() is None:
        process.terminate()
    try:
        return process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def snapshot(folders: Iterable[Path]) -> Seen:
    """The source files there are, each with its time and size; a limited number of them."""
    found: Seen = {}
    for folder in folders:
        for path in _sources(folder):
            try:
                now = path.stat()
            except OSError:  # it has just gone
                continue
            found[path] = (now.st_mtime_ns, now.st_size)
            if len(found) >= _MOST_FILES:
                return found
    return found


def _sources(folder: Path) -> Iterator[Path]:
    for root, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if not _is_skipped(Path(root, name)))
        yield from (Path(root, file) for file in sorted(files) if file.endswith(_SUFFIXES))


def _is_skipped(folder: Path) -> bool:
    """Hidden, generated and installed files are not edited."""
    name = folder.name
    return name.startswith(".") or name in _SKIPPED or (folder / "pyvenv.cfg").is_file()


def _difference(old: Seen, new: Seen) -> str:
    changed = sorted(path for path in {*old, *new} if old.get(path) != new.get(path))
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return f"{changed[0].name}{more}"


def _say(text: str) -> None:
    print(f"headway: {text}", file=sys.stderr, flush=True)
