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
    folder, lock = _made(parent, prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _made(parent: Path, prefix: str) -> tuple[Path, int | None]:
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        lock = _locked(folder, waits=True)
        if folder.is_dir():
            return folder, lock
        if lock is not None:  # before we had it, another process took the folder for one left over
            os.close(lock)


def _sweep(parent: Path, prefix: str) -> None:
    for folder in parent.glob(f"{prefix}*"):
        lock = _locked(folder, waits=False)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked(folder: Path, *, waits: bool) -> int | None:
    """A lock, which the kernel lets go of when the process ends, however it ends. None: another
    process has it, the folder is gone, or there are no locks here."""
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
