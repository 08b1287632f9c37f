"""Compile the kernels once for each version of them, and load them.

Where that cannot be done (no compiler, another processor), torch computes the same, more slowly.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from headway.engine.cpu.kernels import Kernels

_SOURCES = sorted(Path(__file__).parent.glob("*.[ch]"))
_FLAGS = ("-std=gnu11", "-O3", "-mavx2", "-mfma", "-mf16c", "-fno-math-errno", "-pthread")
_LIMIT_S = 120.0  # a compilation takes a second or two
_log = logging.getLogger(__name__)


@functools.cache
def compiled() -> Kernels | None:
    """The kernels, compiled now if they never were; None: not on this machine."""
    if not _runs_here():
        return None
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    try:
        library = _library(compiler, _folder())
        if library is None:
            _log.info("no C compiler was found: answers come more slowly than they could")
            return None
        return Kernels(_loaded(library, compiler))
    # RuntimeError: this user has no home folder.
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or error
        _log.warning("the CPU's kernels could not be compiled, so torch computes: %s", said)
        return None


def _loaded(library: Path, compiler: str | None) -> ctypes.CDLL:
    """What was compiled long ago, or with another libc, may not load: it is compiled once more."""
    try:
        return ctypes.CDLL(str(library))
    except OSError:
        library.unlink(missing_ok=True)
        again = _library(compiler, library.parent)
        if again is None:
            raise
        return ctypes.CDLL(str(again))


def _folder() -> Path:
    """Where compiled kernels are kept. What lies there runs as us, so nobody else may write it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = cache / "headway" / "kernels"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise PermissionError(f"others may write into {folder}")
    return folder


def _runs_here() -> bool:
    has_avx2 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return has_avx2 and platform.system() == "Linux" and platform.machine() == "x86_64"


def _library(compiler: str | None, folder: Path) -> Path | None:
    """Where the compiled kernels are; None: they never were compiled, and there is no compiler."""
    sources = [each.read_bytes() for each in _SOURCES]
    key = hashlib.sha256(b"\0".join([*sources, *map(str.encode, _FLAGS)])).hexdigest()[:16]
    library = folder / f"cpu-{key}.so"
    if library.exists():
        return library
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(dir=folder) as work:
        unfinished = Path(work) / library.name
        command = [compiler, *_FLAGS, "-shared", "-fPIC"]
        command += [str(each) for each in _SOURCES if each.suffix == ".c"]
        command += ["-o", str(unfinished), "-lm"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_LIMIT_S)
        os.replace(unfinished, library)
    return library
