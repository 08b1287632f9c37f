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
# No contraction: whether a sum is rounded once or twice must not depend on the tile it is in.
_FLAGS = ("-std=gnu11", "-O3", "-fno-math-errno", "-ffp-contract=off", "-pthread")
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, *(f"-mavx512{each}" for each in ("f", "bw", "dq", "vl", "bf16")))
_LIMIT_S = 120.0  # a compilation takes a second or two
_log = logging.getLogger(__name__)


@functools.cache
def compiled(dtype: torch.dtype = torch.float32) -> Kernels | None:
    """The kernels for a KV cache of this dtype, compiled now if they never were; None: not on this
    machine."""
    said: object = ""
    for instructions in instruction_sets():
        try:
            kernels = built(instructions, dtype)
            if kernels is None:
                _log.info("no C compiler was found: answers come more slowly than they could")
            return kernels
        # RuntimeError: this user has no home folder.
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or error
    if said:
        _log.warning("the CPU's kernels could not be compiled, so torch computes: %s", said)
    return None


def multiplies_bf16() -> bool:
    """Has this CPU instructions for it (AVX512_BF16)?"""
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())


def instruction_sets() -> tuple[tuple[str, ...], ...]:
    """The compiler's flags for what this CPU has, the best first; none: the kernels cannot run."""
    has_avx2 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    if not has_avx2 or platform.system() != "Linux" or platform.machine() != "x86_64":
        return ()
    return (_AVX512, _AVX2) if multiplies_bf16() else (_AVX2,)  # an old compiler knows only AVX2


def built(instructions: tuple[str, ...], dtype: torch.dtype) -> Kernels | None:
    """None: they never were compiled, and there is no compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    flags = (*_FLAGS, *instructions, *(["-DBRAIN"] if dtype == torch.bfloat16 else []))
    library = _library(compiler, _folder(), flags)
    if library is None:
        return None
    try:
        return Kernels(ctypes.CDLL(str(library)))
    except OSError:  # compiled long ago, or with another libc: once more
        library.unlink(missing_ok=True)
        again = _library(compiler, library.parent, flags)
        if again is None:
            raise
        return Kernels(ctypes.CDLL(str(again)))


def _folder() -> Path:
    """Where compiled kernels are kept. What lies there runs as us, so nobody else may write it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    folder = cache / "headway" / "kernels"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = folder.stat()
    if state.st_uid != os.getuid() or state.st_mode & 0o022:
        raise PermissionError(f"others may write into {folder}")
    return folder


def _library(compiler: str | None, folder: Path, flags: tuple[str, ...]) -> Path | None:
    """Where the compiled kernels are; None: they never were compiled, and there is no compiler."""
    sources = [each.read_bytes() for each in _SOURCES]
    key = hashlib.sha256(b"\0".join([*sources, *map(str.encode, flags)])).hexdigest()[:16]
    library = folder / f"cpu-{key}.so"
    if library.exists():
        return library
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory(dir=folder) as work:
        unfinished = Path(work) / library.name
        command = [compiler, *flags, "-shared", "-fPIC"]
        command += [str(each) for each in _SOURCES if each.suffix == ".c"]
        command += ["-o", str(unfinished), "-lm"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_LIMIT_S)
        os.replace(unfinished, library)
    return library
