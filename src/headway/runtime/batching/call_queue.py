"""The scheduler, and the callers of its queued items. Used under the shell's lock."""

import itertools
import operator
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from headway.core.batching.scheduler import Scheduler
from headway.core.items import Batch, Item, Refusal
from headway.errors import HeadwayError
from headway.runtime.driving.calls import Answerable

Refusals: TypeAlias = list[tuple[Refusal, Answerable]]
_item_id = operator.itemgetter(0)


class CallQueue:
    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.ids = itertools.count(1)
        self.calls: dict[int, Answerable] = {}  # by item; running ones are in jobs

    @property
    def is_idle(self) -> bool:
        return not self.calls and self.scheduler.is_idle

    # ---- items arrive

    def submit(self, item: Item, call: Answerable) -> None:
        """Queue an item. Raises the reason of a refusal."""
        self.scheduler.submit(item)
        self.calls[item.id] = call

    def accept(
        self, inbox: deque[tuple[Item, Any]], is_elsewhere: Callable[[Any], bool] | None
    ) -> list[tuple[Answerable, HeadwayError]]:
        """Queue the whole inbox. Returns refused calls and the reasons. `is_elsewhere`: is this
        caller in another event loop?"""
        calls, items, is_mixed = self.calls, [], False
        while inbox:
            item, call = inbox.popleft()
            if item.tenant:
                is_mixed = True  # other calls may have none
            if is_elsewhere is not None and is_elsewhere(call):
                call.detach()
            calls[item.id] = call
            items.append(item)
        submit = self.scheduler.submit_each if is_mixed else self.scheduler.submit_alike
        return [(calls.pop(item.id), error) for item, error in submit(items)]

    # ---- items leave

    def take(self, batch: Batch, calls: list[Answerable]) -> None:
        """Move the callers of this batch into `calls`. If this raises, `put_back` those."""
        calls.extend(map(self.calls.pop, map(_item_id, batch.items)))

    def put_back(self, batch: Batch, calls: Sequence[Answerable]) -> None:
        self.calls.update(zip(map(_item_id, batch.items), calls, strict=False))

    def take_refused(self, refused: list[Refusal]) -> Refusals:
        refusals = [(each, self.calls[each.item.id]) for each in refused]
        for each in refused:
            del self.calls[each.item.id]
        return refusals

    def cancel(self, item_ids: tuple[int, ...]) -> bool:
        """Cancel these items. Were all of them queued?"""
        cancelled = [item_id for item_id in item_ids if self.scheduler.cancel(item_id)]
        for item_id in cancelled:
            self.calls.pop(item_id, None)
        return len(cancelled) == len(item_ids)

    def cancel_all(self) -> list[Answerable]:
        """Cancel all items but refused ones: the scheduler's next action answers these."""
        cancelled = [item_id for item_id in self.calls if self.scheduler.cancel(item_id)]
        return [self.calls.pop(item_id) for item_id in cancelled]

    def lost(self, batch: Batch, waiting: dict[Item, Answerable], **how: Any) -> None:
        """The batch was lost with its worker: items with a waiting caller are queued again."""
        self.calls.update((item.id, call) for item, call in waiting.items())
        self.scheduler.lost(batch, tuple(waiting), **how)

    def waiting(self) -> list[tuple[Item, Answerable]]:
        return [
            (item, self.calls[item.id])
            for item in self.scheduler.waiting_items()
            if item.id in self.calls
        ]
