"""Limits on schemas and expressions, checked before anything is compiled.

This counts only what is known to explode, in time that grows with the text alone. Everything else
that is too expensive shows when it is tried, in a process that can be killed (`trials`).
"""

import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from headway.errors import InvalidInput

MOST_CHARACTERS = 2**17  # of a schema or an expression
MOST_CHOICES = 1024
MOST_ENUMERATED = 4096  # values of one `enum`
MOST_CONJUNCTIONS = 8  # parts of a schema that hold at once: each more doubles what compiling takes
MOST_REPEATS = 1024  # of ? * + {…}, in all expressions: of n in a row, compiling takes n squared
_LARGEST = 2**53  # that a float still tells apart
MOST_MULTIPLE = 10_000  # its automaton has a state for every remainder


def check_length(text: str, field: str) -> None:
    if len(text) > MOST_CHARACTERS:
        raise InvalidInput(f"{field}: {len(text)} characters; at most {MOST_CHARACTERS} are taken")


def check_expression(expression: str, field: str) -> None:
    check_length(expression, field)
    _check_repeats(_repeats(expression), field)


def check_schema(schema: Mapping[str, Any], field: str) -> None:
    conjunctions = repeats = 0
    for part in _objects(schema):
        conjunctions += _conjunctions(part)
        repeats += sum(map(_repeats, _expressions(part)))
        _check_values(part, field)
    if conjunctions > MOST_CONJUNCTIONS:
        raise InvalidInput(
            f"{field}: {conjunctions} parts of the schema hold at once (in allOf, or beside $ref, "
            f"anyOf, oneOf); at most {MOST_CONJUNCTIONS} are taken"
        )
    _check_repeats(repeats, field)


def _objects(schema: Any) -> Iterator[Mapping[str, Any]]:
    """All objects in the schema, at any depth."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            yield each
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each


def _conjunctions(schema: Mapping[str, Any]) -> int:
    """The number of patterns that must all match: they are intersected, which takes hours for
    twenty."""
    parts = schema.get("allOf")
    count = len(parts) if isinstance(parts, list) and len(parts) > 1 else 0
    has_text = not schema.keys().isdisjoint(("pattern", "format"))
    has_more = not schema.keys().isdisjoint(("$ref", "anyOf", "oneOf", "allOf"))
    return count + (has_text and has_more)


def _expressions(part: Mapping[str, Any]) -> Iterator[str]:
    pattern, keys = part.get("pattern"), part.get("patternProperties")
    if isinstance(pattern, str):
        yield pattern
    if isinstance(keys, Mapping):
        yield from keys


def _repeats(expression: str) -> int:
    return sum(map(expression.count, "?*+{"))


def _check_repeats(count: int, field: str) -> None:
    if count > MOST_REPEATS:
        raise InvalidInput(
            f"{field}: {count} repeats (?, *, + or {{…}}) in its expressions; at most "
            f"{MOST_REPEATS} are taken"
        )


def _check_values(part: Mapping[str, Any], field: str) -> None:
    values, multiple = part.get("enum"), part.get("multipleOf")
    if isinstance(values, list) and len(values) > MOST_ENUMERATED:
        raise InvalidInput(
            f"{field}: an enum of {len(values)} values; at most {MOST_ENUMERATED} are taken"
        )
    if isinstance(multiple, int | float) and _digits(multiple) > MOST_MULTIPLE:
        raise InvalidInput(
            f"{field}: multipleOf: {multiple!r:.40} is too large: without its point and its zeros "
            f"at the end, at most {MOST_MULTIPLE} is taken"
        )


def _digits(multiple: int | float) -> float:
    """The digits that the automaton counts: 0.25 as 25, 3000 as 3."""
    if abs(multiple) > _LARGEST or multiple != multiple:
        return math.inf
    return int("".join(map(str, Decimal(repr(float(multiple))).normalize().as_tuple().digits)))
