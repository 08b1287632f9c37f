"""Grammars are tried in a process that can be killed: what is too large is refused, and no more."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from models import VOCABULARY

from headway.errors import NotReady
from headway.models.chat.grammars import MOST_BYTES, Grammars, Vocabulary, resident_bytes
from headway.models.chat.trials import Trials

llguidance = pytest.importorskip("llguidance")
_TOO_MUCH = "compiling it takes more than 0.25 s of a core or 256 MiB"


def of_regex(expression: str) -> str:
    return str(llguidance.LLMatcher.grammar_from_regex(expression))


MANY = of_regex("a?" * 43000 + "a" * 43000)  # gigabytes: where there are none, an abort


def of_schema(schema: dict[str, Any]) -> str:
    return str(llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema)))


SLOW = of_schema({"type": "integer", "multipleOf": 1499977})
PATTERNS = [{"type": "string", "pattern": f".*a.{{{3 + n % 17}}}b.*"} for n in range(24)]
LINKS = {f"d{n}": {**each, "$ref": f"#/$defs/d{n + 1}"} for n, each in enumerate(PATTERNS[1:])}


@pytest.fixture(scope="module")
def vocabulary(folder: Path) -> Vocabulary:
    return Vocabulary((folder / "tokenizer.json").read_text(), VOCABULARY, (2,))


@pytest.fixture
def trials(vocabulary: Vocabulary) -> Iterator[Trials]:
    trials = Trials(lambda: vocabulary)
    yield trials
    trials.close()


def test_what_would_end_a_process_ends_one_that_has_nothing_else_to_do(trials: Trials) -> None:
    before = resident_bytes()
    assert trials.why_not(MANY) == _TOO_MUCH
    assert trials.why_not(SLOW) == _TOO_MUCH
    assert trials.why_not(of_regex("[ab]{3}-[0-9]")) == ""
    assert resident_bytes() - before < 2**25


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": PATTERNS},
        {"properties": {"a": {"allOf": [{"allOf": PATTERNS[:5]}, {"allOf": PATTERNS[5:]}]}}},
        {"$defs": {**LINKS, f"d{len(LINKS)}": PATTERNS[0]}, "$ref": "#/$defs/d0"},
        {"type": "string", "pattern": "^" + "a?" * 8000 + "$"},
        {"type": "integer", "multipleOf": 99991},
    ],
    ids=["patterns at once", "nested", "by reference", "repeats", "many remainders"],
)
def test_a_schema_that_explodes_is_refused(trials: Trials, schema: dict[str, Any]) -> None:
    assert trials.why_not(of_schema(schema))


def test_a_complete_answer_may_end_with_any_of_the_ends(vocabulary: Vocabulary) -> None:
    matcher = Grammars(vocabulary._replace(ends=(0, 2))).matcher(of_regex("[ab]"))
    first = int(matcher.allowed([]).nonzero()[0][0])
    assert set(matcher.allowed([first]).nonzero()[0].tolist()) == {0, 2}
    assert set(matcher.allowed([first, 2]).nonzero()[0].tolist()) == {0, 2}


def test_a_grammar_whose_process_is_killed_is_not_refused(trials: Trials) -> None:
    assert trials.why_not(of_regex("[ab]")) == ""
    process = trials._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)  # it reads no more
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(trials.why_not, of_regex("[abc]"))
        os.kill(process.pid, signal.SIGKILL)
        with contextlib.suppress(NotReady):  # or it had not been handed over, and the next one says
            assert asked.result() == ""
    assert trials.why_not(of_regex("[abc]")) == ""


def test_a_verdict_is_kept(trials: Trials) -> None:
    grammar = of_regex("(a")
    assert trials.known(grammar) is None
    why = trials.why_not(grammar)
    assert "unclosed group" in why
    trials.close()
    assert trials.known(grammar) == trials.why_not(grammar) == why


def test_what_the_library_gives_up_on_after_a_token_is_refused_before(trials: Trials) -> None:
    assert "too many expressions" in trials.why_not(of_regex("a?" * 500 + "a" * 500))


def test_a_process_that_was_killed_is_replaced(trials: Trials) -> None:
    assert trials.why_not(of_regex("a")) == ""
    process = trials._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert trials.why_not(of_regex("b")) == ""


def test_compiled_grammars_are_kept_by_their_bytes(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars = Grammars(vocabulary)
    compiled = [grammars.compile(of_regex(f"a{{{n}}}")) for n in range(1, 20)]
    assert grammars.compile(of_regex("a{1}")) is compiled[0]
    monkeypatch.setattr("headway.models.chat.grammars._MOST_COMPILED_BYTES", MOST_BYTES)
    for n in range(MOST_BYTES // 2**16 + 1):  # each is taken to keep 2**16 at least
        grammars.compile(of_regex(f"b{{{n}}}"))
    assert grammars.compile(of_regex("a{1}")) is not compiled[0]
