"""The grammar of an answer that may call tools, in the words of the model's own convention.

Text is free up to the word that opens a call; from there on only a call fits, with arguments that
meet their schema. Written for llguidance, in its dialect of Lark.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from headway.errors import InvalidInput
from headway.models.chat.chats import ChatTool, ToolUse
from headway.models.chat.conventions import Convention, Marker, Thinking
from headway.models.chat.grammars import check_length, grammar_of_lark, with_answer
from headway.models.chat.narrowing import closed, dated

# JSON as models have learnt it, without free white space.
_WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_TEXT = "TEXT: /(.|\\n)*/"
_NO_CALL = "NO_CALL: /(\\s*[^{\\s](.|\\n)*)?/"  # where a call has no word that opens it
_SPACES = "SPACES: /[ \\n]{0,4}/"


def grammar_of_tools(
    use: ToolUse, convention: Convention, thinking: Sequence[str] = (), answer: str = ""
) -> str:
    """`thinking`: the rules of `thinking_rules`. `answer`: the grammar of an answer without calls;
    empty: any text. Raises InvalidInput, which names the field."""
    is_many = use.is_parallel and convention.takes_many
    is_optional = use.mode == "auto"
    is_free = is_optional and not answer
    body = _sections(convention, is_free=is_free, is_many=is_many)
    if is_optional and answer:
        if convention.opens is None:
            raise InvalidInput("response_format: this model's calls look the same: no tools beside")
        body = f"({body} | @answer)"
    rules = [
        f"start: thoughts {body}" if thinking else f"start: {body}",
        *thinking,
        *_rules_of_sections(convention, is_free=is_free, is_many=is_many),
        "call: " + " | ".join(f"call_{index}" for index in range(len(use.callable))),
    ]
    for index, tool in enumerate(use.callable):
        rules += _rules_of_call(tool, index, convention)
    text = "\n".join(dict.fromkeys(rules))
    check_length(text, "tools")
    if is_optional and answer:
        return with_answer([text], answer)
    return grammar_of_lark(text, "tools")


def thinking_rules(thinking: Thinking, *, is_open: bool) -> list[str]:
    """The rules of `thoughts`, before the rest of an answer. `is_open`: the prompt ends within
    them; otherwise there may be none."""
    closes = thinking.closes
    rules = [_TEXT, _SPACES]
    ends = [] if closes.id is None else [f"TEXT {_token(closes.id)}"]
    if not closes.is_special:
        rules.append(f"thought[lazy]: TEXT {json.dumps(closes.text)}")
        ends.append("thought")
    inner = f"({' | '.join(ends)}) SPACES"
    if is_open:
        return [*rules, f"thoughts: {inner}"]
    if thinking.opens.id is None:  # its letters would be text as well
        return [*rules, "thoughts: "]
    return [*rules, f"thoughts: ({_token(thinking.opens.id)} {inner})?"]


def _sections(convention: Convention, *, is_free: bool, is_many: bool) -> str:
    is_repeated = is_many and not convention.between
    if convention.opens is None:
        return "(section | NO_CALL)" if is_free else "section"
    if is_free:
        return "(text_then section)* TEXT" if is_repeated else "(TEXT | text_then section)"
    again = " (SPACES opens section)* SPACES" if is_repeated else ""
    return f"opens section{again}"


def _rules_of_sections(convention: Convention, *, is_free: bool, is_many: bool) -> Iterator[str]:
    opens = convention.opens
    if opens is None:
        yield _NO_CALL
    elif is_free:
        yield _TEXT
        yield from _rules_of_opening(opens)
    else:
        yield _SPACES
        yield f"opens: {_marker(opens)}"
    more = f" ({json.dumps(convention.between)} call)*" if is_many and convention.between else ""
    closes = "" if convention.closes is None else _marker(convention.closes)
    yield f"section: {_words(convention.begin)} call{more} {_words(convention.end)} {closes}"


def _rules_of_opening(opens: Marker) -> Iterator[str]:
    """`text_then`: text up to the first word that opens a call."""
    ways = [] if opens.id is None else [f"TEXT {_token(opens.id)}"]
    if not opens.is_special:
        ways.append("spelled")
        yield f"spelled[lazy]: TEXT {json.dumps(opens.text)}"
    yield f"text_then: {' | '.join(ways)}"


def _rules_of_call(tool: ChatTool, index: int, convention: Convention) -> Iterator[str]:
    middle, named = convention.middle, convention.head + tool.name
    if middle.id is None:
        named, between = named + middle.text, ""
    else:
        between = _marker(middle)
    parts = [_words(named), between, f"arguments_{index}", _words(convention.tail)]
    yield f"call_{index}: " + " ".join(filter(None, parts))
    yield f"arguments_{index}: %json {json.dumps(_checked(tool))}"


def _checked(tool: ChatTool) -> dict[str, Any]:
    schema = dict(tool.parameters)
    if schema.get("type", "object") != "object":
        raise InvalidInput(f"{tool.field}: the arguments of a function are an object")
    try:
        schema = dated(closed(schema))
    except RecursionError:
        raise InvalidInput(f"{tool.field}: the schema is nested too deep") from None
    return {**schema, "type": "object", "x-guidance": _WRITTEN}


def _marker(marker: Marker) -> str:
    if marker.id is None:
        return json.dumps(marker.text)
    token = _token(marker.id)
    return token if marker.is_special else f"({token} | {json.dumps(marker.text)})"


def _token(id_: int) -> str:
    return f"<[{id_}]>"


def _words(text: str) -> str:
    return json.dumps(text) if text else ""
