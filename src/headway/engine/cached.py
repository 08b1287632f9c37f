"""Where what was made or proved once is kept for the next start."""

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """What lies there is trusted, so nobody else may write it. Raises OSError."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = cache / "headway" / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise PermissionError(f"others may write into {folder}")
    return folder
