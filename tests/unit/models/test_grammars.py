"""Schemas of answers: what may be compiled at all. (Compiling is in `tests/llm`.)"""

from typing import Any

import pytest

from headway.errors import InvalidInput
from headway.models.chat.grammar_limits import MOST_CONJUNCTIONS
from headway.models.chat.grammars import grammar_of_regex, grammar_of_schema

PATTERN = {"type": "string", "pattern": ".*a.{3}b.*"}


def chained(count: int) -> dict[str, Any]:
    """Each definition has a pattern of its own, and the next one's."""
    links = {f"d{n}": {**PATTERN, "$ref": f"#/$defs/d{n + 1}"} for n in range(count)}
    return {"$defs": {**links, f"d{count}": PATTERN}, "$ref": "#/$defs/d0"}


def nested(count: int) -> dict[str, Any]:
    schema: dict[str, Any] = PATTERN
    for _ in range(count):
        schema = {**PATTERN, "anyOf": [schema]}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [PATTERN] * (MOST_CONJUNCTIONS + 1)},
        {"properties": {"a": {"allOf": [{"allOf": [PATTERN] * 5}, {"allOf": [PATTERN] * 5}]}}},
        chained(MOST_CONJUNCTIONS + 1),
        nested(MOST_CONJUNCTIONS + 1),
    ],
    ids=["flat", "nested in each other", "by reference", "beside anyOf"],
)
def test_many_patterns_that_hold_at_once_are_refused_before_they_are_compiled(
    schema: dict[str, Any],
) -> None:
    with pytest.raises(InvalidInput, match=r"schema: \d+ parts of the schema hold at once"):
        grammar_of_schema(schema, "schema")


def test_what_pydantic_makes_is_not_counted() -> None:
    fields = {f"f{n}": {"allOf": [{"$ref": "#/$defs/a"}], "default": 1} for n in range(40)}
    texts = {f"t{n}": {**PATTERN, "title": "t"} for n in range(40)}
    schema = {"$defs": {"a": {"type": "integer"}}, "properties": {**fields, **texts}}
    pytest.importorskip("llguidance")
    assert grammar_of_schema({**schema, "type": "object"}, "schema")


def test_a_schema_that_is_nested_too_deep_is_its_callers_mistake() -> None:
    pytest.importorskip("llguidance")
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(InvalidInput, match="recursion limit"):
        grammar_of_schema(deep, "schema")


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"multipleOf": 1499977}, "multipleOf: 1499977 is too large"),
        ({"properties": {"a": {"anyOf": [{"multipleOf": 12.3457}]}}}, "multipleOf: 12.3457 is too"),
        ({"multipleOf": float("inf")}, "multipleOf: inf is too large"),
        ({"multipleOf": float("nan")}, "multipleOf: nan is too large"),
        ({"multipleOf": 10**400}, "multipleOf: 1000"),
        ({"enum": ["a"] * 5000}, "an enum of 5000 values"),
        ({"pattern": "a?" * 1025}, "1025 repeats"),
        ({"patternProperties": {"a?" * 600: {"pattern": "b{2}" * 600}}}, "1200 repeats"),
    ],
)
def test_what_takes_a_compiler_seconds_is_refused_before(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=f"^schema: {why}"):
        grammar_of_schema(schema, "schema")


@pytest.mark.parametrize("multiple", [0.01, 5, 3000000, 1e-6, 99.99, True])
def test_multiples_that_people_ask_for_are_taken(multiple: float) -> None:
    pytest.importorskip("llguidance")
    assert grammar_of_schema({"type": "number", "multipleOf": multiple}, "schema")


def test_an_expression_of_many_repeats_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^regex: 43000 repeats"):
        grammar_of_regex("a?" * 43000 + "a" * 43000, "regex")
