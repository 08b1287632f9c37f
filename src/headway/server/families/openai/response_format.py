"""`response_format`, and vLLM's `structured_outputs`: the form that an answer must have."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from headway.errors import InvalidInput
from headway.models.chat.grammars import grammar_of_choice, grammar_of_regex, grammar_of_schema
from headway.server.bodies.neutral import check_names

_OBJECT = {"type": "object"}
_MAKERS = {"json": grammar_of_schema, "regex": grammar_of_regex, "choice": grammar_of_choice}
_KINDS = ("text", "json_object", "json_schema")


class AnswerFormat(NamedTuple):
    grammar: str
    field: str  # that asked for it


def format_of(
    response_format: Mapping[str, Any] | None, structured_outputs: Mapping[str, Any] | None
) -> AnswerFormat | None:
    """The answer's format; None: any text. Raises InvalidInput, which names the field."""
    if response_format is not None and structured_outputs is not None:
        raise InvalidInput("structured_outputs: cannot be combined with response_format")
    if structured_outputs is not None:
        return _structured(structured_outputs)
    return None if response_format is None else _response_format(response_format)


def _response_format(given: Mapping[str, Any]) -> AnswerFormat | None:
    field = "response_format"
    kind = given.get("type")
    if kind not in _KINDS:
        raise InvalidInput(f"{field}.type: {kind!r:.40} is not one of {', '.join(_KINDS)}")
    known = {"type", {"json_schema": "json_schema", "json_object": "schema"}.get(kind, "type")}
    check_names(given, known, field)
    if kind == "text":
        return None
    if kind == "json_object":
        # `schema` is llama.cpp's and Together's.
        schema = given.get("schema") or _OBJECT
        return AnswerFormat(grammar_of_schema(schema, field), field)
    inner = given.get("json_schema")
    if not isinstance(inner, Mapping) or "schema" not in inner:
        raise InvalidInput(f"{field}.json_schema: an object with a schema is expected")
    check_names(inner, ("name", "description", "schema", "strict"), f"{field}.json_schema")
    where = f"{field}.json_schema.schema"
    return AnswerFormat(grammar_of_schema(inner["schema"], where), where)


def _structured(given: Mapping[str, Any]) -> AnswerFormat:
    field = "structured_outputs"
    given_forms = {name: value for name, value in given.items() if value is not None}
    for name in given_forms.keys() - _MAKERS.keys():
        known = ", ".join(_MAKERS)
        raise InvalidInput(f"{field}.{name}: there is no such field; there are {known}")
    if len(given_forms) != 1:
        raise InvalidInput(f"{field}: one of {', '.join(_MAKERS)} is expected")
    ((name, value),) = given_forms.items()
    return AnswerFormat(_MAKERS[name](value, f"{field}.{name}"), f"{field}.{name}")


def guided(name: str, value: Any) -> AnswerFormat:
    """One of vLLM's older names, `guided_json` for example."""
    if name == "guided_json" and isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            raise InvalidInput(f"{name}: is not valid JSON") from None
    return AnswerFormat(_MAKERS[name.removeprefix("guided_")](value, name), name)
