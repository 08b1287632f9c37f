"""The editions of a Python file that is served by its path: its source, as it was when it was read.

The first is a module under the file's own name. Each that comes later is a module of its own beside
it: the version that runs keeps its module, so that its values still travel to worker processes, and
a file that cannot be imported changes nothing. A worker process is given the edition with its
source: one that starts again later runs the same code, even if the file has changed.
"""

import hashlib
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from headway.models import targets

_PREFIX = "headway_edition_"
_first: dict[Path, str] = {}  # the digest of each file when it was first seen
_users: Counter[str] = Counter()  # of each later edition: models, and those that are being made
# By `id`: a weak reference to the model. A load that timed out makes its model nevertheless, and
# nobody forgets that one. A model that takes no weak reference is kept itself.
_models: dict[int, tuple[Any, str]] = {}
_lock = threading.RLock()  # models are made in threads; one may be collected while it is held


class Edition(NamedTuple):
    module: str  # its name; empty: the first edition, under the file's own
    source: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.source).hexdigest()


def read(target: str, attempt: int = 0) -> Edition | None:
    """The target's file as it is now; None: it names no file, or one that cannot be read, which
    building the model reports. Another attempt is another edition."""
    path = targets.file_of(target)
    if path is None:
        return None
    try:
        edition = Edition("", path.read_bytes())
    except OSError:
        return None
    path, digest = path.resolve(), edition.digest
    if _first.setdefault(path, digest) == digest and not attempt:
        return edition
    place = hashlib.sha256(str(path).encode()).hexdigest()
    stem = path.stem.replace("-", "_").replace(".", "_")
    return edition._replace(module=f"{_PREFIX}{stem}_{place[:8]}_{digest[:16]}_{attempt}")


@contextmanager
def making(edition: Edition) -> Iterator[None]:
    """Make a model of the edition. If that fails, its module is removed, unless another model has
    it."""
    if not edition.module:
        yield
        return
    with _lock:
        _users[edition.module] += 1
    try:
        yield
    except BaseException:
        _leave(edition.module)
        raise


def note(model: Any, edition: Edition) -> None:
    """The model was made of it."""
    if not edition.module:
        return
    key = id(model)
    try:
        kept: Any = weakref.ref(model, lambda _: _forget(key))
    except TypeError:
        kept = model
    with _lock:
        _models[key] = (kept, edition.module)


def forget(model: Any) -> None:
    """The model has gone. With the last of an edition, its module goes."""
    _forget(id(model))


def _forget(key: int) -> None:
    with _lock:
        _, module = _models.pop(key, (None, ""))
    if module:
        _leave(module)


def _leave(module: str) -> None:
    with _lock:
        _users[module] -= 1
        if _users[module] <= 0:
            del _users[module]
            sys.modules.pop(module, None)
