"""An engine was lost with its sequences: which go to the next one, and which is to blame.

Pure bookkeeping, by sequence id. Most probably no sequence is to blame: all resume together. If the
next engine is lost too, before each has got a few tokens from it, sequences without them are
suspects: they run in groups, by themselves, until all are cleared by their tokens or blamed
(`core/faults/suspects`). All others wait meanwhile, so that no neighbour is blamed for
another's fault.
"""

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

from headway.core.faults.suspects import Suspects
from headway.core.items import Batch, FireReason, Item, Priority

MAX_LOSSES = 16  # engines that may be lost while they run the same sequence
PROOF = 8  # tokens from one engine: the first comes with the prompt, and proves little


class LossVerdict(NamedTuple):
    """The sequences that will not run any more."""

    blamed: list[int]  # an engine was lost twice while it ran that sequence alone
    given_up: list[int]


class SequenceMoves(NamedTuple):
    """Sequences to send to the engine, and to take back from it."""

    send: list[int]
    recall: list[int]  # they have been cleared, and wait until the search is over


_NOTHING = SequenceMoves([], [])


class Recovery:
    def __init__(self, max_losses: int = MAX_LOSSES) -> None:
        self._max_losses = max_losses
        self._items: dict[int, Item] = {}  # all sequences that have not ended
        self._sent: set[int] = set()  # the sequences that an engine has
        self._losses: dict[int, int] = {}  # by sequence: engines lost while they ran it
        self._unproven: dict[int, int] = {}  # sent after a loss: tokens until they are cleared
        self._cleared: set[int] = set()  # since the last loss
        self._suspects = Suspects()
        self._trial: Batch | None = None  # the group that runs without others
        self._batches = itertools.count(1)
        self._is_up = False

    @property
    def is_watching(self) -> bool:
        """Must `progress` be called? (Only after an engine was lost.)"""
        return bool(self._unproven)

    def enter(self, sequence: int, arrived_at: float, priority: Priority) -> bool:
        """Note a new sequence. May it be sent now?"""
        self._items[sequence] = Item(sequence, arrived_at, priority=priority)
        if not self._is_up or self._suspects.cases:
            return False
        self._sent.add(sequence)
        if self._unproven:
            self._unproven[sequence] = PROOF
        return True

    def end(self, sequence: int) -> SequenceMoves:
        """The sequence has ended, for any reason."""
        if self._items.pop(sequence, None) is None:
            return _NOTHING
        self._sent.discard(sequence)
        self._losses.pop(sequence, None)
        self._cleared.discard(sequence)
        self._suspects.remove(sequence)
        if self._unproven.pop(sequence, None) is None or self._unproven:
            return _NOTHING
        return self._proven()

    def progress(self, sequences: Iterable[int]) -> SequenceMoves:
        """Each of the sequences got a token."""
        if not self._unproven:
            return _NOTHING
        for sequence in sequences:
            left = self._unproven.get(sequence, 0) - 1
            if left > 0:
                self._unproven[sequence] = left
            elif left == 0:
                del self._unproven[sequence]
                self._cleared.add(sequence)
        return _NOTHING if self._unproven else self._proven()

    def _proven(self) -> SequenceMoves:
        if self._trial is None:
            return _NOTHING
        cleared = [item.id for item in self._trial.items if item.id in self._sent]
        self._suspects.cleared(self._trial)
        self._trial = None
        self._sent.difference_update(cleared)
        send = self._next()
        again = self._sent.intersection(cleared)
        recall = [each for each in cleared if each not in again]
        return SequenceMoves([each for each in send if each not in again], recall)

    # ---- engines

    def started(self) -> list[int]:
        """A new engine has started: the sequences to send to it."""
        self._is_up = True
        return self._next()

    def lost(self, *, out_of_memory: bool) -> LossVerdict:
        """The engine is lost, with all sequences that were sent to it."""
        sent, self._sent, self._is_up = self._sent, set(), False
        unproven, self._unproven, self._cleared = self._unproven, {}, set()
        for sequence in sent:
            self._losses[sequence] = self._losses.get(sequence, 0) + 1
        blamed, given_up = [], [each for each in sent if self._losses[each] > self._max_losses]
        batch = self._batch_of(sent, unproven)
        if batch is not None:
            wanted = [item for item in batch.items if item.id in self._items]
            found = self._suspects.lost(
                batch, wanted, max_losses=self._max_losses, out_of_memory=out_of_memory
            )
            blamed = [item.id for item in found.blamed]
            given_up += [item.id for item in found.given_up if item.id not in given_up]
        for sequence in (*blamed, *given_up):
            self.end(sequence)
        return LossVerdict(sorted(blamed), sorted(given_up))

    def _batch_of(self, sent: set[int], unproven: dict[int, int]) -> Batch | None:
        """The suspects of this loss, if there are any.

        They are the group on trial, or all sequences not cleared since the last loss, or the only
        sequence. A first loss has no suspects.
        """
        batch, self._trial = self._trial, None
        if batch is not None:
            return batch
        if len(sent) == 1:
            return self._group(sorted(sent))
        return self._group(sorted(unproven)) if unproven else None

    def _next(self) -> list[int]:
        """The sequences to send now: the next group of suspects alone, or all."""
        first = self._suspects.first()
        if first is None:
            waiting = [each for each in self._items if each not in self._sent]
            self._sent.update(waiting)
            again = [each for each in waiting if each in self._losses]
            self._unproven.update(dict.fromkeys(again, PROOF))
            for each in self._cleared:
                self._unproven.pop(each, None)
            return waiting
        group = [item.id for item in self._suspects.take(first)]
        self._trial = self._group(group)
        self._suspects.started(self._trial)
        self._sent.update(group)
        self._unproven = dict.fromkeys(group, PROOF)
        return group

    def _group(self, sequences: list[int]) -> Batch:
        items = tuple(self._items[each] for each in sequences)
        return Batch(
            next(self._batches),
            items,
            rows=len(items),
            size=0,
            padded_rows=len(items),
            reason=FireReason.FULL,
            fired_at=0.0,
            idle_since=0.0,
            batch_cap=len(items),
            linger_cap_s=0.0,
            predicted_s=math.nan,
        )
