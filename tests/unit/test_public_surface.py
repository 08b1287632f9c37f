"""The public names: all there, nothing more, and light to import."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import headway
import headway.events
import headway.testing

ROOT = Path(headway.__file__).parent


MODULES = [headway, headway.events, headway.testing]


@pytest.mark.parametrize("module", MODULES, ids=lambda each: each.__name__)
def test_everything_in_all_is_importable_and_listed_once(module: object) -> None:
    names = module.__all__  # type: ignore[attr-defined]
    assert len(names) == len(set(names))
    for name in names:
        assert getattr(module, name) is not None


@pytest.mark.parametrize(("file", "module"), [("__init__", headway), ("events", headway.events)])
def test_every_public_name_is_listed(file: str, module: object) -> None:
    tree = ast.parse((ROOT / f"{file}.py").read_text())
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == set(module.__all__)  # type: ignore[attr-defined]


def test_observers_find_every_event_in_one_public_place() -> None:
    kinds = {kind.__name__ for kind in get_args(headway.events.Event)}
    assert kinds | {"Event", "Observer", "ItemTimes", "Batch", "FireReason"} <= set(
        headway.events.__all__
    )


def test_every_public_name_says_what_it_is_for() -> None:
    for name in headway.__all__:
        if name == "END" or issubclass_of_error(getattr(headway, name)):
            continue
        assert getattr(headway, name).__doc__, name


def issubclass_of_error(each: object) -> bool:
    return isinstance(each, type) and issubclass(each, headway.HeadwayError)


def test_a_star_import_brings_no_surprises() -> None:
    names: dict[str, object] = {}
    exec("from headway import *", names)
    assert set(names) - {"__builtins__"} == set(headway.__all__)


@pytest.mark.parametrize(
    "code",
    [
        "import headway",
        "import headway; headway.batched(lambda xs: xs)",
        "import headway, asyncio\n"
        "async def main():\n"
        "    async with headway.Batcher(lambda xs: xs) as batcher:\n"
        "        await batcher.submit(1)\n"
        "asyncio.run(main())",
    ],
    ids=["import", "decorate", "use"],
)
def test_numpy_is_not_loaded_unless_arrays_are_used(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code + "\nimport sys; print('numpy' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "False"


def test_the_package_is_typed() -> None:
    assert (ROOT / "py.typed").exists()
