"""Admit, push out, or refuse: the queue is bounded, and hopeless items never enter.

Admission estimates optimistically (no other item will arrive): an item that could still be answered
in time is not refused, and one that becomes hopeless later is dropped when a batch is composed.
Once items have been dropped, admission is strict until the rush is over: an item that would only
wait to be dropped is refused at once, if a full batch for every worker waits already.
"""

import bisect
import math
from collections.abc import Iterable
from typing import NamedTuple

from headway.core.costs import Costs
from headway.core.items import Batch, Item, Refusal, RefusalReason, kind_of
from headway.core.policy import Firing, Policy
from headway.core.queueing.deadlines import DOUBTFUL_PERCENTILE, HOPELESS_PERCENTILE
from headway.core.queueing.queue import Queue
from headway.core.queueing.running import Running
from headway.errors import (
    DeadlineExceeded,
    HeadwayError,
    InputTooLarge,
    ModelFailed,
    Poison,
    QueueFull,
    Shed,
)

_REMEMBERED = 8192  # admitted items
_ROUNDING_S = 1e-9  # an item that fits exactly is not late by a rounding error
_RUSH_S = 1.0  # a rush is over once no item was refused for this long, or for the SLO if longer


class Admission:
    def __init__(self, policy: Policy, costs: Costs, queue: Queue, running: Running) -> None:
        self._policy = policy
        self._costs = costs
        self._queue = queue
        self._running = running
        self._sheds = policy.firing is Firing.AUTO
        self._ends: list[float] = []  # when the running batches are expected to be done
        self._strict_since = self._strict_until = -math.inf
        self._admitted = _Admitted()
        self._offered = _Offered()
        self._slack_s = 0.0  # how much too low the strict estimate was, lately
        self._verdict: _Verdict | None = None  # the last refusal, while it holds for equal items

    def started(self, batch: Batch) -> None:
        bisect.insort(self._ends, _end_of(batch))
        self._verdict = None

    def left(self, batch: Batch) -> None:
        """A batch has left its worker."""
        self._ends.remove(_end_of(batch))
        self._verdict = None

    def reconsider(self) -> None:
        """Workers, costs or weights have changed."""
        self._verdict = None

    def admit(self, item: Item, rows: int, cap_rows: int) -> list[Refusal]:
        """Admit an item (the first of `rows` rows), or raise. Returns the items it pushes out."""
        if item.deadline <= item.arrived_at:
            raise DeadlineExceeded("the deadline had passed before the item was queued")
        self._offered.add(item.arrived_at, rows)
        verdict = self._verdict
        if verdict is not None:
            if verdict.holds_for(item, self._queue.rows):
                raise self._shed_for(item.arrived_at, verdict)
            self._verdict = None
        if self._sheds and (self._policy.slo_s is not None or item.deadline < math.inf):
            shed = self._why_hopeless(item, cap_rows)
            if shed is not None:
                return self._make_way(item, rows, shed)
        pushed_out: list[Refusal] = []
        if self._queue.rows + rows > self._policy.max_queue:
            pushed_out = self._push_out(item, rows, cap_rows)
        if self._policy.slo_s is not None:
            self._admitted.add(item.arrived_at, rows)
        return pushed_out

    def queued_s(self, cap_rows: int) -> float:
        """The seconds of work in the queue: a new item's wait, and the signal for scaling."""
        full_s = self._costs.predict(cap_rows)
        if full_s is None:
            return 0.0
        return self._queue.rows / cap_rows * full_s / self._running.workers

    def _make_way(self, item: Item, rows: int, shed: Shed) -> list[Refusal]:
        """Evict items of tenants over their share, to answer this item in time; or raise `shed`."""
        victims = self._queue.make_way(item)
        if not victims:
            raise shed
        self._verdict = None
        retry_s = shed.retry_after_s or 0.0
        self._admitted.add(item.arrived_at, rows)
        return [Refusal(each, RefusalReason.SHED, retry_s) for each in victims]

    def _push_out(self, item: Item, rows: int, cap_rows: int) -> list[Refusal]:
        limit = self._policy.max_queue
        if rows > limit:
            raise InputTooLarge(f"{rows} rows; the queue holds {limit}", limit=limit)
        victims = self._queue.make_room(item._replace(rows=rows), limit)
        retry_after_s = self.queued_s(cap_rows)
        if not victims:
            raise QueueFull(
                f"the queue is full ({limit} rows)", limit=limit, retry_after_s=retry_after_s
            )
        return [Refusal(each, RefusalReason.QUEUE_FULL, retry_after_s) for each in victims]

    def _why_hopeless(self, item: Item, cap_rows: int) -> Shed | None:
        """The reason to shed the item, which is remembered for the next ones; None: it may be in
        time. Raises DeadlineExceeded if its own deadline cannot be met."""
        costs, now, slo_s = self._costs, item.arrived_at, self._policy.slo_s
        alone_s, full_s = costs.predict(item.rows, item.size), costs.predict(cap_rows, item.size)
        if alone_s is None or full_s is None:
            return None  # a model that has not been timed sheds nothing
        ahead = self._rows_ahead(item, cap_rows, full_s)
        # Its own batch starts after the running ones and the full ones ahead.
        turns, place = divmod(int((ahead + item.rows - 1) // cap_rows), self._running.workers)
        wait_s = self._left_s(now, place) + turns * full_s
        if wait_s <= 0.0:
            return None  # a worker is free: the estimate may be wrong, and only running it can tell
        error = costs.error_at(HOPELESS_PERCENTILE)  # batches are often faster than expected
        answer_s = (wait_s + alone_s) * (1.0 + error if error < 0.0 else 1.0) - _ROUNDING_S
        if now + answer_s > item.deadline:
            raise DeadlineExceeded(
                f"{(item.deadline - now) * 1e3:.1f} ms are left, about "
                f"{answer_s * 1e3:.1f} ms are needed"
            )
        if slo_s is None:
            return None
        is_rush = now < self._strict_until and self.is_flooded(now, cap_rows)
        # Admission is never so strict that workers run out of work.
        if is_rush and ahead >= cap_rows * self._running.workers:
            answer_s = wait_s + self._strict_s(full_s, slo_s)
        if answer_s <= slo_s:
            return None
        answer_at = now + answer_s
        verdict = _Verdict(
            kind=kind_of(item),
            queued_rows=self._queue.rows,
            until=answer_at - slo_s,
            start_at=now + wait_s,
            answer_at=answer_at,
            is_rush=is_rush,
        )
        self._remember(verdict, now)
        return self._shed_for(now, verdict)

    def _remember(self, verdict: "_Verdict", now: float) -> None:
        ends = self._ends
        if len(ends) >= self._running.workers and ends[0] > now:
            # The batches ahead start and end at moments that do not move while nothing changes.
            self._verdict = verdict._replace(until=min(verdict.until, ends[0]))

    def _shed_for(self, now: float, verdict: "_Verdict") -> Shed:
        if verdict.is_rush:
            self._stay_strict(now)
        slo_s = self._policy.slo_s or 0.0
        return Shed(
            f"the SLO of {slo_s * 1e3:g} ms cannot be met: the answer would take about "
            f"{(verdict.answer_at - now) * 1e3:.0f} ms",
            retry_after_s=verdict.start_at - now,
        )

    def is_flooded(self, now: float, cap_rows: int) -> bool:
        """Do more items arrive than can be served, and was admission too optimistic lately?"""
        if now >= self._strict_until:
            return False
        full_s, served = self._costs.predict(cap_rows), cap_rows * self._running.workers
        return full_s is not None and self._offered.rps(now) * full_s > served

    def saw_late(self, arrivals: Iterable[float], now: float, late_before: float) -> None:
        """One batch dropped items that arrived at `arrivals`: admission was too optimistic.

        Items that arrived before `late_before` minus the SLO could not be in time. However many
        they are, it is one error: the time that the first of them was late by.
        """
        if now >= self._strict_until:
            self._strict_since, self._slack_s = now, 0.0
        else:
            first = min((each for each in arrivals if each >= self._strict_since), default=math.inf)
            self._slack_s += max(0.0, late_before - (first + (self._policy.slo_s or math.inf)))
        self._stay_strict(now)

    def _stay_strict(self, now: float) -> None:
        self._strict_until = now + max(self._policy.slo_s or 0.0, _RUSH_S)

    def _strict_s(self, full_s: float, slo_s: float) -> float:
        """The strict estimate of the time from the start of an item's batch to its answer."""
        margin_s = max(0.0, self._costs.error_at(DOUBTFUL_PERCENTILE)) * full_s
        # One batch more than needed: a shorter queue costs nothing, as long as it is not empty.
        return full_s + margin_s + min(full_s + self._slack_s, slo_s / 2)

    def _left_s(self, now: float, place: int) -> float:
        """The seconds until `place` + 1 workers are free."""
        ends = self._ends
        idle = self._running.workers - len(ends)
        if idle > 0:
            place -= idle
        return 0.0 if place < 0 or ends[place] < now else ends[place] - now

    def _rows_ahead(self, item: Item, cap_rows: int, full_s: float) -> float:
        """The rows that will run before the item.

        Items that will be late are left out: they are dropped when the next full batch, which runs
        for `full_s`, is composed. In a flood that is most of the queue.
        """
        ahead, slo_s = self._queue.rows_ahead(item), self._policy.slo_s
        if slo_s is None or ahead < cap_rows:
            return ahead
        now = item.arrived_at
        next_at = now + self._left_s(now, 0) + full_s
        return min(ahead, self._admitted.since(next_at - slo_s))


class _Verdict(NamedTuple):
    """An item was shed, and other items of its kind are shed as well.

    It holds until a batch starts or ends, the queue changes, or `until` is reached: an item that
    arrives then would be answered in time.
    """

    kind: tuple[object, ...]
    queued_rows: int
    until: float
    start_at: float  # when the item's batch would have started,
    answer_at: float  # and when its answer would have come
    is_rush: bool

    def holds_for(self, item: Item, queued_rows: int) -> bool:
        return (
            item.arrived_at < self.until
            and queued_rows == self.queued_rows
            and kind_of(item) == self.kind
        )


def _end_of(batch: Batch) -> float:
    return batch.fired_at + (batch.predicted_s or 0.0)


class _Offered:
    """The rows per second that were submitted, over the last one or two periods."""

    def __init__(self) -> None:
        self._since = self._before_since = -math.inf
        self._rows = self._before_rows = 0

    def add(self, now: float, rows: int) -> None:
        if now - self._since >= _RUSH_S:
            is_next = now - self._since < 2 * _RUSH_S
            self._before_since = self._since if is_next else now
            self._before_rows = self._rows if is_next else 0
            self._since, self._rows = now, 0
        self._rows += rows

    def rps(self, now: float) -> float:
        seconds = now - self._before_since
        return (self._rows + self._before_rows) / seconds if seconds > 0.0 else 0.0


class _Admitted:
    """How many rows were admitted since a given moment, if that is not long ago."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._rows: list[int] = []  # by time: all rows admitted before
        self._total = 0

    def add(self, now: float, rows: int) -> None:
        self._times.append(now)
        self._rows.append(self._total)
        self._total += rows
        if len(self._times) > 2 * _REMEMBERED:
            del self._times[:_REMEMBERED], self._rows[:_REMEMBERED]

    def since(self, moment: float) -> float:
        at = bisect.bisect_left(self._times, moment)
        if at == 0 and len(self._times) > _REMEMBERED:
            return math.inf  # forgotten
        return self._total - self._rows[at] if at < len(self._rows) else 0


def refusal_error(refusal: Refusal, policy: Policy) -> HeadwayError:
    """The exception for an item that was queued and will not run."""
    match refusal.reason:
        case RefusalReason.QUEUE_FULL:
            return QueueFull(
                "pushed out of a full queue by work of a higher class or a quieter tenant",
                limit=policy.max_queue,
                retry_after_s=refusal.retry_after_s,
            )
        case RefusalReason.SHED:
            return Shed(
                "the request waited too long to be answered within the SLO",
                retry_after_s=refusal.retry_after_s,
            )
        case RefusalReason.DEADLINE:
            return DeadlineExceeded("the deadline passed, or could no longer be met, in the queue")
        case RefusalReason.POISON:
            return Poison(
                f"the worker was lost twice while it ran this input alone: {refusal.detail}"
            )
        case RefusalReason.WORKER_LOST:
            return ModelFailed(
                f"the worker was lost, and this input may not run again: {refusal.detail}"
            )
