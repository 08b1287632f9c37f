"""Fields that are taken only with values that change nothing. With those, a field is as if it were
not there; with any other it is refused by its name.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

# By field: its values, or a type whose every value is one. Null counts as absent for every field.
Neutral: TypeAlias = Mapping[str, tuple[Any, ...] | type]


def is_neutral(name: str, value: Any, neutral: Neutral) -> bool:
    if value is None:
        return True
    values = neutral.get(name, ())
    if isinstance(values, type):
        return isinstance(value, values)
    return any(type(value) is type(each) and value == each for each in values)  # 1 is not true


def schema_of(values: tuple[Any, ...] | type) -> dict[str, Any]:
    """The schema of a neutral field, for `/openapi.json`."""
    described = {"description": "changes nothing"}
    if isinstance(values, type):
        return {"type": "string" if values is str else "object", **described}
    return {"enum": list(values), **described}
