"""Decides whether models are healthy: which batches run too long, and what that means.

Pure: running batches and the time come in. A model that has begun to answer is dead when none of
its work completes any more: its scheduler has crashed, its workers were given up, or each of
them runs a batch that is over its limit (`execute_timeout_ms` in `config.py`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Health(Enum):
    STARTING = "starting"  # being loaded or warmed up, or closed on purpose
    READY = "ready"
    DEAD = "dead"  # until it is loaded again, or a stuck batch comes back


@dataclass(frozen=True, slots=True)
class RunningBatch:
    """A batch on a worker. `since`: its start or, of a stream, its latest step."""

    batch_id: int
    since: float


@dataclass(frozen=True, slots=True)
class Overdue:
    """The batches that are over their limit, and when to look again; None: when one starts."""

    batch_ids: frozenset[int]
    look_at: float | None


def find_overdue(running: Iterable[RunningBatch], limit_s: float, now: float) -> Overdue:
    late, next_at = set[int](), None
    for each in running:
        due_at = each.since + limit_s
        if due_at <= now:
            late.add(each.batch_id)
        elif next_at is None or due_at < next_at:
            next_at = due_at
    return Overdue(frozenset(late), next_at)


def is_stuck(overdue: int, workers: int) -> bool:
    """Are all workers stuck? One stuck worker among several only costs capacity."""
    return overdue >= workers > 0


def health_of(*, is_warm: bool, is_open: bool, is_in_trouble: bool) -> Health:
    """`is_in_trouble`: it has crashed, or no worker completes anything."""
    if is_in_trouble:
        return Health.DEAD
    return Health.READY if is_warm and is_open else Health.STARTING


def is_live(models: Iterable[Health]) -> bool:
    """Is any loaded model not dead? If all are dead, only a new process helps.

    One dead model among others makes the server unready, not dead.
    """
    found = list(models)
    return not found or any(each is not Health.DEAD for each in found)
