"""Sequences that wait for a slot or for blocks, and who of them is next.

Classes are strict, but whoever has waited longer than `ageing_s` is next at every fourth
admission. Within a class tenants share by weight: each is charged for the tokens computed for it,
and the one charged least is next. Within a tenant, first come first served; a preempted sequence
returns to its old place.
"""

import heapq
from collections.abc import Mapping

from headway.core.generation.sequence import Progress
from headway.core.items import Priority

AGED_SHARE = 4  # one admission in four belongs to the aged

_Line = list[tuple[tuple[int, float, int], Progress]]


class Waiting:
    def __init__(self, weights: Mapping[str, float], ageing_s: float) -> None:
        self._weights = weights
        self._ageing_s = ageing_s
        self._live: dict[int, Progress] = {}
        self._lines: tuple[dict[str, _Line], ...] = tuple({} for _ in Priority)
        self._arrivals: list[tuple[float, int, Progress]] = []  # lowers; for ageing
        self._charged: dict[str, float] = {}  # tokens for each unit of weight
        self._active: dict[str, int] = {}  # sequences, waiting or running, by tenant
        self._queued: dict[str, int] = {}  # of these, waiting
        self._admissions = 0

    def __len__(self) -> int:
        return len(self._live)

    # ---- tenants

    def weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)

    @property
    def tenants(self) -> Mapping[str, int]:
        """Tenants with a sequence that waits or runs."""
        return self._active

    def enter(self, tenant: str) -> None:
        if tenant not in self._active:
            # What it did not use while it was away is not saved up.
            floor = min((self._charged[name] for name in self._active), default=0.0)
            self._charged[tenant] = max(self._charged.get(tenant, 0.0), floor)
            self._active[tenant] = 0
        self._active[tenant] += 1

    def leave(self, tenant: str) -> None:
        self._active[tenant] -= 1
        if not self._active[tenant]:
            del self._active[tenant], self._queued[tenant]
            if not self._active:
                self._charged.clear()

    def charge(self, tenant: str, tokens: int) -> None:
        self._charged[tenant] += tokens / self.weight(tenant)

    # ---- coming and going

    def push(self, progress: Progress) -> None:
        sequence = progress.sequence
        self._live[sequence.id] = progress
        self._queued[sequence.tenant] = self._queued.get(sequence.tenant, 0) + 1
        line = self._lines[sequence.priority].setdefault(sequence.tenant, [])
        heapq.heappush(line, ((0, sequence.arrived_at, sequence.id), progress))
        heapq.heappush(self._arrivals, (sequence.arrived_at, sequence.id, progress))

    def remove(self, sequence_id: int) -> Progress | None:
        progress = self._live.pop(sequence_id, None)
        if progress is not None:
            self._queued[progress.sequence.tenant] -= 1
        return progress

    def admitted(self, progress: Progress) -> None:
        self._admissions += 1
        self.remove(progress.sequence.id)

    def head(self, now: float) -> tuple[Progress, Priority] | None:
        """Who is next, and the class that it counts as: the aged count as the highest."""
        if self._admissions % AGED_SHARE == 0:
            aged = self._oldest()
            if aged is not None and now - aged.sequence.arrived_at > self._ageing_s:
                return aged, Priority.HIGH
        for priority in Priority:
            progress = self._head_of(priority)
            if progress is not None:
                return progress, priority
        return None

    def _oldest(self) -> Progress | None:
        while self._arrivals:
            _, sequence_id, progress = self._arrivals[0]
            if self._live.get(sequence_id) is progress:
                return progress
            heapq.heappop(self._arrivals)
        return None

    def _head_of(self, priority: Priority) -> Progress | None:
        best: tuple[tuple[float, float, float, int], Progress] | None = None
        lines = self._lines[priority]
        for tenant in list(lines):
            line = lines[tenant]
            while line and self._live.get(line[0][1].sequence.id) is not line[0][1]:
                heapq.heappop(line)
            if not line:
                del lines[tenant]
                continue
            (_, arrived_at, sequence_id), progress = line[0]
            # A newcomer starts level with the least charged; it goes first, for it runs nothing.
            running = self._active[tenant] - self._queued[tenant]
            rank = (self._charged[tenant], running, arrived_at, sequence_id)
            if best is None or rank < best[0]:
                best = rank, progress
        return best[1] if best else None
