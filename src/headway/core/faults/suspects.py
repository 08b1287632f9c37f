"""Items that lost their worker: they run again, without others, until all are cleared or blamed.

A worker may be lost for many reasons: a signal, the kernel, an item that makes the model crash. So
its batch runs again, without any other item, and is split while workers keep being lost. An item is
blamed only after its worker has been lost twice while it ran that item *alone*. Pure bookkeeping:
the scheduler decides which of these and all other items is next.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from headway.core.faults.fitting import Misfit
from headway.core.items import Batch, Item

LOSSES_ALONE = 2  # before an item is blamed: once may have been a coincidence
LOSSES_OF_MEMORY = (
    8  # before an item that runs out of memory is blamed: others may have used the memory
)
SMALL = 8  # smaller groups wait for the end of the search, and then run together

Group: TypeAlias = list[Item]


class Verdict(NamedTuple):
    """Items that will not run any more."""

    blamed: list[Item]
    given_up: list[Item]  # not cleared when the allowed number of workers was lost


class Suspects:
    """Items that lost their worker, while they wait to run again. No `cases`: no such items."""

    def __init__(self) -> None:
        self.cases: list[_Case] = []  # open ones
        self._waiting: dict[int, _Case] = {}  # by item
        self._running: dict[int, _Case] = {}  # by batch

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def rows(self) -> int:
        return sum(item.rows for item in self.items()) if self.cases else 0

    def items(self) -> Iterator[Item]:
        return (item for case in self.cases for item in case.items())

    # ---- what happens

    def lost(
        self, batch: Batch, wanted: Sequence[Item], *, max_losses: int, out_of_memory: bool
    ) -> Verdict:
        """The worker of `batch` was lost. `wanted`: the items with waiting callers."""
        case = self._running.pop(batch.id, None)
        if case is None:
            case = _Case(batch, max_losses)
            self.cases.append(case)
        verdict = case.lost(batch, {item.id for item in wanted}, out_of_memory=out_of_memory)
        for item in (*verdict.blamed, *verdict.given_up):
            self._waiting.pop(item.id, None)
        self._waiting.update((item.id, case) for item in case.items())
        if case.is_closed:
            self.cases.remove(case)
        return verdict

    def cleared(self, batch: Batch) -> Misfit | None:
        """A batch came back. Returns the misfit if its case is closed and only memory was short."""
        case = self._running.pop(batch.id, None)
        if case is None:
            return None
        case.cleared()
        if not case.is_closed:
            return None
        self.cases.remove(case)
        return case.misfit

    def remove(self, item_id: int) -> bool:
        """The item's caller has left. False: the item does not wait here."""
        case = self._waiting.pop(item_id, None)
        if case is None:
            return False
        case.keep(lambda item: item.id != item_id)
        if case.is_closed:
            self.cases.remove(case)
        return True

    def pop_expired(self, now: float) -> list[Item]:
        expired = [item for item in self.items() if item.deadline <= now]
        for item in expired:
            self.remove(item.id)
        return expired

    # ---- which item is next

    def first(self) -> Item | None:
        """The first item that may run now, in the order of the queue."""
        cases = [case for case in self.cases if not case.is_running]
        return min((item for case in cases for item in case.items()), key=_place, default=None)

    def next_deadline(self) -> float:
        return min((item.deadline for item in self.items()), default=math.inf)

    def take(self, first: Item) -> list[Item]:
        """The items of this item's case to run next. Call `started` with their batch."""
        return list(self._waiting[first.id].next_group())

    def started(self, batch: Batch) -> None:
        case = self._waiting[batch.items[0].id]
        for item in batch.items:
            del self._waiting[item.id]
        self._running[batch.id] = case


class _Case:
    """One lost batch. Its groups run one at a time: each outcome decides what to try next."""

    def __init__(self, batch: Batch, max_losses: int) -> None:
        self.is_running = True
        self.misfit: Misfit | None = None
        self._is_new = True
        self._losses_left = max_losses
        self._running: Group = list(batch.items)
        self._rest: Group = []  # if the running group is cleared, the culprit is among these
        self._guilty: list[Group] = []  # each contains the culprit, if there is one
        self._aside: list[Group] = []  # suspected only because they shared the batch
        self._most = len(self._running)  # items in a group, at most
        self._losses_alone: dict[int, int] = {}  # by item

    @property
    def is_closed(self) -> bool:
        return not self.is_running and not self._guilty and not self._aside

    def items(self) -> Iterator[Item]:
        groups = (*self._guilty, *self._aside, self._rest)
        return (item for group in groups for item in group)

    def keep(self, wanted: Callable[[Item], bool]) -> None:
        """Forget all items but the wanted ones: their callers have left."""
        self._guilty = [kept for group in self._guilty if (kept := _kept(group, wanted))]
        self._aside = [kept for group in self._aside if (kept := _kept(group, wanted))]
        self._rest = _kept(self._rest, wanted)

    # ---- what to try

    def next_group(self) -> Group:
        self.is_running = True
        large = next((group for group in self._aside if len(group) >= SMALL), None)
        if large is not None:  # probably harmless items first: they wait because of another item
            self._aside.remove(large)
            self._running = self._cut(large)
        elif self._guilty:
            group = self._guilty.pop()
            half = max(1, len(group) // 2)
            self._running, self._rest = group[:half], group[half:]
        else:
            together = [item for group in self._aside for item in group]
            self._aside = []
            self._running = self._cut(together)
        return self._running

    def _cut(self, group: Group) -> Group:
        if group[self._most :]:
            self._aside.append(group[self._most :])
        return group[: self._most]

    # ---- the outcome

    def cleared(self) -> None:
        if self._rest:
            self._guilty.append(self._rest)
        self._running, self._rest, self.is_running = [], [], False

    def lost(self, batch: Batch, wanted: set[int], *, out_of_memory: bool) -> Verdict:
        ran, rest, is_new = self._running, self._rest, self._is_new
        self._running, self._rest, self.is_running, self._is_new = [], [], False, False
        left = _kept(ran, lambda item: item.id in wanted)
        if rest:
            self._aside.append(rest)
        if not self._losses_left:
            return Verdict([], self._give_up(left))
        if not out_of_memory or len(ran) == 1:  # a larger group is halved anyway
            self._losses_left -= 1
        if not left:
            return Verdict([], [])
        if len(ran) == 1:
            return Verdict(self._lost_alone(left, out_of_memory=out_of_memory), [])
        if out_of_memory:
            self.misfit = Misfit(batch.padded_rows, batch.size)
            self._most = len(ran) // 2
        if is_new or out_of_memory:  # most probably no item is to blame
            half = max(1, len(left) // 2)
            self._aside += [group for group in (left[:half], left[half:]) if group]
        else:
            self._guilty.append(left)
        return Verdict([], [])

    def _lost_alone(self, group: Group, *, out_of_memory: bool) -> list[Item]:
        [item] = group
        losses = self._losses_alone[item.id] = self._losses_alone.get(item.id, 0) + 1
        if losses < (LOSSES_OF_MEMORY if out_of_memory else LOSSES_ALONE):
            self._guilty.append(group)
            return []
        self.misfit = None  # this item is to blame, not the number of rows
        return [item]

    def _give_up(self, left: Group) -> list[Item]:
        items = [*left, *self.items()]
        self._guilty, self._aside = [], []
        return items


def _kept(group: Group, wanted: Callable[[Item], bool]) -> Group:
    return [item for item in group if wanted(item)]


def _place(item: Item) -> tuple[int, float, int]:
    return item.priority, item.arrived_at, item.id
