"""Reads JSON files that come with models, and keeps the cache of what was fetched, made or
proved."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headway.errors import ConfigError

_LONGEST_HEAD = 100_000_000  # bytes, of safetensors


def read_json(path: Path, *, most_bytes: int | None = None) -> dict[str, Any]:
    """The object in it. Raises ConfigError."""
    try:
        if most_bytes is not None and path.stat().st_size > most_bytes:
            raise ConfigError(f"{path}: is larger than {most_bytes} bytes")
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: an object is expected")
    return found


def read_optional_json(path: Path) -> dict[str, Any]:
    """The file's object; empty if there is no such file. Raises ConfigError."""
    return read_json(path) if path.is_file() else {}


def why_unreadable(path: Path, error: Exception) -> str:
    """Why this file of tensors, or the folder that holds some, could not be read: one of them was
    cut off, or what `error` says."""
    for file in sorted(path.glob("*.safetensors")) if path.is_dir() else [path]:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            size, whole = file.stat().st_size, _whole_size(file)
            if size < whole:
                return f"{file}: the file ends after {size} of {whole} bytes"
    return f"{path}: {error}"


def _whole_size(file: Path) -> int:
    """As the head of a file of safetensors says; 0: it has none."""
    with file.open("rb") as content:
        length = int.from_bytes(content.read(8), "little")
        if length > _LONGEST_HEAD:
            return 0
        head = content.read(length)
    ends = [0]
    if len(head) == length:
        found = json.loads(head)
        ends += [each["data_offsets"][1] for name, each in found.items() if name[:2] != "__"]
    return 8 + length + max(ends)


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "headway"


def trusted_folder(name: str) -> Path:
    """A folder in the cache. Its contents are run or trusted, so nobody else may write to it.
    Raises OSError."""
    folder = cache_folder() / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise PermissionError(f"others may write into {folder}")
    return folder


class ProofNote:
    """Records that a computation was proved, by the hash of everything that it depends on. If it
    cannot be stored, every start proves it again."""

    def __init__(self, files: Iterable[Path], *parts: object) -> None:
        digest = hashlib.sha256("\0".join(map(str, parts)).encode())
        for file in files:
            digest.update(file.read_bytes())
        self._file: Path | None = None
        with contextlib.suppress(OSError):
            self._file = trusted_folder("proofs") / f"{digest.hexdigest()[:32]}.txt"

    def read(self) -> str | None:
        """The verdict."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                return self._file.read_text() or None  # the disk was full
        return None

    def write(self, verdict: str) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.write_text(verdict)
