"""Schemas of answers as grammars. (What is too much to compile is in `tests/llm`.)"""

from typing import Any

import pytest

from headway.errors import InvalidInput
from headway.models.chat.grammars import grammar_of_regex, grammar_of_schema


def test_a_schema_that_is_nested_too_deep_is_its_callers_mistake() -> None:
    pytest.importorskip("llguidance")
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(InvalidInput, match="recursion limit"):
        grammar_of_schema(deep, "schema")


@pytest.mark.parametrize("multiple", [0.01, 5, 3000000, 1e-6, 99.99, True])
def test_multiples_that_people_ask_for_are_taken(multiple: float) -> None:
    pytest.importorskip("llguidance")
    assert grammar_of_schema({"type": "number", "multipleOf": multiple}, "schema")


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 10**400])
def test_a_number_beyond_all_floats_is_its_callers_mistake(number: float) -> None:
    pytest.importorskip("llguidance")
    with pytest.raises(InvalidInput, match=r"^schema: "):
        grammar_of_schema({"multipleOf": number}, "schema")


def test_a_text_that_is_too_long_is_refused_before_it_is_read() -> None:
    with pytest.raises(InvalidInput, match=r"^regex: 140000 characters"):
        grammar_of_regex("a?" * 70000, "regex")
