"""Schemas are closed where that is known to lose no call."""

from typing import Any

import pytest

from headway.models.chat.closing import closed

TEXT = {"type": "string"}


def test_described_objects_have_no_other_properties() -> None:
    inner = {"properties": {"b": TEXT}}
    schema = {
        "properties": {"properties": TEXT, "a": inner, "each": {"items": inner}},
        "$defs": {"d": inner, "free": {"type": "object"}},
        "enum": [{"properties": {}}],
    }
    no_more = {"properties": {"b": TEXT}, "additionalProperties": False}
    before = repr(schema)
    assert closed(schema) == {
        "properties": {"properties": TEXT, "a": no_more, "each": {"items": no_more}},
        "$defs": {"d": no_more, "free": {"type": "object"}},
        "enum": [{"properties": {}}],
        "additionalProperties": False,
    }
    assert repr(schema) == before


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": TEXT}, "additionalProperties": True},
        {"properties": {"a": TEXT}, "patternProperties": {"^x": TEXT}},
        {"allOf": [{"properties": {"a": TEXT}}, {"properties": {"b": TEXT}}]},
        {"properties": {"a": TEXT}, "anyOf": [{"properties": {"b": TEXT}}]},
        {"properties": {"a": TEXT}, "$ref": "#/$defs/d", "$defs": {"d": {"properties": {}}}},
        {"type": "object"},
        {"properties": {"a": True}, "items": [1], "additionalProperties": {"type": "integer"}},
    ],
)
def test_others_stay_as_they_are(schema: dict[str, Any]) -> None:
    assert closed(schema) == schema
