"""The editions of a Python file that is served by its path.

The first is a module under the file's own name. Each that comes later is a module of its own beside
it: the version that runs keeps its module, so that its values still travel to worker processes, and
a file that cannot be imported changes nothing. A worker process is told the edition's name, and
imports the file under it.
"""

import hashlib
import sys
import threading
from collections import Counter
from pathlib import Path

from headway.models import targets

_PREFIX = "headway_edition_"
_first: dict[Path, str] = {}  # the digest of each file when it was first seen
_users: Counter[str] = Counter()  # models made of each later edition
_lock = threading.Lock()  # models are made in threads


def digest_of(target: str) -> str:
    """Of the target's file as it is now; empty: it names no file, or one that is not there."""
    path = targets.file_of(target)
    try:
        return "" if path is None else hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:  # who makes the model says so
        return ""


def edition_of(target: str, digest: str, attempt: int) -> str:
    """The name of its module; empty: the first, or not a file. Another attempt is another one."""
    path = targets.file_of(target)
    if path is None or not digest:
        return ""
    path = path.resolve()
    if _first.setdefault(path, digest) == digest and not attempt:
        return ""
    place = hashlib.sha256(str(path).encode()).hexdigest()
    stem = path.stem.replace("-", "_").replace(".", "_")
    return f"{_PREFIX}{stem}_{place[:8]}_{digest[:16]}_{attempt}"


def note_use(name: str) -> None:
    """A model has been made of this module."""
    if name.startswith(_PREFIX):
        with _lock:
            _users[name] += 1


def forget(name: str) -> None:
    """One of its models has gone; with the last, its module goes."""
    if name.startswith(_PREFIX):
        with _lock:
            _users[name] -= 1
            if _users[name] <= 0:
                del _users[name]
                sys.modules.pop(name, None)
