"""A language model without weights that reads its context through the blocks, as a real one does.

Each next token is a hash of the adapter, the salt and all tokens before it, found by walking the
sequence's block table. A block that was shared, freed or overwritten wrongly changes the text, or
fails an assertion here.
"""

from hashlib import blake2b
from typing import NamedTuple

from headway.core.generation.sequence import Sequence
from headway.core.generation.step import Step


class _Cell(NamedTuple):
    """The cache's content for one position: enough to identify its sequence."""

    token: int
    position: int
    adapter: str
    salt: str


def next_token(
    tokens: list[int], *, adapter: str = "", salt: str = "", vocabulary: int = 64
) -> int:
    """The fake model's next token after these."""
    text = f"{adapter}/{salt}/{tokens}".encode(errors="surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=4).digest(), "little") % vocabulary


class FakeEngine:
    """Runs steps, in order, on a cache of its own."""

    def __init__(self, *, block_size: int, vocabulary: int = 64) -> None:
        self._block_size = block_size
        self._vocabulary = vocabulary
        self._sequences: dict[int, Sequence] = {}
        self._cells: dict[tuple[int, int], _Cell] = {}
        self._tables: dict[int, list[int]] = {}
        self._last: dict[int, int] = {}  # the token last sampled, by slot
        self._adapters: dict[int, str] = {}  # by their slot
        self._adapter_slots: dict[int, int] = {}  # of sequences, by their slot
        self.computed = 0  # tokens

    def add(self, sequence: Sequence) -> None:
        self._sequences[sequence.id] = sequence

    def drop(self, sequence_id: int) -> None:
        """The sequence has ended. Harmless if it is not known."""
        self._sequences.pop(sequence_id, None)

    def run(self, step: Step) -> list[int]:
        """The sampled tokens, in the order of `step.sampled`."""
        self._adapters.update(step.placed)
        for prefill in step.prefill:
            if prefill.is_first:
                self._tables[prefill.slot] = []
                self._adapter_slots[prefill.slot] = prefill.adapter
            self._tables[prefill.slot] += prefill.blocks
            for offset, token in enumerate(prefill.tokens):
                self._write(prefill.sequence, prefill.slot, prefill.position + offset, token)
        for decode in step.decode:
            self._tables[decode.slot] += decode.blocks
            self._write(decode.sequence, decode.slot, decode.position, self._last[decode.slot])
        tokens = [self._sample(each.sequence, each.slot, each.position) for each in step.decode]
        tokens += [
            self._sample(each.sequence, each.slot, each.position + len(each.tokens) - 1)
            for each in step.prefill
            if each.is_last
        ]
        return tokens

    def lose(self) -> None:
        """Everything that the cache holds is gone, as after a crash."""
        self._cells.clear()
        self._tables.clear()
        self._last.clear()
        self._adapters.clear()

    def _write(self, sequence_id: int, slot: int, position: int, token: int) -> None:
        sequence = self._sequences[sequence_id]
        adapter = self._adapters.get(self._adapter_slots[slot], "")
        assert adapter == sequence.adapter, f"{adapter!r} is in the slot, not {sequence.adapter!r}"
        index, offset = divmod(position, self._block_size)
        cell = _Cell(token, position, adapter, sequence.salt)
        self._cells[self._tables[slot][index], offset] = cell
        self.computed += 1

    def _sample(self, sequence_id: int, slot: int, position: int) -> int:
        sequence = self._sequences[sequence_id]
        tokens = []
        for each in range(position + 1):
            index, offset = divmod(each, self._block_size)
            cell = self._cells[self._tables[slot][index], offset]
            assert cell[1:] == (each, sequence.adapter, sequence.salt), f"{cell} is another's"
            tokens.append(cell.token)
        self._last[slot] = next_token(
            tokens, adapter=sequence.adapter, salt=sequence.salt, vocabulary=self._vocabulary
        )
        return self._last[slot]
