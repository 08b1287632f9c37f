"""An answer as blocks, one after the other, for dialects whose events open and close them.

A block is text, reasoning, or one call; `read` says what happens to them, a piece at a time.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import msgspec

from headway.hosting.generation.pieces import AnswerPiece
from headway.models.chat.answer_reader import AnswerReading
from headway.models.chat.chats import AnswerPart, CallArguments, CallBegin, ReasoningPart, TextPart
from headway.server.families.openai.answers import UsageCount
from headway.server.families.openai.chat_writer import parts_of


@dataclass(slots=True)
class Block:
    index: int
    kind: Literal["text", "reasoning", "call"]
    id: str = ""  # of a call
    name: str = ""  # of a call's function
    texts: list[str] = field(default_factory=list)  # of a call: its arguments

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def arguments(self) -> dict[str, Any] | None:
        """None: the answer was cut off before the call was complete."""
        try:
            found: dict[str, Any] = msgspec.json.decode(self.text, type=dict[str, Any])
        except msgspec.DecodeError:
            return None
        return found


class BlockEvent(NamedTuple):
    kind: Literal["open", "text", "close"]
    block: Block
    text: str = ""  # that is new


class AnswerBlocks:
    def __init__(self, reading: AnswerReading | None, usage: UsageCount) -> None:
        self._reader = None if reading is None else reading.reader()
        self._usage = usage
        self.blocks: list[Block] = []
        self._is_open = False

    @property
    def has_called(self) -> bool:
        return self._reader is not None and self._reader.has_called

    def read(self, piece: AnswerPiece) -> list[BlockEvent]:
        if self._reader is not None:
            parts = parts_of(piece, self._reader, self._usage)
        else:
            parts = [TextPart(piece.text)] if piece.text else []
        return [event for part in parts for event in self._take(part)]

    def finish(self) -> list[BlockEvent]:
        """After the last piece. An answer has one block at least."""
        opened = [] if self.blocks else self._open("text")
        return [*opened, *self._close()]

    def read_all(self, pieces: list[AnswerPiece]) -> list[Block]:
        for piece in pieces:
            self.read(piece)
        self.finish()
        return self.blocks

    def _take(self, part: AnswerPart) -> list[BlockEvent]:
        if isinstance(part, CallBegin):
            return self._open("call", part.id, part.name)
        kind: Literal["text", "reasoning"] = (
            "reasoning" if isinstance(part, ReasoningPart) else "text"
        )
        is_more = self._is_open and (
            isinstance(part, CallArguments) or self.blocks[-1].kind == kind
        )
        opened = [] if is_more else self._open(kind)
        block = self.blocks[-1]
        block.texts.append(part.text)
        return [*opened, BlockEvent("text", block, part.text)]

    def _open(
        self, kind: Literal["text", "reasoning", "call"], call_id: str = "", name: str = ""
    ) -> list[BlockEvent]:
        closed = self._close()
        block = Block(len(self.blocks), kind, call_id, name)
        self.blocks.append(block)
        self._is_open = True
        return [*closed, BlockEvent("open", block)]

    def _close(self) -> list[BlockEvent]:
        if not self._is_open:
            return []
        self._is_open = False
        return [BlockEvent("close", self.blocks[-1])]
