"""Compiles what decides, with mypyc: the same code, two to three times as fast.

`make compiled` puts the compiled modules beside their sources, whenever one of these has changed.
Wheels hold them where the hook is enabled: `HATCH_BUILD_HOOKS_ENABLE=1 python -m pip wheel .`.
Without a C compiler the core runs as Python; nothing else differs.
"""

import hashlib
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # hatch brings it; to compile, or to remove, is possible without
    BuildHookInterface = object

SOURCE = Path(__file__).parent / "src"
CORE = SOURCE / "headway" / "core"
LIST = CORE / "compiled.sha256"  # headway/compiled.py reads it
COMPILED = ("batching", "costs", "generation", "queueing")  # and items.py
# What users construct themselves: it refuses wrong types in our words.
INTERPRETED = (
    "costs/table",
    "generation/limits",
    "generation/sampling",
    "generation/wishes",
    "queueing/quota",
)
_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
_SETUP = """
from mypyc.build import mypycify
from setuptools import setup

setup(name="headway", ext_modules=mypycify({files}, opt_level="2", debug_level="0"))
"""


class CompiledCore(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        compile_core()
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for module in [*modules(), LIST]:
            build_data["force_include"][str(module)] = str(module.relative_to(SOURCE))


def compile_core() -> None:
    """In a folder of its own; what it makes is put beside the sources."""
    remove()
    with tempfile.TemporaryDirectory() as folder:
        files = [str(path.relative_to(SOURCE)) for path in sources()]
        Path(folder, "setup.py").write_text(_SETUP.format(files=files))
        # Nothing but the core: `headway/__init__.py` would bring all of it, to be read by mypy.
        shutil.copytree(CORE, Path(folder, "headway", "core"))
        shutil.copy(SOURCE / "headway" / "errors.py", Path(folder, "headway"))
        Path(folder, "headway", "__init__.py").touch()
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"mypyc could not compile the core:\n{done.stdout}{done.stderr}")
        shutil.rmtree(Path(folder, "build"))
        for module in Path(folder).rglob(f"*{_SUFFIX}"):
            shutil.copy(module, SOURCE / module.relative_to(folder))
    digests = [(hashlib.sha256(path.read_bytes()).hexdigest(), path) for path in sources()]
    LIST.write_text("".join(f"{each}  {path.relative_to(CORE)}\n" for each, path in digests))


def sources() -> list[Path]:
    paths = {path for name in COMPILED for path in CORE.glob(f"{name}/*.py")}
    return sorted(paths - {CORE / f"{name}.py" for name in INTERPRETED} | {CORE / "items.py"})


def remove() -> None:
    """Of every Python: the list is for all of them."""
    LIST.unlink(missing_ok=True)
    for module in [*SOURCE.rglob("*.so"), *SOURCE.rglob("*.pyd")]:
        module.unlink()


def modules() -> list[Path]:
    return sorted(SOURCE.rglob(f"*{_SUFFIX}"))


def has_compiler() -> bool:
    """And Python's header files."""
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    return bool(shutil.which(compiler)) and Path(sysconfig.get_path("include"), "Python.h").exists()


if __name__ == "__main__":
    if sys.argv[1:] == ["--remove"]:
        remove()
    elif has_compiler():
        compile_core()
    else:
        remove()
        LIST.touch()  # for make: there is nothing more to be done
        print("No C compiler, or no Python.h: the core runs as Python, not compiled.")  # noqa: T201
