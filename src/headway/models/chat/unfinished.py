"""Folders in the cache that are being filled: gone with the work, and if that was killed, with the
next one's."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def unfinished_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder, for this process alone; it may be moved elsewhere when it is whole. What killed
    processes left under that prefix is removed."""
    _sweep(parent, prefix)
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        lock = _locked(folder)
        if lock is None or folder.is_dir():
            break
        os.close(lock)  # another process took it for one that was left
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _sweep(parent: Path, prefix: str) -> None:
    for folder in parent.glob(f"{prefix}*"):
        lock = _locked(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """A lock, which the kernel lets go of when the process ends, however it ends. None: another
    process has it, or there are none here."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
