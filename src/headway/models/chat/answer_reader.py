"""Reads a model's answer as it comes: which of it is thought, text, or a call of a tool.

Calls are what a grammar let through (`tool_grammar`), so they are taken apart, not guessed at.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headway.models.chat.chats import AnswerPart, CallArguments, CallBegin, ReasoningPart, TextPart
from headway.models.chat.conventions import Convention, Marker, Thinking

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class AnswerReading:
    """What an answer may hold beside text."""

    convention: Convention | None = None  # None: no calls
    thinking: Thinking | None = None  # None: no thoughts
    is_thinking: bool = False  # the prompt ends within them
    shown: Mapping[int, str] = field(default_factory=dict)  # texts of tokens that have none

    def reader(self) -> "AnswerReader":
        """For one answer."""
        return AnswerReader(self)


class AnswerReader:
    def __init__(self, reading: AnswerReading) -> None:
        self._reading = reading
        self._held = ""  # text that was not understood yet
        self._space = ""  # held back: it is dropped before a call
        self._is_trimmed = False  # spaces are dropped, as a call or a thought came before
        self._parts: list[AnswerPart] = []
        self._json = JsonEnd()
        self._calls = 0
        self._is_complete = True
        self.thinking_tokens = 0
        self._state: Callable[[], bool] = self._begin
        if reading.is_thinking:
            self._think()

    @property
    def thinks(self) -> bool:
        return self._reading.thinking is not None

    @property
    def has_called(self) -> bool:
        """Whether there are calls, all of them complete."""
        return self._calls > 0 and self._is_complete

    def read(self, text: str, tokens: int = 1) -> list[AnswerPart]:
        """The parts that are known by now. `text` is the text of that many tokens."""
        if self._state == self._in_thought:
            self.thinking_tokens += tokens
        self._held += text
        while self._state():
            pass
        return self._taken()

    def finish(self) -> list[AnswerPart]:
        """The rest, when the answer has ended."""
        rest, self._held = self._held, ""
        if self._state == self._in_thought:
            self._add(ReasoningPart, rest)
        elif self._state in (self._begin, self._in_text):
            self._add(TextPart, rest)
            if self._space and not self._calls:
                self._parts.append(TextPart(self._space))
        return self._taken()

    def _taken(self) -> list[AnswerPart]:
        parts, self._parts = self._parts, []
        return parts

    # ---- states: each takes what it understands from `_held`; True: there may be more

    def _begin(self) -> bool:
        """Before anything but spaces."""
        thinking, convention = self._reading.thinking, self._reading.convention
        text = self._held.lstrip()
        if thinking is not None and text.startswith(thinking.opens.shown):
            self._held = text.removeprefix(thinking.opens.shown)
            self._think()
            return True
        if thinking is not None and thinking.opens.shown.startswith(text):
            return False
        if convention is not None and convention.opens is None:
            if not text:
                return False
            if text.startswith("{"):
                self._held, self._is_trimmed = text, True
                return self._open(convention)
        self._state = self._in_text
        return True

    def _think(self) -> None:
        self._state, self._is_trimmed = self._in_thought, True

    def _in_thought(self) -> bool:
        assert self._reading.thinking is not None
        if not self._take_until(self._reading.thinking.closes, ReasoningPart):
            return False
        self._space, self._is_trimmed = "", True
        # Without text before it: the answer itself begins here, with a call perhaps.
        self._state = self._after_thought
        return True

    def _after_thought(self) -> bool:
        convention = self._reading.convention
        self._held = self._held.lstrip()
        if not self._held:
            return False
        if convention is not None and convention.opens is None and self._held.startswith("{"):
            return self._open(convention)
        self._state = self._in_text
        return True

    def _in_text(self) -> bool:
        convention = self._reading.convention
        opens = None if convention is None else convention.opens
        if opens is None:
            self._add(TextPart, self._held)
            self._held = ""
            return False
        if not self._take_until(opens, TextPart):
            return False
        assert convention is not None
        return self._open(convention)

    def _open(self, convention: Convention) -> bool:
        self._space, self._is_complete = "", False
        return self._expect(convention.begin + convention.head, self._in_name)

    def _in_name(self) -> bool:
        convention = self._reading.convention
        assert convention is not None
        name, found, rest = self._held.partition(convention.middle.shown)
        if not found:
            return False
        self._held, self._json = rest, JsonEnd()
        random = "".join(secrets.choice(_DIGITS) for _ in range(convention.id_length))
        # Some templates take ids of nine letters, and nothing else.
        call_id = random if convention.id_length < 10 else f"call_{random}"
        self._parts.append(CallBegin(self._calls, call_id, name))
        self._calls += 1
        self._state = self._in_arguments
        return True

    def _in_arguments(self) -> bool:
        end = self._json.find(self._held)
        more = self._held if end is None else self._held[:end]
        if more:
            self._parts.append(CallArguments(self._calls - 1, more))
        self._held = self._held[len(more) :]
        if end is None:
            return False
        convention = self._reading.convention
        assert convention is not None
        return self._expect(convention.tail, self._after_call)

    def _after_call(self) -> bool:
        convention = self._reading.convention
        assert convention is not None
        between = convention.between
        if between and not self._held:
            return False
        if between and self._held[0] == between[0]:
            return self._expect(between + convention.head, self._in_name)
        closes = "" if convention.closes is None else convention.closes.shown
        return self._expect(convention.end + closes, self._close)

    def _close(self) -> bool:
        self._is_complete = self._is_trimmed = True
        self._state = self._in_text
        return True

    def _expect(self, words: str, then: Callable[[], bool]) -> bool:
        """Words that must come next: the grammar has seen to it."""

        def state() -> bool:
            if len(self._held) < len(words):
                return False
            is_as_expected = self._held.startswith(words)
            self._held = self._held[len(words) :]
            self._state = then if is_as_expected else self._lost
            return True

        self._state = state
        return True

    def _lost(self) -> bool:
        """The grammar was given up, at a limit of its library: such an answer ends by length."""
        self._held = ""
        return False

    # ---- text

    def _take_until(self, marker: Marker, kind: type[TextPart] | type[ReasoningPart]) -> bool:
        """Take text up to the marker, and the marker. False: it has not come yet."""
        word = marker.shown
        before, found, rest = self._held.partition(word)
        if not found:
            keep = next(
                (n for n in range(len(word) - 1, 0, -1) if self._held.endswith(word[:n])), 0
            )
            before, rest = self._held[: len(self._held) - keep], self._held[-keep:] * bool(keep)
        self._held = rest
        self._add(kind, before)
        return bool(found)

    def _add(self, kind: type[TextPart] | type[ReasoningPart], text: str) -> None:
        """Add text; spaces at its end wait for more text."""
        if self._is_trimmed:
            text = text.lstrip()
        if not text:
            return
        self._is_trimmed = False
        text = self._space + text
        shown = text.rstrip() if self._reading_trims else text
        self._space = text[len(shown) :]
        if shown:
            self._parts.append(kind(shown))

    @property
    def _reading_trims(self) -> bool:
        """Whether spaces before a marker are dropped."""
        return self._reading.convention is not None or self._state == self._in_thought


class JsonEnd:
    """Finds the end of a JSON object that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_text = self._is_escaped = False

    def find(self, piece: str) -> int | None:
        """The place after the end, in this piece; None: it is not there."""
        for place, letter in enumerate(piece):
            if self._is_escaped:
                self._is_escaped = False
            elif self._is_text:
                self._is_escaped = letter == "\\"
                self._is_text = letter != '"'
            elif letter == '"':
                self._is_text = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return place + 1
        return None
