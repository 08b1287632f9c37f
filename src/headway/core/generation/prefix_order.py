"""Which waiting sequence starts next, so that a shared beginning is computed once, and stays.

A sequence whose next block another one is computing waits for it, and meanwhile lets those behind
it start. Blocks that waiting sequences will need are evicted last. If a start would evict some of
them all the same, the sequence that finds most of its blocks starts first. Only the first few
sequences of one account in one class are reordered, so classes and shares stay as they are. No
sequence is passed forever; one with a deadline is never passed because it finds too few blocks.
"""

import math
from collections.abc import Iterable
from itertools import islice

from headway.core.generation.blocks import BlockTables
from headway.core.generation.sequence import Progress
from headway.core.items import Priority

_MOST_PASSED = 16  # times that others start before a sequence
_NOTED_A_STEP = 32  # sequences: to find the keys of a long prompt takes a while
_MOST_NOTED = 512


class PrefixOrder:
    def __init__(self, tables: BlockTables) -> None:
        self._tables = tables
        self._noted: dict[int, Progress] = {}  # waiting; their blocks are evicted last
        self._unnoted: dict[int, Progress] = {}

    def enter(self, progress: Progress) -> None:
        """The sequence waits, for the first time or again."""
        self._unnoted[progress.sequence.id] = progress

    def leave(self, progress: Progress) -> None:
        """The sequence starts, or has ended."""
        self._unnoted.pop(progress.sequence.id, None)
        if self._noted.pop(progress.sequence.id, None):
            self._tables.prefixes.unwant(progress.keys[: progress.wanted])

    def note(self) -> None:
        """Note what waiting sequences will use: a few sequences at a time."""
        room = min(_NOTED_A_STEP, _MOST_NOTED - len(self._noted))
        for number in list(islice(self._unnoted, room)):
            progress = self._noted[number] = self._unnoted.pop(number)
            self._tables.cached(progress)  # finds its keys
            progress.wanted = len(progress.keys)
            self._tables.prefixes.want(progress.keys)

    def choose(self, waiting: Iterable[Progress], kind: Priority) -> Progress | None:
        """The next of these sequences, which wait in this order. None: each waits for a block."""
        tables = self._tables
        best, most = None, -1
        for progress in waiting:
            cached = tables.cached(progress)
            other = tables.computes(progress, cached)
            if other is not None and other.seniority[0] <= kind:
                if progress.found < 0:
                    progress.found = len(cached)
            elif len(cached) > most:
                if best is None and not tables.is_choice(progress, cached):
                    return progress
                best, most = progress, len(cached)
                if progress.sequence.deadline < math.inf:
                    break
            if progress.passed >= _MOST_PASSED:
                break
        return best
