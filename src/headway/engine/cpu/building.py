"""Compile the kernels once for each version of them, and load them.

Where that cannot be done (no compiler, another processor), torch computes instead, more slowly.
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
from typing import NamedTuple

import torch

from headway.engine.cpu.kernels import Kernels
from headway.files import trusted_folder

_SOURCES = sorted(Path(__file__).parent.glob("*.[ch]"))
# No contraction: whether a sum is rounded once or twice must not depend on the tile it is in.
_FLAGS = ("-std=gnu11", "-O3", "-fno-math-errno", "-ffp-contract=off", "-pthread")
_LIMIT_S = 120.0  # a compilation takes a second or two
_log = logging.getLogger(__name__)


class Instructions(NamedTuple):
    """An instruction set that a processor may have."""

    name: str
    flags: tuple[str, ...]  # the compiler's
    lanes: int  # floats that are computed together: a row's width must be a multiple


_COMMON = ("-mavx2", "-mfma", "-mf16c")
AVX2 = Instructions("AVX2", _COMMON, 8)
AVX512 = Instructions(
    "AVX-512", (*_COMMON, *(f"-mavx512{each}" for each in ("f", "bw", "dq", "vl", "bf16"))), 16
)


@functools.cache
def compiled(dtype: torch.dtype, width: int = 16) -> Kernels | None:
    """The kernels for a KV cache of this dtype and rows whose widths are multiples of that one,
    compiled now if they never were; None: not on this machine."""
    failure: object = None
    has_compiler = True
    for instructions in _best_first(width):
        try:
            kernels = built(instructions, dtype)
            if kernels is not None:
                return kernels
            has_compiler = False
        # RuntimeError: this user has no home folder.
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            failure = getattr(error, "stderr", None) or error
            _log.info("no kernels for %s: %s", instructions.name, failure)
    if failure is not None:
        _log.warning("the CPU's kernels could not be compiled, so torch computes: %s", failure)
    elif not has_compiler:
        _log.info("no C compiler was found: answers come more slowly than they could")
    return None


def _best_first(width: int) -> list[Instructions]:
    """The instruction sets that compute all rows, then those that leave some rows to torch."""
    return sorted(instruction_sets(), key=lambda each: bool(width % each.lanes))


def instruction_sets() -> tuple[Instructions, ...]:
    """The instruction sets of this CPU, the fastest first; empty: the kernels cannot run."""
    level = torch.backends.cpu.get_cpu_capability()
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return ()
    if level == "AVX512" and multiplies_bf16():
        return (AVX512, AVX2)  # an old compiler knows only the latter
    return (AVX2,) if level in ("AVX2", "AVX512") else ()


def multiplies_bf16() -> bool:
    """Has this CPU instructions for it (AVX512_BF16)?"""
    return bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())


def built(instructions: Instructions, dtype: torch.dtype) -> Kernels | None:
    """The kernels of one kind, compiled if they never were; None: there is no compiler for that."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    flags = _flags(instructions, dtype)
    library = _library(compiler, trusted_folder("kernels"), flags)
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


def _flags(instructions: Instructions, dtype: torch.dtype) -> tuple[str, ...]:
    of_cache = ("-DCACHE_BF16",) if dtype == torch.bfloat16 else ()
    return (*_FLAGS, *instructions.flags, *of_cache)


def _library(compiler: str | None, folder: Path, flags: tuple[str, ...]) -> Path | None:
    """The file of the compiled kernels; None: they were never compiled, and there is no
    compiler."""
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
