"""The core, compiled: it decides as its sources do, and never runs when it is older than they."""

import ast
import copy
import hashlib
import os
import pickle
import runpy
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import headway
from compiling import IS_COMPILED, copy_interpreted
from headway import compiled
from headway.core.generation.sequence import Finished, FinishReason
from headway.core.generation.step import Decode, Step
from headway.core.items import (
    Batch,
    FireReason,
    Item,
    Refusal,
    RefusalReason,
    Refuse,
    Run,
    Wait,
)

SOURCE = Path(headway.__file__).parent
WORLDS = (
    "--arrivals poisson --load 0.8 --latency 5,0.5",
    "--arrivals mmpp --load 0.9 --latency 1,0.8 --slo-ms 60 --noise 0.3",
    "--arrivals fanout --load 0.7 --latency 4,0.1 --lengths lognormal:64,1,512 --token-ms 0.004",
    "--arrivals gamma --load 0.6 --latency 1,0.8 --workers 4",
    "--arrivals poisson --load 1.5 --latency 5,0.5 --tenants a=1,b=1,c=8 --slo-ms 60",
    "--generate --arrivals poisson:8 --latency 20,0.05 --prompts lognormal:64,1 --outputs 32",
)


@pytest.fixture
def core(tmp_path: Path) -> Path:
    """Compiled, with its list."""
    for name in ("items.py", "queue.py"):
        (tmp_path / name).write_text(f"name = {name!r}")
        (tmp_path / name.replace(".py", EXTENSION_SUFFIXES[0])).touch()
    write_list(tmp_path, "items.py", "queue.py")
    return tmp_path


def write_list(core: Path, *names: str) -> None:
    digests = [hashlib.sha256((core / name).read_bytes()).hexdigest() for name in names]
    lines = [f"{digest}  {name}\n" for digest, name in zip(digests, names, strict=True)]
    (core / compiled.LIST).write_text("".join(lines))


def test_what_is_not_compiled_may_be_anything(tmp_path: Path) -> None:
    compiled.check(tmp_path)


def test_sources_that_are_as_they_were_compiled_are_accepted(core: Path) -> None:
    compiled.check(core)


@pytest.mark.parametrize("now", ["x = 2", None], ids=["changed", "gone"])
def test_a_source_that_was_changed_since_is_refused_by_name(now: str | None, core: Path) -> None:
    source = core / "queue.py"
    source.unlink()
    if now is not None:
        source.write_text(now)
    with pytest.raises(ImportError, match=r"core/queue\.py was changed.*make compiled"):
        compiled.check(core)


@pytest.mark.parametrize("size", [0, 40, 70, 77, 149], ids=lambda size: f"{size} bytes of it")
def test_a_list_that_was_cut_off_is_refused_by_name(size: int, core: Path) -> None:
    path = core / compiled.LIST
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ImportError, match=r"core/compiled\.sha256 is not .* whole.*make compiled"):
        compiled.check(core)


def test_modules_without_a_list_are_refused(core: Path) -> None:
    (core / compiled.LIST).unlink()
    with pytest.raises(ImportError, match=r"core/compiled\.sha256 is not there"):
        compiled.check(core)


def test_half_of_the_modules_is_refused(core: Path) -> None:
    (core / f"queue{EXTENSION_SUFFIXES[0]}").unlink()
    with pytest.raises(ImportError, match=r"core/queue\.py is not compiled, but others are"):
        compiled.check(core)


def test_modules_of_another_python_do_not_matter(core: Path) -> None:
    """It runs as Python here, whatever the list says."""
    for module in core.glob("*.so"):
        module.rename(core / f"{module.name.partition('.')[0]}.cpython-27-other.so")
    (core / "queue.py").write_text("x = 2")
    compiled.check(core)


def test_modules_without_sources_are_accepted(core: Path) -> None:
    """As in an application that was frozen: there is nothing that they could differ from."""
    for source in core.glob("*.py"):
        source.unlink()
    compiled.check(core)


VALUES = (
    Item(1, 0.5, tenant="a"),
    Run(Batch(1, (Item(1, 0.5),), 1, 0, 1, FireReason.IDLE, 0.5, 0.5, 64, 0.0, None)),
    Refuse((Refusal(Item(1, 0.5), RefusalReason.SHED, 0.1),)),
    Wait(0.5),
    Step(1, (Decode(1, 0, 5, (7,)),), (), (), (Finished(2, FinishReason.STOP, 9, 0, 1, 0, 0.5),)),
)


@pytest.mark.parametrize("value", VALUES, ids=lambda each: type(each).__name__)
def test_values_of_the_core_are_copied_and_sent_to_other_processes(value: object) -> None:
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.copy(value) == value
    assert copy.deepcopy(value) == value


def test_no_compiled_module_has_a_frozen_dataclass() -> None:
    """It would neither be copied nor pickled; a NamedTuple is."""
    for path in compiled_sources():
        nodes = ast.walk(ast.parse(path.read_text()))
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        assert not [each.name for each in classes if is_frozen(each)], path


@pytest.mark.parametrize(
    ("decorator", "expected"),
    [
        ("@dataclass(frozen=True)", True),
        ("@dataclasses.dataclass(slots=True, frozen=True)", True),
        ("@dataclass(slots=True)", False),
        ("@dataclass", False),
    ],
)
def test_a_frozen_dataclass_is_told_however_it_is_written(decorator: str, expected: bool) -> None:
    [node] = ast.parse(f"{decorator}\nclass Value: ...").body
    assert isinstance(node, ast.ClassDef)
    assert is_frozen(node) is expected


def is_frozen(node: ast.ClassDef) -> bool:
    calls = [each for each in node.decorator_list if isinstance(each, ast.Call)]
    keywords = {each.arg: each.value for call in calls for each in call.keywords}
    return "frozen" in keywords and ast.unparse(keywords["frozen"]) != "False"


def compiled_sources() -> list[Path]:
    builder = SOURCE.parents[1] / "hatch_build.py"
    if not builder.exists():
        pytest.skip("not a checkout: there is nothing to compile")
    names = runpy.run_path(str(builder))
    sources: list[Path] = names["sources"]()
    assert len(sources) > 40
    return sources


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not IS_COMPILED:
        pytest.skip("the core is not compiled here: no C compiler, or no `make compiled`")
    return copy_interpreted(tmp_path_factory.mktemp("interpreted"))


@pytest.mark.parametrize("world", WORLDS)
def test_compiled_and_interpreted_decide_alike(world: str, interpreted: Path) -> None:
    assert simulated(world, SOURCE.parent) == simulated(world, interpreted)


def simulated(world: str, source: Path) -> str:
    command = [sys.executable, "-m", "headway", "simulate", *world.split(), "--requests", "2000"]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    run = subprocess.run(
        command, env=environment, cwd=source, capture_output=True, text=True, check=True
    )
    return run.stdout
