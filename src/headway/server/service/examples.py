"""An example value for a user who tries a route by hand: it fits the route's schema."""

from collections.abc import Mapping
from typing import Any, TypeAlias

Schema: TypeAlias = dict[str, Any]
# One white pixel as PNG in base64: an example for models that take bytes, most of all images.
IMAGE = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mP4DwABAQEAHLCMmQAAAABJRU5ErkJggg=="
)

_MOST_DEPTH = 8  # of a schema that contains itself


def example_of(schema: Schema) -> Any:
    """An example value; None if only null fits, or nothing is known."""
    return _Examples(schema.get("$defs", {})).of(schema)


class _Examples:
    def __init__(self, definitions: Mapping[str, Any]) -> None:
        self._definitions = dict(definitions)
        self._depth = 0

    def of(self, schema: Any) -> Any:
        if not isinstance(schema, dict) or self._depth > _MOST_DEPTH:
            return None
        self._definitions.update(schema.get("$defs", {}))
        self._depth += 1
        try:
            return self._given(schema) if schema.keys() & _GIVEN else self._typed(schema)
        finally:
            self._depth -= 1

    def _given(self, schema: Schema) -> Any:
        """The example or constant in the schema itself, or in the schema that it refers to."""
        if schema.get("examples"):
            return schema["examples"][0]
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return schema["enum"][0]
        if "$ref" in schema:
            return self.of(self._definitions.get(schema["$ref"].rpartition("/")[2], {}))
        choices = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf") or [{}]
        return self.of(next((each for each in choices if each.get("type") != "null"), {}))

    def _typed(self, schema: Schema) -> Any:
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = next((each for each in kind if each != "null"), "null")
        match kind:
            case "string":
                return self._text(schema)
            case "integer" | "number":
                return self._number(schema)
            case "boolean":
                return True
            case "array":
                return self._list(schema)
            case "object":
                return self._object(schema)
            case _:
                return None

    def _text(self, schema: Schema) -> str:
        if "contentEncoding" in schema:
            return IMAGE  # of all files the likeliest
        text: str = _FORMATS.get(schema.get("format", ""), "hello")
        least: int = schema.get("minLength", 0)
        most: int = schema.get("maxLength", len(text) + 1)
        return (text + "o" * (least - len(text)))[: max(least, most)]

    def _number(self, schema: Schema) -> Any:
        """An example number: 1 if that is allowed, else the nearest bound, or the middle of two."""
        low, high = schema.get("minimum"), schema.get("maximum")
        above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        if above is not None and below is not None and schema.get("type") == "number":
            return (above + below) / 2
        least = low if above is None else above + 1
        most = high if below is None else below - 1
        value = 1 if least is None else max(1, least)
        return value if most is None else min(value, most)

    def _list(self, schema: Schema) -> list[Any]:
        first = [self.of(each) for each in schema.get("prefixItems", ())]  # of a tuple
        items = schema.get("items", {})
        if not isinstance(items, dict):  # false: no more than those
            return first
        return first or [self.of(items)] * schema.get("minItems", 1)

    def _object(self, schema: Schema) -> dict[str, Any]:
        """An object with the required fields; if none is required, with all."""
        parts = schema.get("properties", {})
        needed = schema.get("required") or list(parts)
        return {name: self.of(parts[name]) for name in parts if name in needed}


_GIVEN = {"examples", "const", "enum", "$ref", "anyOf", "oneOf", "allOf"}
_FORMATS = {
    "date": "2026-01-31",
    "date-time": "2026-01-31T12:00:00Z",
    "time": "12:00:00",
    "duration": "PT1H",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "decimal": "1.5",
    "email": "ada@example.org",
    "uri": "https://example.org/",
}
