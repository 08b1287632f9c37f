"""From a target to a model, and what is said when there is none."""

import importlib.metadata
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from headway import ConfigError, Model, TensorModel
from headway.models.catalogue import DEFAULT, ENTRY_POINTS, build, catalogue
from headway.models.sources.entry import Entry

APP = """
import headway
class Echo(headway.Model[int, int]):
    def __init__(self, times: int = 1) -> None:
        self.times = times
    def predict(self, items: list[int]) -> list[int]:
        return items
class Rows(headway.TensorModel):
    pass
number = 3
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "catalogue_app": APP,
        "catalogue_broken": "import not_there_at_all",
        "catalogue_entries": ENTRIES,
    }
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("app")
def test_a_class_is_built_with_its_options() -> None:
    model: Any = build("catalogue_app:Echo", {"times": 3})
    assert isinstance(model, Model)
    assert model.times == 3
    assert isinstance(build("catalogue_app:Rows", {}), TensorModel)


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nothing", r"'nothing' is not a model\. A model is a file .*one of .*minilm"),
        ("no_such_module_here:M", "there is no module 'no_such_module_here' in"),
        (
            "catalogue_app:Eco",
            r"catalogue_app:Eco does not exist; catalogue_app has catalogue_app:Echo \(class\), "
            r"catalogue_app:Rows \(class\); did you mean catalogue_app:Echo\?",
        ),
        ("catalogue_app:number", "is of type int, not a class or an instance of headway.Model"),
        ("catalogue_app:", "does not exist"),
        (":Echo", "Empty module name"),
        ("absent.onnx", "absent.onnx: there is no such file"),
    ],
)
def test_what_is_no_model_says_why(target: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(target, {})


@pytest.mark.usefixtures("app")
def test_a_module_that_fails_to_import_is_not_called_missing() -> None:
    message = "catalogue_broken cannot be imported: No module named 'not_there_at_all'; pip install"
    with pytest.raises(ConfigError, match=message):
        build("catalogue_broken:M", {})


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize("target", ["catalogue_app:Echo", "m.onnx"])
def test_an_option_that_a_model_does_not_take_is_named(target: str) -> None:
    with pytest.raises(ConfigError, match=r"options: .*'tims'"):
        build(target, {"tims": 3})


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Mapping[str, Entry]]:
    """The catalogue where packages register these objects, beside ours."""
    known = importlib.metadata.entry_points(group=ENTRY_POINTS)
    ours = [point for point in known if point.value.startswith("headway.")]

    def register(**values: str) -> Mapping[str, Entry]:
        points = [EntryPoint(name, value, ENTRY_POINTS) for name, value in values.items()] + ours
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: points)
        return catalogue.__wrapped__()

    return register


ENTRIES = """
from headway.models.sources.entry import Entry
MINE = Entry("mine", "echo", "says it again", "catalogue_app:Echo", "catalogue_app:W", "mine")
MINILM = Entry("minilm", "echo", "not ours", "catalogue_app:Echo", "catalogue_app:W", "mine")
"""


@pytest.mark.usefixtures("app")
def test_a_package_registers_a_model_by_an_entry_point(
    registered: Callable[..., Mapping[str, Entry]],
) -> None:
    found = registered(mine="catalogue_entries:MINE")
    assert found["mine"].maker()
    assert set(found) == {*registered(), "mine"}


@pytest.mark.usefixtures("app")
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("catalogue_broken:ENTRY", "cannot be registered"),
        ("catalogue_entries:NOT_THERE", "cannot be registered"),
        ("catalogue_app:number", "is a int, not an Entry"),
        ("catalogue_entries:MINILM", "there is a model 'minilm' already"),
    ],
)
def test_a_package_that_registers_badly_hurts_no_other(
    registered: Callable[..., Mapping[str, Entry]],
    caplog: pytest.LogCaptureFixture,
    value: str,
    message: str,
) -> None:
    assert registered(bad=value) == registered()
    assert message in caplog.text


def test_the_default_is_in_the_catalogue() -> None:
    assert DEFAULT in catalogue()
    for name, entry in catalogue().items():
        assert entry.name == name
        assert entry.summary
        assert "==" in entry.weights.requirement, "pinned"
        assert entry.maker()


def test_ours_are_registered_as_those_of_other_packages_are(
    registered: Callable[..., Mapping[str, Entry]],
) -> None:
    assert {"minilm", "moonshine", "rapidocr"} <= set(registered())
    assert all(each.model.startswith("headway.models.ready.") for each in registered().values())


def test_without_an_installation_the_default_is_said_to_need_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [])
    monkeypatch.setattr("headway.models.catalogue.catalogue", catalogue.__wrapped__)
    with pytest.raises(ConfigError, match="minilm: Headway itself is not installed here"):
        build(DEFAULT, {})
