"""A wrong setting in plain words: its place, the given value, and what is expected.

msgspec finds the mistakes and says `Expected `int`, got `str` - at `$.models[0].max_queue``; here
that becomes `[[models]] 'a': max_queue: a whole number is expected, not 'many'`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from headway.errors import nearest

_PLACE = re.compile(r"(?P<message>.*?)(?: - at `\$(?P<path>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.?(?P<name>\w+)|\[(?P<index>\d+)\]")
_EXPECTED = re.compile(r"Expected (?P<what>.+?)(?:, got .+)?", re.DOTALL)
_FIELD = re.compile(r"Object (?P<how>contains unknown|missing required) field `(?P<name>.*)`")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "array": "a list",
    "object": "a table",
}
_HASHES = frozenset(["api_keys", "hash"])  # settings that may hold a key by mistake
Path = Sequence[str | int]
Struct = type[msgspec.Struct]


def in_words(
    message: str, given: Mapping[str, Any], kind: Struct, tables: Mapping[str, Struct]
) -> str:
    """msgspec's message about `given`, which should have become a `kind`, in plain words.

    `tables`: the file's tables, by name, to recognise a setting of another table."""
    found = _PLACE.fullmatch(message)
    assert found is not None  # it matches everything
    path = _steps(found["path"] or "")
    field = _FIELD.fullmatch(found["message"])
    if field is None:
        return _prefixed(path, given, _value_in_words(found["message"], path, given, kind))
    if field["how"] == "missing required":
        return _prefixed(path, given, f"{field['name']} is missing")
    name = field["name"]
    hint = _maybe_meant(name, _kind_at(kind, path), tables)
    if not path and tables:
        return f"[{name}]: no such table{hint}"
    return _prefixed([*path, name], given, f"no such setting{hint}")


def expected(message: str) -> str:
    """`Expected …` as a sentence without its end: `a whole number >= 1 is expected`."""
    found = _EXPECTED.fullmatch(_PLACE.sub(r"\g<message>", message))
    if found is None:
        return message
    kinds = [each for each in re.split(r" \| ", found["what"].replace("`", "")) if each != "null"]
    parts = []
    for each in kinds:
        first, _, limits = each.partition(" ")
        limits = re.sub(r"(\d)\.0\b", r"\1", limits)
        parts.append(f"{_KINDS.get(first, first)} {limits}".rstrip())
    return f"{' or '.join(parts)} is expected"


def not_given(path: Path, value: Any) -> str:
    """The end of such a sentence: the given value. A key is never shown: logs are kept."""
    return f", not {value!r}" if _HASHES.isdisjoint(path) else ""


def _value_in_words(message: str, path: Path, given: Any, kind: Struct) -> str:
    value = _value_at(given, path)
    if message.startswith("Invalid enum value"):
        return f"one of {', '.join(_choices(kind, path))} is expected, not {value!r}"
    if " matching regex " in message:
        if path[-1:] == ["hash"]:
            return "a hash as `headway keys new` prints it is expected (sha256:…)"
        return f"{value!r} is not a name: letters, digits and, after the first, _ . - are expected"
    if message.startswith("Expected `array`, got `object`") and path == ["models"]:
        return 'each model is a table of its own: [[models]], with name = "…" and target = "…"'
    if _EXPECTED.fullmatch(message) is None:
        return message  # a struct's own words
    if " of length " in message:
        return "it is empty"
    return expected(message) + not_given(path, value)


def _prefixed(path: Path, given: Mapping[str, Any], message: str) -> str:
    """The place as the file writes it: `[server] port`, `[[models]] 'a': max_queue`."""
    if not path or path == ["models"]:
        return message
    first, *rest = path
    table = given.get(str(first))
    entry = _value_at(table, rest[:1])
    if rest and isinstance(rest[0], int) and isinstance(entry, dict):
        name = entry.get("name", entry.get("id"))
        called = repr(name) if isinstance(name, str) else f"number {rest[0] + 1}"
        first, rest = f"[[{first}]] {called}:", rest[1:]
    elif isinstance(table, dict):
        first = f"[{first}]"
    setting = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in rest)
    setting = setting.removeprefix(".")
    if not setting:
        return f"{first} {message}" if str(first).startswith("[") else f"{first}: {message}"
    if not str(first).startswith("["):
        return f"{first}{'' if setting.startswith('[') else '.'}{setting}: {message}"
    return f"{first} {setting}: {message}"


def _maybe_meant(name: str, kind: Struct | None, tables: Mapping[str, Struct]) -> str:
    """The table that has a setting of this name, or the setting or table with the nearest name."""
    brackets = {each: f"[{each}]" if each == "server" else f"[[{each}]]" for each in tables}
    for table, struct in tables.items():
        if struct is not kind and name in struct.__struct_fields__:
            return f"; it belongs to {brackets[table]}"
    known = () if kind is None else kind.__struct_fields__
    hint = nearest(name, known)
    for table, written in brackets.items():
        if hint == f"; did you mean {table}?" and table in known:
            return f"; did you mean {written}?"
    return hint


# ---- along the path


def _steps(path: str) -> list[str | int]:
    return [
        each["name"] if each["index"] is None else int(each["index"])
        for each in _STEP.finditer(path)
    ]


def _value_at(given: Any, path: Path) -> Any:
    for step in path:
        try:
            given = given[step]
        except (KeyError, IndexError, TypeError):  # within a table of tables msgspec names no key
            return given
    return given


def _hint_at(kind: Any, path: Path) -> Any:
    for step in path:
        kind = _plain(kind)
        if isinstance(step, int):
            kind = get_args(kind)[0] if get_args(kind) else None
        else:
            is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
            kind = get_type_hints(kind, include_extras=True).get(step) if is_struct else None
    return _plain(kind)


def _plain(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _kind_at(kind: Struct, path: Path) -> Struct | None:
    found = _hint_at(kind, path)
    return found if isinstance(found, type) and issubclass(found, msgspec.Struct) else None


def _choices(kind: Struct, path: Path) -> list[str]:
    hint = _hint_at(kind, path)
    literals = hint if get_origin(hint) is Literal else None
    return [str(each) for each in get_args(literals)]
