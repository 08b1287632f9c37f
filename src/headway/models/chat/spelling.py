"""Tokens to text, one at a time: never half a character, and never nothing for ever.

Bytes that are no character become replacement characters, once it is known that they are none.
"""

import codecs
import json
from collections.abc import Mapping
from typing import Any, Protocol

_NO_CHARACTER = "\ufffd"  # for bytes that are none, or not yet
_LONGEST_CHARACTER = 4  # bytes; a token is one at least
_NOTHING: dict[int, str] = {}
_UTF8 = codecs.getincrementaldecoder("utf-8")


class Pieces(Protocol):
    """Turns the tokens of one answer into text."""

    known: Mapping[int, str]

    def step(self, token: int) -> str: ...

    def finish(self) -> str: ...


class Spelling:
    """The bytes and texts of one tokenizer's tokens. `new()` for each answer."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.added: dict[int, Any] = tokenizer.get_added_tokens_decoder()
        self.is_byte_level = is_byte_level(tokenizer)
        self.whole: dict[int, str] = {}  # tokens that are whole characters, as they are met
        self._bytes: dict[int, bytes] = {}

    def new(self) -> Pieces:
        return _BytePieces(self) if self.is_byte_level else _TextPieces(self)

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a byte-level tokenizer's token."""
        found = self._bytes.get(token)
        if found is None:
            found = self._bytes[token] = self._spelled(token)
        return found

    def byte_of(self, token: int) -> bytes | None:
        """The byte that a token such as SentencePiece's `<0x0A>` stands for."""
        if token in self.added:
            return None
        name = self.tokenizer.id_to_token(token) or ""
        is_byte = len(name) == 6 and name.startswith("<0x") and name.endswith(">")
        return bytes.fromhex(name[3:5]) if is_byte else None

    def _spelled(self, token: int) -> bytes:
        added = self.added.get(token)
        if added is not None:
            return b"" if added.special else added.content.encode()
        name = self.tokenizer.id_to_token(token) or ""
        if all(letter in BYTES for letter in name):
            return bytes(BYTES[letter] for letter in name)
        return bytes(name.encode())


def is_byte_level(tokenizer: Any) -> bool:
    """Whether its decoder joins bytes, and does nothing else."""
    if tokenizer.decoder is None:
        return False
    described = json.loads(tokenizer.decoder.__getstate__())
    steps = described.get("decoders", [described])
    return {"ByteLevel"} <= {step["type"] for step in steps} <= {"ByteLevel", "Fuse"}


class _BytePieces:
    """A byte-level tokenizer's: a text is its tokens' bytes."""

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling
        self._decoder = _UTF8(errors="replace")
        self.known: Mapping[int, str] = spelling.whole

    def step(self, token: int) -> str:
        text = self.known.get(token)
        return self._decode(token) if text is None else text

    def _decode(self, token: int) -> str:
        """The text of a token that is new, or that is not whole characters by itself."""
        was_whole = not self._decoder.getstate()[0]
        text = self._decoder.decode(self._spelling.bytes_of(token))
        is_whole = not self._decoder.getstate()[0]
        if was_whole and is_whole:
            self._spelling.whole[token] = text
        self.known = self._spelling.whole if is_whole else _NOTHING
        return text

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _TextPieces:
    """The pieces of tokenizers whose tokens have a text that depends on the tokens before: decodes
    each with those, and shows the difference. Tokens for single bytes are put together here."""

    known: Mapping[int, str] = _NOTHING

    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling
        self._decoder = _UTF8(errors="replace")
        self._before: list[int] = []  # what was last shown
        self._held: list[int] = []  # perhaps the beginning of a character

    def step(self, token: int) -> str:
        added = self._spelling.added.get(token)
        if added is not None and added.special:
            return ""
        byte = self._spelling.byte_of(token)
        if byte is not None:
            text = self._shown(self._held) + self._decoder.decode(byte)
            self._before, self._held = [token], []
            return text
        rest = self._rest_of_bytes()
        self._held.append(token)
        text = self._shown(self._held)
        if text.endswith(_NO_CHARACTER) and len(self._held) < _LONGEST_CHARACTER:
            return rest
        self._before, self._held = self._held, []
        return rest + text

    def _shown(self, tokens: list[int]) -> str:
        """The text that these tokens add."""
        before, both = self._decode(self._before), self._decode([*self._before, *tokens])
        return both[len(before) :] if both.startswith(before) else both

    def _decode(self, tokens: list[int]) -> str:
        return str(self._spelling.tokenizer.decode(tokens, skip_special_tokens=True))

    def _rest_of_bytes(self) -> str:
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest

    def finish(self) -> str:
        return self._rest_of_bytes() + self._shown(self._held)


def _byte_letters() -> dict[str, int]:
    """GPT-2's letters for bytes: a printable byte is itself, the others follow from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return letters | {chr(256 + index): byte for index, byte in enumerate(others)}


BYTES = _byte_letters()
