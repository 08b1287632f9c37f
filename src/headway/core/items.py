"""The vocabulary of the scheduler: items, batches, and the actions it may return.

Read this first. Items carry no payload and no future, only the fields that a decision needs, so the
owner of the payloads may live in another thread, another process or a simulator.
"""

import functools
import math
import operator
from collections.abc import Callable, Hashable
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple, TypeAlias, cast


class Priority(IntEnum):
    HIGH = 0
    NORMAL = 1
    LOW = 2


class Item(NamedTuple):
    """One unit of queued work. (A NamedTuple: immutable at a third of a dataclass's cost.)"""

    id: int
    arrived_at: float
    rows: int = 1
    size: int = 0  # tokens, frames or pixels of each row; 0 if sizes do not vary
    priority: Priority = Priority.NORMAL
    tenant: str = ""
    deadline: float = math.inf  # the caller's own; the answer is useless afterwards
    partition: Hashable = None  # only items of one partition may share a batch
    bucket: int = 0  # of its size, if only items of one bucket share a batch; see `buckets`

    @property
    def lane(self) -> Hashable:
        """Items that may share a batch wait in one lane."""
        return (self.partition, self.bucket) if self.bucket else self.partition


def key_of(item: Item) -> Any:
    """The item's id, as the object that the item holds.

    For `item.id`, compiled code makes a new object each time, which a dict has to compare.
    """
    fields: tuple[Any, ...] = item
    return fields[0]


# Item's own constructor spends most of its time on defaults; this takes the fields as one tuple.
new_item = cast("Callable[[tuple[Any, ...]], Item]", functools.partial(tuple.__new__, Item))

# All fields of an item but its id and its time: items of one kind are interchangeable.
kind_of = cast("Callable[[Item], tuple[object, ...]]", operator.itemgetter(slice(2, None)))


class FireReason(StrEnum):
    """Why a batch left when it did."""

    FULL = "full"  # no further row is allowed
    KNEE = "knee"  # a larger batch would not pay
    BUDGET = "budget"  # cost or memory is used up
    IDLE = "idle"  # a worker was free, and waiting was not expected to pay
    LINGER = "linger"  # waited for more items as long as that paid
    ALL_HERE = "everyone"  # all callers seen lately are already here
    WINDOW = "window"  # the oldest item has waited its window
    DEADLINE = "deadline"  # a later start would miss a deadline
    DRAIN = "drain"  # the scheduler is closing
    RETRY = "retry"  # its worker was lost: it runs again, with no other item


class RefusalReason(StrEnum):
    """Why an item will never run."""

    QUEUE_FULL = "queue_full"
    SHED = "shed"  # it would miss the SLO
    DEADLINE = "deadline_exceeded"  # the caller's own deadline
    POISON = "poison"  # a worker was lost twice while it ran this item alone
    WORKER_LOST = "worker_lost"  # too many workers were lost while they ran it with others


class Batch(NamedTuple):
    """Items that run in one model call, with everything needed to explain it."""

    id: int
    items: tuple[Item, ...]
    rows: int
    size: int  # of the largest item: the others are padded to it
    padded_rows: int  # the rows that the model runs; more than `rows` only with fixed batch sizes
    reason: FireReason
    fired_at: float
    idle_since: float  # since when a worker was free for this queue; fired_at if none was
    batch_cap: int  # the most rows, and the longest wait, in force at that moment
    linger_cap_s: float
    predicted_s: float | None  # None: nothing is known about this size yet
    is_packed: bool = False  # no item is padded; `size` is the mean
    worker: int = 0  # the number of the worker that runs it

    @property
    def padding(self) -> float:
        """The share of the computed slots that hold no item's data."""
        if not self.size or self.is_packed:
            return 1.0 - self.rows / self.padded_rows
        return 1.0 - sum(item.rows * item.size for item in self.items) / (
            self.padded_rows * self.size
        )

    def queued_s(self, item: Item) -> float:
        """How long the item waited because every worker was busy."""
        return max(self.idle_since, item.arrived_at) - item.arrived_at

    def lingered_s(self, item: Item) -> float:
        """How long the item waited on purpose while a worker was free."""
        return self.fired_at - max(self.idle_since, item.arrived_at)


# A fast constructor, as `new_item`.
new_batch = cast("Callable[[tuple[Any, ...]], Batch]", functools.partial(tuple.__new__, Batch))


class Refusal(NamedTuple):
    item: Item
    reason: RefusalReason
    retry_after_s: float = 0.0
    detail: str = ""  # why the worker was lost, if one was


class Run(NamedTuple):
    """Start this batch now."""

    batch: Batch


class Wait(NamedTuple):
    """Ask again at `until`, or as soon as anything is submitted, cancelled or finished."""

    until: float


class Refuse(NamedTuple):
    """Refuse these items: they will never run. Then ask again."""

    refusals: tuple[Refusal, ...]


Action: TypeAlias = Run | Wait | Refuse
