"""Answers of a given form: JSON by a schema, a regular expression, one of several texts.

A grammar is a text, so that it can go to other processes: first to one that tries it and can be
killed (`headway.models.chat.trials`), then to the engine, which compiles what passed, off the step.
There `llguidance` says for each step which tokens may come next.
"""

import json
import resource
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headway.errors import InvalidInput
from headway.models.chat.narrowing import dated

MOST_CHARACTERS = 2**17  # of a schema or an expression
MOST_CHOICES = 1024
MOST_BYTES = 2**24  # that one may keep, when it is compiled
_LEAST_BYTES = 2**16  # that each is taken to keep
_MOST_COMPILED_BYTES = 2**28
_MOST_STATES = 50_000  # of the lexer of one answer, of 1 to 2 KB each
_COMPACT = {"whitespace_flexible": False}  # or a weak model says spaces for ever


class Vocabulary(NamedTuple):
    """The tokens that grammars are compiled for."""

    tokenizer: str  # its JSON
    size: int
    ends: tuple[int, ...]  # tokens that may follow a complete text


def grammar_of_schema(schema: Any, field: str) -> str:
    """Raises InvalidInput, as the others do; whether it can be compiled is asked of `Grammars`."""
    if not isinstance(schema, Mapping):
        raise InvalidInput(f"{field}: a JSON schema is an object")
    try:
        text = json.dumps(dated(schema))
    except RecursionError:
        raise InvalidInput(f"{field}: the schema is nested too deep") from None
    check_length(text, field)
    try:
        made: str = _matcher_class(field).grammar_from_json_schema(text, overrides=_COMPACT)
    except ValueError as error:  # it is nested too deep, or has a number beyond all floats
        raise InvalidInput(f"{field}: {error}") from error
    return made


def grammar_of_regex(expression: Any, field: str) -> str:
    if not isinstance(expression, str) or not expression:
        raise InvalidInput(f"{field}: a regular expression is a text")
    check_length(expression, field)
    made: str = _matcher_class(field).grammar_from_regex(expression)
    return made


def grammar_of_choice(choices: Any, field: str) -> str:
    is_texts = isinstance(choices, list) and all(isinstance(each, str) and each for each in choices)
    if not is_texts or not 0 < len(choices) <= MOST_CHOICES:
        raise InvalidInput(f"{field}: a list of 1 to {MOST_CHOICES} texts is expected")
    text = "start: " + " | ".join(json.dumps(each, ensure_ascii=False) for each in choices)
    check_length(text, field)
    return grammar_of_lark(text, field)


def grammar_of_lark(text: str, field: str) -> str:
    """Of rules written here, never by a caller."""
    made: str = _matcher_class(field).grammar_from_lark(text)
    return made


def check_length(text: str, field: str) -> None:
    """Raises InvalidInput."""
    if len(text) > MOST_CHARACTERS:
        raise InvalidInput(f"{field}: {len(text)} characters; at most {MOST_CHARACTERS} are taken")


def with_answer(rules: Sequence[str], grammar: str) -> str:
    """The rules, in which `@answer` is the grammar."""
    is_lark = not grammar.lstrip().startswith("{")
    inner = {"lark_grammar": grammar} if is_lark else json.loads(grammar)["grammars"][0]
    text = "\n".join(rules)
    return json.dumps({"grammars": [{"lark_grammar": text}, {**inner, "name": "answer"}]})


class Grammars:
    """The grammars of one vocabulary. Each is compiled once; the latest are kept, within a limit in
    bytes. May be used from several threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        from llguidance import LLTokenizer

        ends = list(vocabulary.ends)
        self._vocabulary = vocabulary
        self._tokenizer = LLTokenizer(vocabulary.tokenizer, n_vocab=vocabulary.size, eos_token=ends)
        self._compiled: OrderedDict[str, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def matcher(self, grammar: str) -> "Matcher":
        matcher = self.compile(grammar).deep_copy()
        return Matcher(matcher, self._vocabulary.size, self._vocabulary.ends)

    def compile(self, grammar: str) -> Any:
        """The compiled grammar. Slow the first time."""
        with self._lock:
            found = self._compiled.get(grammar)
            if found is not None:
                self._compiled.move_to_end(grammar)
                return found[0]
        before = resident_bytes()
        made = self.compile_anew(grammar)
        grown = resident_bytes() - before  # about: other threads take and free memory, too
        self._keep(grammar, made, min(max(grown, _LEAST_BYTES), MOST_BYTES))
        return made

    def compile_anew(self, grammar: str) -> Any:
        return _matcher_class("grammar")(
            self._tokenizer, grammar, log_level=0, limits=_parser_limits()
        )

    def _keep(self, grammar: str, made: Any, size: int) -> None:
        with self._lock:
            self._compiled[grammar] = made, size
            self._bytes += size
            while self._bytes > _MOST_COMPILED_BYTES:
                _, (_, freed) = self._compiled.popitem(last=False)
                self._bytes -= freed


def resident_bytes() -> int:
    """The resident memory of this process."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _parser_limits() -> Any:
    """The library's own, but for what it says in an error: that may be all of the grammar."""
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=_MOST_STATES, verbose_errors=False)


class Matcher:
    """The state of one answer in its grammar."""

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
        """All tokens but those that end an answer; or only those."""
        import numpy

        mask = numpy.full(self._vocabulary, not is_end)
        mask[list(self._ends)] = is_end  # a tuple would be one index for each axis
        return mask


def _matcher_class(field: str) -> Any:
    try:
        from llguidance import LLMatcher
    except ImportError:
        why = "this server has no llguidance; it comes with headway[llm]"
        raise InvalidInput(f"{field}: {why}") from None
    return LLMatcher
