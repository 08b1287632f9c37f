"""Schemas are narrowed where that is known to lose no call."""

import calendar
import re
from typing import Any

import pytest

from headway.models.chat.narrowing import closed, dated

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


def test_dates_are_those_of_the_calendar() -> None:
    found = re.compile(dated({"type": "string", "format": "date"})["pattern"])
    for year in (1000, 1900, 1996, 2000, 2023, 2024, 2100, 2400):
        for month in range(14):
            last = calendar.monthrange(year, month)[1] if 1 <= month <= 12 else 0
            for day in range(33):
                is_one = 1 <= day <= last
                assert bool(found.search(f"{year}-{month:02}-{day:02}")) == is_one


def test_times_have_sixty_seconds_in_a_minute() -> None:
    schema = dated({"items": {"anyOf": [{"format": "date-time"}, {"format": "uuid"}]}})
    moment, other = schema["items"]["anyOf"]
    assert other == {"format": "uuid"}
    for text, is_one in {
        "2024-02-29T23:59:59Z": True,
        "2024-02-29T23:59:59.25+01:30": True,
        "2023-02-29T00:00:00Z": False,
        "2024-01-01T00:00:60Z": False,
        "2024-01-01T24:00:00Z": False,
        "2024-01-01T00:00:00": False,
        "2024-01-01 00:00:00Z": False,
    }.items():
        assert bool(re.search(moment["pattern"], text)) == is_one, text


def test_email_addresses_have_lengths_that_exist() -> None:
    found = re.compile(dated({"type": "string", "format": "email"})["pattern"])
    assert found.match("jane.doe+mail@mail.example.com")
    for wrong in (f"{'a' * 65}@b.de", "a@b", "@b.de", "a.@b.de", f"a@{'b' * 64}.de", "a b@c.de"):
        assert not found.match(wrong), wrong
