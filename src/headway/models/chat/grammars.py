"""Answers of a given form: JSON by a schema, a regular expression, one of several texts.

`llguidance` compiles a grammar once, off the step, within its own limits, and says for each step
which tokens may come next. A grammar is a text, so that it can go to an engine in another process.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from headway.errors import InvalidInput

MOST_CHARACTERS = 2**17  # of a schema or an expression
MOST_CHOICES = 1024
MOST_CONJUNCTIONS = 8  # parts of a schema that hold at once: each more doubles what compiling takes
_MOST_COMPILED = 64
_COMPACT = {"whitespace_flexible": False}  # or a weak model says spaces for ever


def grammar_of_schema(schema: Any, field: str) -> str:
    """Raises InvalidInput, as the others do; whether it can be compiled is asked of `Grammars`."""
    if not isinstance(schema, Mapping):
        raise InvalidInput(f"{field}: a JSON schema is an object")
    text = json.dumps(schema)
    _check_length(text, field)
    _check_conjunctions(schema, field)
    try:
        made: str = _matcher_class(field).grammar_from_json_schema(text, overrides=_COMPACT)
    except ValueError as error:  # it is nested too deep
        raise InvalidInput(f"{field}: {error}") from error
    return made


def grammar_of_regex(expression: Any, field: str) -> str:
    if not isinstance(expression, str) or not expression:
        raise InvalidInput(f"{field}: a regular expression is a text")
    _check_length(expression, field)
    made: str = _matcher_class(field).grammar_from_regex(expression)
    return made


def grammar_of_choice(choices: Any, field: str) -> str:
    is_texts = isinstance(choices, list) and all(isinstance(each, str) and each for each in choices)
    if not is_texts or not 0 < len(choices) <= MOST_CHOICES:
        raise InvalidInput(f"{field}: a list of 1 to {MOST_CHOICES} texts is expected")
    text = "start: " + " | ".join(json.dumps(each, ensure_ascii=False) for each in choices)
    _check_length(text, field)
    made: str = _matcher_class(field).grammar_from_lark(text)
    return made


def _check_length(text: str, field: str) -> None:
    if len(text) > MOST_CHARACTERS:
        raise InvalidInput(f"{field}: {len(text)} characters; at most {MOST_CHARACTERS} are taken")


def _check_conjunctions(schema: Any, field: str) -> None:
    """Two patterns that must both fit are intersected, and so on: of twenty, that takes hours."""
    count, waiting = 0, [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            count += _conjunctions(each)
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    if count > MOST_CONJUNCTIONS:
        raise InvalidInput(
            f"{field}: {count} parts of the schema hold at once (in allOf, or beside $ref, anyOf, "
            f"oneOf); at most {MOST_CONJUNCTIONS} are taken"
        )


def _conjunctions(schema: Mapping[str, Any]) -> int:
    parts = schema.get("allOf")
    count = len(parts) if isinstance(parts, list) and len(parts) > 1 else 0
    has_text = not schema.keys().isdisjoint(("pattern", "format"))
    has_more = not schema.keys().isdisjoint(("$ref", "anyOf", "oneOf", "allOf"))
    return count + (has_text and has_more)


class Grammars:
    """Of one vocabulary: compiled once each, the latest kept. Used by several threads."""

    def __init__(self, tokenizer: str, *, vocabulary: int, ends: Sequence[int]) -> None:
        """`tokenizer`: its JSON. `ends`: what may come when the text is complete."""
        from llguidance import LLTokenizer

        self._vocabulary = vocabulary
        self._ends = list(ends)
        self._tokenizer = LLTokenizer(tokenizer, n_vocab=vocabulary, eos_token=list(ends))
        self._compiled: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, grammar: str, field: str) -> None:
        """Compile it, perhaps for seconds. Raises InvalidInput."""
        if not self._ends:
            raise InvalidInput(f"{field}: the model has no token that ends a text")
        why = self.compile(grammar).get_error()
        if why:
            raise InvalidInput(f"{field}: {' '.join(why.split())[:500]}")

    def matcher(self, grammar: str) -> "Matcher":
        return Matcher(self.compile(grammar).deep_copy(), self._vocabulary, self._ends)

    def compile(self, grammar: str) -> Any:
        """Slow the first time."""
        with self._lock:
            found = self._compiled.get(grammar)
            if found is not None:
                self._compiled.move_to_end(grammar)
                return found
        made = _matcher_class("grammar")(self._tokenizer, grammar, log_level=0)
        with self._lock:
            self._compiled[grammar] = made
            if len(self._compiled) > _MOST_COMPILED:
                self._compiled.popitem(last=False)
        return made


class Matcher:
    """How far one answer has come in its grammar."""

    def __init__(self, matcher: Any, vocabulary: int, ends: Sequence[int]) -> None:
        self._matcher = matcher
        self._ends = ends
        self._vocabulary = vocabulary
        self._consumed = 0

    def allowed(self, generated: Sequence[int]) -> Any:
        """Which tokens may follow those, as an array of booleans."""
        import numpy

        matcher = self._matcher
        if len(generated) > self._consumed and not matcher.is_stopped():
            matcher.consume_tokens(list(generated[self._consumed :]))
        self._consumed = len(generated)
        if matcher.is_error():
            # The library gave up, at a limit of its own. What ends by `stop` has its form: so this
            # one ends by its length.
            return self._ends_or_others(is_end=False)
        if matcher.is_stopped():
            return self._ends_or_others(is_end=True)
        bits = numpy.frombuffer(matcher.compute_bitmask(), numpy.uint8)
        mask = numpy.unpackbits(bits, bitorder="little")[: self._vocabulary]
        return mask.astype(bool)

    def _ends_or_others(self, *, is_end: bool) -> Any:
        """Everything but what ends an answer; or only that."""
        import numpy

        mask = numpy.full(self._vocabulary, not is_end)
        mask[self._ends] = is_end
        return mask


def _matcher_class(field: str) -> Any:
    try:
        from llguidance import LLMatcher
    except ImportError:
        why = "this server has no llguidance; it comes with headway[llm]"
        raise InvalidInput(f"{field}: {why}") from None
    return LLMatcher
