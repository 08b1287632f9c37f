"""`hatch_build.py`, in a small checkout and with no compiler: what it lists, puts and removes; and
what wheels hold."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headway import compiled

ROOT = Path(__file__).parents[2]
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
SOURCES = ("batching/__init__.py", "batching/linger.py", "items.py", "queueing/queue.py")
SHARED = f"0123__mypyc{SUFFIX}"
FAKE = f"""

def run_setup(folder):
    (folder / "0123__mypyc{SUFFIX}").write_text("shared")
    for source in sources(folder / "headway" / "core"):
        source.with_name(source.stem + "{SUFFIX}").write_text("a module")
"""

if not (ROOT / "hatch_build.py").exists():
    pytest.skip("not a checkout: there is nothing to compile", allow_module_level=True)


class Stopped(BaseException):
    """As if the process ended."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in (*SOURCES, "policy.py", "costs/table.py"):
        path = tmp_path / "src" / "headway" / "core" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"name = {name!r}\n")
        os.utime(path, (1, 1))
    for name in ("__init__.py", "errors.py"):
        (tmp_path / "src" / "headway" / name).touch()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    builder = tmp_path / "hatch_build.py"
    builder.write_text(
        (ROOT / "hatch_build.py").read_text().replace("\ndef sources", FAKE + "\n\ndef sources")
    )
    os.utime(builder, (1, 1))
    return tmp_path


@pytest.fixture
def builder(checkout: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("building", checkout / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def core(checkout: Path) -> Path:
    return checkout / "src" / "headway" / "core"


def made(checkout: Path) -> set[str]:
    """All that is no source."""
    source = checkout / "src"
    files = (path for path in source.rglob("*") if path.is_file() and path.suffix != ".py")
    return {path.relative_to(source).as_posix() for path in files}


def test_every_source_is_listed_and_has_a_module_beside_it(
    builder: ModuleType, checkout: Path, core: Path
) -> None:
    builder.compile_core()
    modules = {f"headway/core/{name.removesuffix('.py')}{SUFFIX}" for name in SOURCES}
    assert made(checkout) == {*modules, SHARED, f"headway/core/{compiled.LIST}"}
    lines = (core / compiled.LIST).read_text().splitlines()
    assert [line.split("  ")[1] for line in lines] == list(SOURCES)
    compiled.check(core)
    assert builder.is_up_to_date()


def test_remove_leaves_nothing_but_the_sources(builder: ModuleType, checkout: Path) -> None:
    builder.compile_core()
    builder.remove()
    assert made(checkout) == set()
    assert not builder.is_stale()


def test_a_source_that_changes_while_it_is_compiled_is_compiled_anew(
    builder: ModuleType, core: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_setup = builder.run_setup

    def edit_meanwhile(folder: Path) -> None:
        run_setup(folder)
        (core / "items.py").write_text("name = 'another'\n")

    monkeypatch.setattr(builder, "run_setup", edit_meanwhile)
    builder.compile_core()
    with pytest.raises(ImportError, match=r"core/items\.py was changed"):
        compiled.check(core)
    assert builder.is_stale()


def test_so_is_all_where_a_file_that_is_not_compiled_changes_meanwhile(
    builder: ModuleType, core: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_setup = builder.run_setup

    def edit_meanwhile(folder: Path) -> None:
        run_setup(folder)
        now_ns = builder.time.time_ns()
        os.utime(core / "policy.py", ns=(now_ns, now_ns))

    monkeypatch.setattr(builder, "run_setup", edit_meanwhile)
    builder.compile_core()
    compiled.check(core)
    assert builder.is_stale()


def remove_source(core: Path) -> None:
    (core / "queueing/queue.py").unlink()


def add_source(core: Path) -> None:
    (core / "queueing/quick.py").touch()
    os.utime(core / "queueing/quick.py", (1, 1))


def remove_module(core: Path) -> None:
    (core / f"queueing/queue{SUFFIX}").unlink()


def remove_list(core: Path) -> None:
    (core / compiled.LIST).unlink()


def empty_list(core: Path) -> None:
    (core / compiled.LIST).write_text("")


@pytest.mark.parametrize(
    "change", [remove_source, add_source, remove_module, remove_list, empty_list]
)
def test_what_is_not_of_the_sources_is_stale(
    change: Callable[[Path], None], builder: ModuleType, core: Path
) -> None:
    builder.compile_core()
    change(core)
    assert builder.is_stale()
    assert not builder.is_up_to_date()


def steps(count: int) -> Iterator[None]:
    """The next `count` succeed."""
    yield from [None] * count
    raise Stopped


@pytest.mark.parametrize("count", range(1, len(SOURCES) + 2))
@pytest.mark.parametrize("half", ["compile_core", "remove"])
def test_no_half_of_it_starts_wherever_it_was_cut_off(
    half: str,
    count: int,
    builder: ModuleType,
    checkout: Path,
    core: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if half == "remove":
        builder.compile_core()
    left = steps(count)
    name = "replace" if half == "compile_core" else "unlink"
    original: Any = getattr(Path, name)

    def one(path: Path, *arguments: Any, **options: Any) -> Any:
        next(left)
        return original(path, *arguments, **options)

    with monkeypatch.context() as patched:
        if half == "compile_core":
            patched.setattr(builder, "remove", lambda: None)  # nor is there time to
        patched.setattr(Path, name, one)
        with pytest.raises(Stopped):
            getattr(builder, half)()
    left_there = {path for path in made(checkout) if path.endswith(SUFFIX)}
    if left_there:
        with pytest.raises(ImportError, match=r"not compiled|not there"):
            compiled.check(core)
        assert builder.is_stale()
    builder.remove()
    assert made(checkout) == set()


def test_where_it_fails_nothing_is_left(
    builder: ModuleType, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(builder.os, "utime", fail)
    with pytest.raises(OSError, match="no space"):
        builder.compile_core()
    assert made(checkout) == set()


# --- wheels


def built(checkout: Path, target: str, **environment: str) -> set[str]:
    """The files of a wheel or of an sdist."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", "built"]
    pytest.importorskip("hatchling")
    subprocess.run(command, cwd=checkout, env={**os.environ, **environment}, check=True)
    [path] = (checkout / "built").iterdir()
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return set(wheel.namelist())
    with tarfile.open(path) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


@pytest.mark.parametrize("target", ["wheel", "sdist"])
def test_what_is_compiled_here_is_in_no_package(
    target: str, builder: ModuleType, checkout: Path
) -> None:
    builder.compile_core()
    before = made(checkout)
    files = built(checkout, target)
    folder = "src/" if target == "sdist" else ""
    assert f"{folder}headway/core/items.py" in files
    assert not [name for name in files if name.endswith((SUFFIX, compiled.LIST))]
    assert made(checkout) == before


def test_a_wheel_whose_hook_is_enabled_has_all_of_it_and_leaves_the_checkout_alone(
    builder: ModuleType, checkout: Path, core: Path
) -> None:
    builder.compile_core()
    (core / f"items{SUFFIX}").write_text("another")
    before = made(checkout)
    files = built(checkout, "wheel", HATCH_BUILD_HOOKS_ENABLE="1")
    assert before <= files
    assert made(checkout) == before
    assert (core / f"items{SUFFIX}").read_text() == "another"


def test_docker_is_not_given_what_is_compiled_here() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {"**/*.so", "**/*.pyd", f"**/{compiled.LIST}", ".venv*"} <= set(ignored)
