"""Options are held against the hints of the constructor that takes them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from headway import ConfigError, Model
from headway.config import TypedText
from headway.models import catalogue

if TYPE_CHECKING:
    from fractions import Fraction


class Takes(Model[Any, Any]):
    def __init__(
        self,
        threads: int = 1,
        *,
        ratio: float = 0.5,
        is_fast: bool = False,
        kind: Literal["a", "b"] = "a",
        path: Path | None = None,
        sizes: tuple[int, ...] = (),
        anything: Any = None,
        untyped=None,  # type: ignore[no-untyped-def]
        unknown: "Fraction | None" = None,
    ) -> None:
        self.taken = (threads, ratio, is_fast, kind, path, sizes, anything, untyped, unknown)


def make(**options: Any) -> Any:
    return catalogue.make(Takes, options, where="here")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": "2"}, "options.threads: Expected `int`, got `str`: '2'"),
        ({"threads": True}, "options.threads: Expected `int`, got `bool`: True"),
        ({"threads": 1.5}, "options.threads: Expected `int`, got `float`: 1.5"),
        ({"is_fast": 1}, "options.is_fast: Expected `bool`, got `int`: 1"),
        ({"ratio": "0.1"}, "options.ratio: Expected `float`, got `str`: '0.1'"),
        ({"kind": "c"}, "options.kind: Invalid enum value 'c': 'c'"),
        ({"sizes": [1, "2"]}, r"options.sizes: Expected `int`, got `str`"),
        ({"path": 3}, "options.path: Expected "),
    ],
)
def test_the_wrong_type_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make(**options)
    assert str(refused.value).startswith(message)


def test_what_fits_comes_as_the_hint_says() -> None:
    made = make(ratio=1, path="/a/b", sizes=[1, 2], anything=[1], untyped="x", unknown="y")
    assert made.taken == (1, 1.0, False, "a", Path("/a/b"), (1, 2), [1], "x", "y")
    assert type(made.taken[1]) is float


def test_files_and_folders_check_theirs_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"options\.threads: Expected `int`"):
        catalogue.build(str(tmp_path / "model.onnx"), {"threads": "many"})


def test_texts_from_the_command_line_become_what_the_hints_say() -> None:
    made = make(
        **{
            name: TypedText(text)
            for name, text in {
                "threads": "2",
                "ratio": "0.1",
                "is_fast": "true",
                "kind": "b",
                "path": "7",
                "sizes": "[1, 2]",
                "anything": "3",
                "untyped": "yes",
            }.items()
        }
    )
    assert made.taken == (2, 0.1, True, "b", Path("7"), (1, 2), 3, "yes", None)
    with pytest.raises(ConfigError, match=r"options\.threads: Expected `int`, got `str`: 'many'"):
        make(threads=TypedText("many"))


class Named(Model[Any, Any]):
    def __init__(self, name: str) -> None:
        self.name = name


def test_a_text_that_looks_like_a_number_stays_one_where_a_text_is_wanted() -> None:
    made: Any = catalogue.make(Named, {"name": TypedText("123")}, where="here")
    assert made.name == "123"
    assert type(made.name) is str
