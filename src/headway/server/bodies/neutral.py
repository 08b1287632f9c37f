"""Fields that are taken only with values that change nothing. With those, a field is as if it were
not there; with any other it is refused by its name.
"""

from collections.abc import Callable, Collection, Mapping, Sized
from typing import Any, TypeAlias

from headway.errors import InvalidInput

# By field: its values, or a type whose every value is one. Null counts as absent for every field.
Neutral: TypeAlias = Mapping[str, tuple[Any, ...] | type]
_MOST = 4096  # messages of a chat, or parts of a message


def is_neutral(name: str, value: Any, neutral: Neutral) -> bool:
    if value is None:
        return True
    values = neutral.get(name, ())
    if isinstance(values, type):
        return isinstance(value, values)
    return any(type(value) is type(each) and value == each for each in values)  # 1 is not true


def check_fields(
    given: Mapping[str, Any], known: Collection[str], where: str, neutral: Neutral
) -> None:
    """Refuse a field that is neither known nor neutral. Raises InvalidInput, which names it."""
    for name, value in given.items():
        if name not in known and not is_neutral(name, value, neutral):
            raise InvalidInput(f"{where}.{name}: this field is not supported")


def check_names(given: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Refuse a field that is not known. Raises InvalidInput, which names it."""
    for name in given:
        if name not in known:
            raise InvalidInput(f"{where}.{name}: there is no such field")


def text_at(given: Mapping[str, Any], name: str, where: str) -> str:
    """The text in this field. Raises InvalidInput."""
    text = given.get(name)
    if not isinstance(text, str):
        raise InvalidInput(f"{where}.{name}: a text is expected")
    return text


def check_count(listed: Sized, name: str = "messages") -> None:
    if len(listed) > _MOST:
        raise InvalidInput(f"{name}: {len(listed)}; at most {_MOST} are allowed")


def texts_in(content: Any, where: str, text_of: Callable[[Any, str], str], parts: str) -> list[str]:
    """A text, or a list of `parts`, of which `text_of` reads one each. Raises InvalidInput."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise InvalidInput(f"{where}: a text or a list of {parts} is expected")
    check_count(content, where)
    return [text_of(each, f"{where}[{index}]") for index, each in enumerate(content)]


def schema_of(values: tuple[Any, ...] | type) -> dict[str, Any]:
    """The schema of a neutral field, for `/openapi.json`."""
    described = {"description": "changes nothing"}
    if isinstance(values, type):
        return {"type": "string" if values is str else "object", **described}
    return {"enum": list(values), **described}
