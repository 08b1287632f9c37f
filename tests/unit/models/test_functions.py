"""Functions as models: what their hints and their decorator say."""

from pathlib import Path
from typing import Any

import pytest

import headway
from headway import ConfigError
from headway.config import ModelConfig
from headway.hosting.hosted import Served
from headway.hosting.registry import Ask
from headway.models.catalogue import build

APP = """
import headway

def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]

async def shout(items: list[str], *, mark: str = "!") -> list[str]:
    return [item.upper() + mark for item in items]

def strip(text: str) -> str:
    return text.strip()

@headway.batched(max_batch_size=8, max_queue=32, size=len, prepare=strip, max_reruns=0)
def lengths(items: list[str]) -> list[int]:
    return [len(item) for item in items]

@headway.batched
def plain(items: list[float]) -> list[float]:
    return items

def unhinted(items):
    return items

def bare(items: list) -> list:
    return items

def one(item: str) -> str:
    return item

def silent(items: list[str]):
    return items

def two(items: list[str], more: int) -> list[str]:
    return items

def odd(items: list["Nothing"]) -> list[str]:
    return items

def single(items: list[str]) -> int:
    return 3

constant = 3
"""


@pytest.fixture(autouse=True)
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "functions_app.py").write_text(APP)
    monkeypatch.syspath_prepend(str(tmp_path))


def served(name: str, **settings: Any) -> Served:
    return Served(ModelConfig(name=name, target=f"functions_app:{name}", **settings))


async def answers(made: Served, value: Any, **parameters: Any) -> Any:
    await made.start()
    try:
        return await made.predict(value, Ask(parameters=parameters))
    finally:
        await made.close()


async def test_a_plain_function_is_a_model() -> None:
    made = served("double")
    assert [each.dtype for each in (*made.inputs, *made.outputs)] == ["int64", "int64"]
    assert await answers(made, 21) == 42


async def test_an_async_function_is_one_and_its_keywords_are_parameters() -> None:
    assert await answers(served("shout"), "hi") == "HI!"
    assert await answers(served("shout"), "hi", mark="?") == "HI?"


async def test_a_decorated_function_keeps_what_its_decorator_said() -> None:
    made = served("lengths")
    assert (made.max_batch_size, made.config.max_queue) == (8, 32)
    assert await answers(made, "  four ") == 4
    assert await answers(served("plain"), 1.5) == 1.5


def test_a_setting_goes_before_the_decorator() -> None:
    assert served("lengths", max_batch_size=4).max_batch_size == 4
    assert served("lengths", max_batch_size=4).config.max_queue == 32


@pytest.mark.parametrize("name", ["unhinted", "bare", "silent"])
async def test_without_hints_a_function_takes_and_gives_any_json(name: str) -> None:
    value = {"a": [1, None]} if name != "silent" else "a"
    assert await answers(served(name), value) == value


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("one", r"'item' is the list of a batch's items.*its hint says \w+. Write `item: list"),
        ("two", "takes 2 arguments; a function that is served takes one"),
        ("odd", "bad type hint"),
        (
            "single",
            r"one result for each item.*its hint says int. Write `-> list\[int",
        ),
        ("constant", "is of type int, not a class.*functions_app:lengths"),
        (
            "absent",
            r"absent does not exist; .* has functions_app:lengths \(function\), .*:plain",
        ),
    ],
)
def test_what_cannot_be_served_says_why(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(f"functions_app:{name}", {})


def test_a_function_takes_no_options() -> None:
    with pytest.raises(ConfigError, match="does not take these options"):
        build("functions_app:double", {"times": 3})


async def test_the_decorated_function_still_works_by_itself() -> None:
    @headway.batched
    def twice(items: list[int]) -> list[int]:
        return [2 * item for item in items]

    assert await twice(2) == 4
    assert twice.options == {}
