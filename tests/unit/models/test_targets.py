"""`headway serve` of code: files by their path, instances, the only model of a file; and what is
said where there is none."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway import ConfigError
from headway.models.catalogue import build
from headway.models.sources.weights import is_hub_name

ONE = """
import headway
import {neighbour}

class Shout(headway.Model[str, str]):
    def __init__(self, mark: str = "!", times: int = 1) -> None:
        self.mark = mark * times

    def predict(self, items: list[str]) -> list[str]:
        return [item.upper() + self.mark for item in items]
"""
INSTANCE = (
    ONE
    + """
loud = Shout(mark="!!")
"""
)
TWO = (
    ONE
    + """
class Whisper(Shout):
    pass

def helper(items: list[str]) -> list[str]:
    return items
"""
)
FUNCTION = """
def _private(items: list[str]) -> list[str]:
    return items

def predict(items: list[str]) -> list[int]:
    return [len(item) for item in items]
"""
OTHERS = """
class NotOurs:
    def predict(self, items: list[str]) -> list[str]:
        return items

number = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Files that are on no path; their neighbour is only beside them."""
    neighbour = f"neighbour_{tmp_path.name}"
    (tmp_path / f"{neighbour}.py").write_text("")
    for name, text in {
        "one_shout": ONE,
        "instance_shout": INSTANCE,
        "two_shouts": TWO,
        "only_function": FUNCTION,
        "others_only": OTHERS,
        "nothing_there": "number = 3\n",
        "with-dash": ONE,
        "json": ONE,  # a name that another module has
        "broken_file": "def f(:\n",
        "needs_more": "import not_there_at_all\n",
    }.items():
        (tmp_path / f"{name}.py").write_text(text.replace("{neighbour}", neighbour))
    before, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = before
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("target", "answer"),
    [
        ("one_shout.py", "A!"),
        ("one_shout.py:Shout", "A!"),
        ("instance_shout.py", "A!!"),  # and not its class
        ("instance_shout.py:loud", "A!!"),
        ("two_shouts.py:Whisper", "A!"),
        ("only_function.py", 1),
        ("only_function.py:predict", 1),
        ("with-dash.py", "A!"),
        ("json.py", "A!"),
    ],
)
def test_a_file_is_served_by_its_path(folder: Path, target: str, answer: object) -> None:
    model: Any = build(str(folder / target), {})
    assert list(model.predict(["a"])) == [answer]
    again: Any = build(str(folder / target), {})  # as worker processes and reloads do
    assert list(again.predict(["a"])) == [answer]
    assert again is not model
    model.__dict__.clear()  # as a version that is unloaded
    assert list(again.predict(["a"])) == [answer]


def test_its_class_takes_options_by_type(folder: Path) -> None:
    model: Any = build(str(folder / "one_shout.py"), {"mark": "?", "times": 2})
    assert list(model.predict(["a"])) == ["A??"]
    with pytest.raises(ConfigError, match=r"options\.times: Expected `int`, got `str`: 'many'"):
        build(str(folder / "one_shout.py"), {"times": "many"})
    takes = r"does not take these options: .*'marks'; it takes mark, times; did you mean mark\?$"
    with pytest.raises(ConfigError, match=takes):
        build(str(folder / "one_shout.py"), {"marks": "?"})


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("absent.py", r"absent\.py: there is no such file"),
        ("absent.py:Model", r"absent\.py: there is no such file"),
        ("broken_file.py", r"broken_file\.py, line 1: invalid syntax"),
        ("needs_more.py", r"cannot be imported: No module named 'not_there_at_all'; pip install "),
        (
            "two_shouts.py",
            r"has 2 models: say which, as in headway serve .*two_shouts\.py:Shout; .*"
            r":Shout \(class\), .*:Whisper \(class\), .*:helper \(function\)",
        ),
        ("two_shouts.py:Whisperer", r"does not exist; .*did you mean .*two_shouts\.py:Whisper\?$"),
        ("nothing_there.py", r"has no model: write class Mine\(headway\.Model\)"),
        (
            "others_only.py",
            r"has no model: its class NotOurs is not one; write class NotOurs\(headway\.Model\)$",
        ),
        (
            "others_only.py:NotOurs",
            r"is not a model: write class NotOurs\(headway\.Model\), with predict\(self, items\)$",
        ),
        ("others_only.py:number", "is of type int, not a class or an instance of headway.Model"),
    ],
)
def test_a_refusal_says_what_is_there(folder: Path, target: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(str(folder / target), {})


def test_an_instance_takes_no_options(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"options: .*:loud is a finished Shout"):
        build(str(folder / "instance_shout.py:loud"), {"mark": "?"})


def test_a_module_that_is_not_there_points_to_the_path() -> None:
    with pytest.raises(
        ConfigError, match=r"to serve a file elsewhere, give its path: .*absent_m\.py"
    ):
        build("absent_m:Model", {})


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("sentence-transformers/all-MiniLM-L6-v2", True),
        ("acme/tiny@v1", True),
        ("./models/x", False),
        ("../x", False),
        ("a/b/c", False),
        ("minilm", False),
    ],
)
def test_what_may_be_a_name_on_the_hub(text: str, *, is_one: bool) -> None:
    assert is_hub_name(text) is is_one


def test_a_near_miss_of_a_name_is_named() -> None:
    with pytest.raises(ConfigError, match=r"did you mean minilm\?"):
        build("minlm", {})
