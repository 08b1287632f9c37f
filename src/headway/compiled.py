"""Compiled modules of the core must be those of the sources beside them, or nothing starts.

Python prefers a compiled module to its source, however old it is: after an edit, or a pull, the old
code would run, and nothing would say so. `hatch_build.py` compiles, and lists what it compiled.
"""

import hashlib
from pathlib import Path

CORE = Path(__file__).parent / "core"
LIST = "compiled.sha256"  # in the core, as `sha256sum` writes it; there if anything is compiled


def check(core: Path = CORE) -> None:
    if not (core / LIST).exists():
        return
    for line in (core / LIST).read_text().splitlines():
        digest, name = line.split("  ")
        source = core / name
        if not source.exists() or hashlib.sha256(source.read_bytes()).hexdigest() != digest:
            raise ImportError(
                f"headway/core/{name} was changed after it was compiled: run `make compiled`, "
                "or `python hatch_build.py --remove` to run it as Python"
            )


check()
