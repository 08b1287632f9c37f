"""Modules of a file's later editions: when they are made, and when they go."""

import gc
import pickle
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headway.errors import ConfigError
from headway.models import catalogue, source_versions

FILE = """
import headway

class Shout(headway.Model[str, str]):
    def predict(self, items: list[str]) -> list[str]:
        return [item + {mark!r} for item in items]
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "edited_shouting.py"
    file.write_text(FILE.format(mark="!"))
    yield file
    sys.modules.pop("edited_shouting", None)


def later() -> list[str]:
    return [each for each in sys.modules if each.startswith("headway_edition_")]


def build(path: Path, attempt: int = 0) -> Any:
    return catalogue.build(str(path), {}, source_versions.read(str(path), attempt))


def test_a_file_that_is_as_it_was_at_first_has_its_first_module(path: Path) -> None:
    first = build(path)
    path.write_text(FILE.format(mark="?"))
    second = build(path)
    path.write_text(FILE.format(mark="!"))
    third = build(path)
    assert [each.predict(["a"]) for each in (first, second, third)] == [["a!"], ["a?"], ["a!"]]
    assert type(third) is type(first)
    assert type(third).__module__ == "edited_shouting"
    source_versions.forget(second)
    assert later() == []


def test_a_module_goes_with_the_last_of_its_models(path: Path) -> None:
    build(path)
    path.write_text(FILE.format(mark="?"))
    one, other = build(path), build(path)
    source_versions.forget(one)
    source_versions.forget(one)  # twice is once
    assert later() == [type(other).__module__]
    source_versions.forget(other)
    assert later() == []


@pytest.mark.parametrize("text", ["x = 1\n", "import headway\nraise ImportError('no')\n"])
def test_an_edition_without_a_model_leaves_no_module(path: Path, text: str) -> None:
    build(path)
    path.write_text(text)
    with pytest.raises(ConfigError):
        build(path)
    assert later() == []


def test_an_edition_whose_constructor_raises_leaves_no_module(path: Path) -> None:
    build(path)
    path.write_text(FILE.format(mark="?") + "\n    def __init__(self): raise ValueError('no')\n")
    with pytest.raises(ValueError, match="no"):
        build(path)
    assert later() == []


def test_one_that_fails_takes_nothing_from_one_that_runs(path: Path) -> None:
    build(path)
    path.write_text(FILE.format(mark="?"))
    running = build(path)
    with pytest.raises(ConfigError):
        catalogue.build(str(path), {"colour": "red"}, source_versions.read(str(path)))
    assert later() == [type(running).__module__]
    source_versions.forget(running)
    assert later() == []


def test_a_model_whose_class_lies_elsewhere_takes_its_edition_along(path: Path) -> None:
    build(path)
    (path.parent / "elsewhere_shouting.py").write_text(FILE.format(mark="?"))
    path.write_text("from elsewhere_shouting import Shout\nmodel = Shout()\n")
    model = build(path)
    assert type(model).__module__ == "elsewhere_shouting"
    del sys.modules["elsewhere_shouting"]
    assert len(later()) == 1
    source_versions.forget(model)
    assert later() == []


@pytest.mark.parametrize("change", ["edited", "deleted"])
@pytest.mark.parametrize("is_first", [True, False])
def test_what_makes_an_edition_makes_it_again_after_the_file_has_changed(
    path: Path, change: str, is_first: bool
) -> None:
    """As a worker process does that starts again: it has no module yet."""
    build(path)
    if not is_first:
        path.write_text(FILE.format(mark="?"))
    maker = partial(catalogue.build, str(path), {}, source_versions.read(str(path)))
    made = maker()
    name = type(made).__module__
    source_versions.forget(made)
    sys.modules.pop(name, None)
    if change == "edited":
        path.write_text(FILE.format(mark="."))
    else:
        path.unlink()
    again = pickle.loads(pickle.dumps(maker))()
    assert type(again).__module__ == name
    assert again.predict(["a"]) == ["a!" if is_first else "a?"]
    source_versions.forget(again)


def test_a_model_that_nobody_waited_for_takes_its_module_along(path: Path) -> None:
    """A load that timed out, or was cancelled, is made to the end in its thread."""
    build(path)
    path.write_text(FILE.format(mark="?"))
    for attempt in range(3):
        build(path, attempt)
    gc.collect()
    assert later() == []
