"""An engine's adapters: those it has been given, and those that lie in slots, ready to compute."""

from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.generation.step import Decode, Prefill, Step
from headway.engine.adapters.peft import Weights, read_adapter
from headway.engine.adapters.products import Adapting, Products

if TYPE_CHECKING:
    from headway.engine.cpu.runner import Decoder


class AdapterTable:
    def __init__(self, decoder: "Decoder", *, slots: int, sequences: int, max_rank: int) -> None:
        self._decoder = decoder
        self._max_rank = max_rank
        self._known: dict[str, Weights] = {}
        self._placed: list[Products] = [{}] * slots
        self._slots = [-1] * sequences  # the adapter's slot, by the sequence's

    def read(self, folder: Path) -> Weights:
        """Read an adapter's folder. May be called from any thread. Raises ConfigError."""
        return read_adapter(folder, self._decoder.adaptable, max_rank=self._max_rank)

    def add(self, adapter: str, weights: Weights) -> None:
        self._known[adapter] = weights

    def drop(self, adapter: str) -> None:
        """Drop an adapter that no sequence uses any more."""
        self._known.pop(adapter, None)

    def begin(self, step: Step) -> Adapting | None:
        """Place the step's adapters, and note which of its rows have one."""
        for slot, adapter in step.placed:
            self._placed[slot] = self._decoder.packed(self._known[adapter])
        for part in step.prefill:
            if part.is_first:
                self._slots[part.slot] = part.adapter
        groups = self._rows(step)
        if not groups:
            return None
        return Adapting([(rows, self._placed[slot]) for slot, rows in sorted(groups.items())])

    def _rows(self, step: Step) -> dict[int, list[int]]:
        """The rows of each adapter's slot."""
        groups: dict[int, list[int]] = {}
        row = 0
        parts: list[Decode | Prefill] = [*step.decode, *step.prefill]
        for part in parts:
            count = len(part.tokens) if isinstance(part, Prefill) else 1
            slot = self._slots[part.slot]
            if slot >= 0:
                groups.setdefault(slot, []).extend(range(row, row + count))
            row += count
        return groups
