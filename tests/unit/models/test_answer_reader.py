"""An answer is taken apart the same way, wherever its pieces part."""

import pytest

from headway.models.chat.answer_reader import AnswerReading
from headway.models.chat.chats import (
    AnswerPart,
    CallArguments,
    CallBegin,
    ReasoningPart,
    TextPart,
)
from headway.models.chat.conventions import (
    HERMES,
    LLAMA,
    MISTRAL,
    Convention,
    Marker,
    Thinking,
)

THINKING = Thinking(Marker("<think>"), Marker("</think>"))
ARGUMENTS = '{"a": "}\\"{", "b": [{}]}'
HERMES_CALL = f'<tool_call>\n{{"name": "f", "arguments": {ARGUMENTS}}}\n</tool_call>'
LLAMA_CALL = f'{{"name": "f", "parameters": {ARGUMENTS}}}'
MISTRAL_CALLS = f'[TOOL_CALLS][{{"name": "f", "arguments": {ARGUMENTS}}}, ' + (
    '{"name": "g", "arguments": {}}]'
)


def read(reading: AnswerReading, text: str, size: int) -> tuple[str, str, list[list[str]], bool]:
    """The text, the thoughts and the calls, with their text in pieces of a size."""
    reader = reading.reader()
    parts: list[AnswerPart] = []
    for place in range(0, len(text), size):
        parts += reader.read(text[place : place + size])
    parts += reader.finish()
    calls: list[list[str]] = []
    for part in parts:
        if isinstance(part, CallBegin):
            assert part.call == len(calls)
            calls.append([part.name, ""])
        elif isinstance(part, CallArguments):
            calls[part.call][1] += part.text
    shown = "".join(part.text for part in parts if isinstance(part, TextPart))
    thought = "".join(part.text for part in parts if isinstance(part, ReasoningPart))
    return shown, thought, calls, reader.has_called


F, G = ["f", ARGUMENTS], ["g", "{}"]
CASES: list[tuple[Convention | None, Thinking | None, bool, str, tuple[str, str, list[list[str]]]]]
CASES = [
    (HERMES, None, False, " Hi \n there \n", (" Hi \n there \n", "", [])),
    (HERMES, None, False, f"Wait.\n\n{HERMES_CALL}\n", ("Wait.", "", [F])),
    (HERMES, None, False, f"{HERMES_CALL}\n{HERMES_CALL}", ("", "", [F, F])),
    (HERMES, None, False, f"{HERMES_CALL}\n\nDone.", ("Done.", "", [F])),
    (HERMES, None, False, "a <tool_cal b </tool_call>", ("a <tool_cal b </tool_call>", "", [])),
    (HERMES, THINKING, False, f"<think>\n<tool_call>?\n</think>\n\n{HERMES_CALL}",
     ("", "<tool_call>?", [F])),
    (HERMES, THINKING, True, "so\n</think>\n\nYes. ", ("Yes. ", "so", [])),
    (LLAMA, None, False, f"\n{LLAMA_CALL}", ("", "", [F])),
    (LLAMA, None, False, "no {calls}", ("no {calls}", "", [])),
    (LLAMA, THINKING, True, f"so</think>\n{LLAMA_CALL}", ("", "so", [F])),
    (MISTRAL, None, False, f"Hm. {MISTRAL_CALLS}", ("Hm.", "", [F, G])),
    (None, THINKING, False, "<think>a </think> b ", ("b ", "a", [])),
    (None, THINKING, False, " plain <think>", (" plain <think>", "", [])),
    (None, THINKING, False, "<think>never ends ", ("", "never ends", [])),
]  # fmt: skip


@pytest.mark.parametrize(("convention", "thinking", "is_open", "text", "expected"), CASES)
def test_parts(
    convention: Convention | None,
    thinking: Thinking | None,
    is_open: bool,
    text: str,
    expected: tuple[str, str, list[list[str]]],
) -> None:
    reading = AnswerReading(convention, thinking, is_thinking=is_open)
    for size in (1, 2, 3, 7, 1000):
        assert read(reading, text, size) == (*expected, bool(expected[2]))


def test_a_call_that_was_cut_off_is_no_complete_call() -> None:
    for length in range(len("<tool_call>"), len(HERMES_CALL)):
        _, _, calls, has_called = read(AnswerReading(HERMES), HERMES_CALL[:length], 1)
        assert not has_called
        assert all(ARGUMENTS.startswith(arguments) for _, arguments in calls)


def test_what_no_grammar_lets_through_is_no_call() -> None:
    """The grammar's library may give up; then anything follows."""
    assert read(AnswerReading(HERMES), "<tool_call>anything at all", 5) == ("", "", [], False)


def test_tokens_of_thoughts_are_counted() -> None:
    reader = AnswerReading(None, THINKING).reader()
    for piece in ("<think>", "one", " two", "</think>", "three"):
        reader.read(piece)
    assert reader.thinking_tokens == 3  # with the one that ends them
