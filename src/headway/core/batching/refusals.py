"""Items that will not be answered: each is kept with its reason until the runtime is told."""

import math

from headway.core.batching.composition import Composition
from headway.core.batching.lateness import MOST_DROPPED
from headway.core.faults.suspects import Suspects, Verdict
from headway.core.items import Item, Refusal, RefusalReason, Refuse
from headway.core.policy import Policy
from headway.core.queueing.queue import Queue


class Refusals:
    def __init__(self, policy: Policy, queue: Queue, suspects: Suspects) -> None:
        self._slo_s = math.inf if policy.slo_s is None else policy.slo_s
        self._queue = queue
        self._suspects = suspects
        self._found: list[Refusal] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, refusals: list[Refusal]) -> None:
        self._found += refusals

    def lost(self, verdict: Verdict, reason: str) -> None:
        """A worker was lost: refuse the items that did it, and those that are given up."""
        for item in verdict.blamed:
            self._found.append(Refusal(item, RefusalReason.POISON, detail=reason))
        for item in verdict.given_up:
            self._found.append(Refusal(item, RefusalReason.WORKER_LOST, detail=reason))

    def late(self, made: Composition, retry_after_s: float) -> list[float]:
        """Refuse the items that were dropped from a batch, because of their own deadlines or of the
        SLO. Returns when those arrived whom the SLO refuses."""
        shed: list[float] = []
        for item in made.late:
            reason = RefusalReason.DEADLINE
            if item.deadline > item.arrived_at + self._slo_s:
                reason = RefusalReason.SHED
                shed.append(item.arrived_at)
            self._found.append(Refusal(item, reason, retry_after_s))
        return shed

    def next_deadline(self) -> float:
        """When the next item has to be refused."""
        deadline = self._queue.next_deadline()
        return min(deadline, self._suspects.next_deadline()) if self._suspects.cases else deadline

    def take(self, now: float) -> Refuse:
        """All that are known, and the items whose deadlines have passed."""
        expired: list[Item] = self._queue.pop_expired(now, MOST_DROPPED)
        expired += self._suspects.pop_expired(now)
        found, self._found = self._found, []
        return Refuse((*found, *[Refusal(item, RefusalReason.DEADLINE) for item in expired]))
