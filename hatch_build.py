"""Compiles what decides, with mypyc: the same code, 1.1 to 2.9 times as fast (why:
docs/decisions/0030-compiled-core.md).

`make compiled` puts the compiled modules beside their sources, whenever one of these has changed.
Wheels hold them where the hook is enabled: `HATCH_BUILD_HOOKS_ENABLE=1 python -m pip wheel .`.
Without a C compiler the core runs as Python; nothing else differs.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterable
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
    "generation/options",
    "queueing/quota",
)
_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
_ARRIVING = ".arriving"  # added to the name of a file that is not yet whole
_SETUP = """
from mypyc.build import mypycify
from setuptools import setup

setup(name="headway", ext_modules=mypycify({files}, opt_level="2", debug_level="0"))
"""


class CompiledCore(BuildHookInterface):
    """In a folder of its own: what is beside the sources is the checkout's, and stays."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # runs from the checkout
            return
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for made in build(folder):
            build_data["force_include"][str(made)] = str(made.relative_to(folder))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._folder.cleanup()


def compile_core() -> None:
    """Put the modules beside their sources. Cut off at any point, none is left that the list does
    not account for."""
    remove()
    started_ns = time.time_ns()
    with tempfile.TemporaryDirectory() as folder:
        made = build(Path(folder))
        try:
            put_beside_sources(Path(folder), made, started_ns)
        except BaseException:
            remove()
            raise


def build(folder: Path) -> list[Path]:
    """Compile a copy of the core in there. What that made: the list, and then the modules.

    The copy is what was compiled, whatever happens to the sources meanwhile: so the list has its
    digests.
    """
    core = folder / "headway" / "core"
    # Nothing but the core: `headway/__init__.py` would bring all of it, to be read by mypy.
    shutil.copytree(
        CORE, core, ignore=shutil.ignore_patterns("*.so", "*.pyd", LIST.name, "__pycache__")
    )
    shutil.copy(SOURCE / "headway" / "errors.py", folder / "headway")
    (folder / "headway" / "__init__.py").touch()
    listed = listing(core)
    files = [str(path.relative_to(folder)) for path in sources(core)]
    (folder / "setup.py").write_text(_SETUP.format(files=files))
    run_setup(folder)
    (core / LIST.name).write_text(listed)
    return [core / LIST.name, *sorted(folder.rglob(f"*{_SUFFIX}"), key=_order)]


def run_setup(folder: Path) -> None:
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"mypyc could not compile the core:\n{done.stdout}{done.stderr}")
    shutil.rmtree(folder / "build")


def put_beside_sources(folder: Path, made: list[Path], started_ns: int) -> None:
    """The list first, whole: a module without it would be checked by nobody."""
    for path in made:
        beside = SOURCE / path.relative_to(folder)
        arriving = beside.with_name(f"{beside.name}{_ARRIVING}")
        shutil.copy(path, arriving)
        if beside == LIST:
            # An edit since then is newer than the list.
            os.utime(arriving, ns=(started_ns, started_ns))
        arriving.replace(beside)


def _order(module: Path) -> tuple[int, Path]:
    """How they come; they go the other way. `headway/compiled.py` looks where `items` is compiled,
    and then for the others that are listed: what they all share is there before them."""
    if module.name.startswith("items."):
        return 0, module
    return 1 if module.name.partition(".")[0].endswith("__mypyc") else 2, module


def sources(core: Path = CORE) -> list[Path]:
    paths = {path for name in COMPILED for path in core.glob(f"{name}/*.py")}
    return sorted(paths - {core / f"{name}.py" for name in INTERPRETED} | {core / "items.py"})


def listing(core: Path = CORE) -> str:
    """As `sha256sum` writes it."""
    digests = [(hashlib.sha256(path.read_bytes()).hexdigest(), path) for path in sources(core)]
    return "".join(f"{each}  {path.relative_to(core).as_posix()}\n" for each, path in digests)


def is_stale() -> bool:
    """Is there anything compiled, by whatever Python, that is not of the sources as they are?

    The times are for the files that are not compiled: others were compiled with their types.
    """
    if not LIST.exists():
        return bool(modules())
    compiled = {path.with_name(path.name.partition(".")[0] + ".py") for path in modules()}
    if LIST.read_text() != listing() or not compiled.issuperset(sources()):
        return True
    started_ns = LIST.stat().st_mtime_ns
    files = [*CORE.rglob("*.py"), Path(__file__)]
    return any(path.stat().st_mtime_ns > started_ns for path in files)


def is_up_to_date() -> bool:
    """For this Python."""
    return CORE.joinpath(f"items{_SUFFIX}").exists() and not is_stale()


def remove() -> None:
    """Of every Python: the list is for all of them. It goes last, as it came first."""
    _unlink(sorted(modules(), key=_order, reverse=True))
    _unlink([LIST, *SOURCE.rglob(f"*{_ARRIVING}")])


def _unlink(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def modules() -> list[Path]:
    return [*SOURCE.rglob("*.so"), *SOURCE.rglob("*.pyd")]


def has_compiler() -> bool:
    """And Python's header files."""
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")[0]
    return bool(shutil.which(compiler)) and Path(sysconfig.get_path("include"), "Python.h").exists()


if __name__ == "__main__":
    if sys.argv[1:] == ["--remove"]:
        remove()
    elif sys.argv[1:] == ["--remove-stale"]:
        if is_stale():
            remove()
    elif not has_compiler():
        remove()
        print("No C compiler, or no Python.h: the core runs as Python, not compiled.")  # noqa: T201
    elif sys.argv[1:] != ["--if-changed"] or not is_up_to_date():
        print("Compiling the core (about 1.5 minutes) …", flush=True)  # noqa: T201
        compile_core()
