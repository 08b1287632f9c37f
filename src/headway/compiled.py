"""Compiled modules of the core must be those of the sources beside them, or nothing starts.

Python prefers a compiled module to its source, however old it is: after an edit, or a pull, the old
code would run, and nothing would say so. `hatch_build.py` compiles, and lists what it compiled.
"""

import hashlib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

CORE = Path(__file__).parent / "core"
LIST = "compiled.sha256"  # in the core, as `sha256sum` writes it
_REMEDY = "run `make compiled`, or `python hatch_build.py --remove` to run it as Python"


def check(core: Path = CORE) -> None:
    suffix = _suffix_in(core)
    if suffix is None or not (core / "items.py").exists():
        return  # it runs as Python; or there are no sources that anything could differ from
    for digest, name in _listed(core / LIST):
        source = core / name
        if not source.exists() or hashlib.sha256(source.read_bytes()).hexdigest() != digest:
            raise ImportError(f"headway/core/{name} was changed after it was compiled: {_REMEDY}")
        if not source.with_name(source.stem + suffix).exists():
            raise ImportError(f"headway/core/{name} is not compiled, but others are: {_REMEDY}")


def _suffix_in(core: Path) -> str | None:
    """The digest of the modules that this Python would import; None: there are none for it."""
    for suffix in EXTENSION_SUFFIXES:
        if (core / f"items{suffix}").exists():  # made first, and removed last
            return suffix
    return None


def _listed(path: Path) -> list[tuple[str, str]]:
    """Each digest, with its source."""
    text = path.read_text() if path.exists() else ""
    if "  items.py\n" not in text or not text.endswith("\n"):
        raise ImportError(f"headway/core/{path.name} is not there, or not whole: {_REMEDY}")
    lines = [line.partition("  ") for line in text.splitlines()]
    return [(digest, name) for digest, _, name in lines]


check()
