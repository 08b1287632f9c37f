"""Serve's request router that sends a request where it is expected to be answered first.

Named in `RequestRouterConfig`, and loaded by Serve's proxies and handles.
"""

import random
import time
from collections.abc import Sequence
from typing import Any, Final

from ray.serve.request_router import FIFOMixin, RequestRouter

from headway.core.routing import Pace, ReplicaView

_MOST_EARLY: Final = 1024


class FinishFirst(FIFOMixin, RequestRouter):  # type: ignore[misc]
    """Two replicas at random, ranked by expected finish; Serve asks the second if the first is
    full. What is expected comes from this router's own requests, and from what replicas say of
    their batches. (Of their queues they say nothing here: it would be a second old. What others
    have sent there shows in how long answers take.)"""

    def initialize_state(self, **_: Any) -> None:
        self._views: dict[Any, ReplicaView] = {}
        self._told: dict[Any, Any] = {}  # the statistics that were taken in last
        self._early: dict[str, None] = {}  # completed before Serve said that they were routed

    async def choose_replicas(
        self, candidate_replicas: Sequence[Any], pending_request: Any = None
    ) -> list[list[Any]]:
        candidates = list(candidate_replicas)
        if len(candidates) < 2:
            return [candidates] if candidates else []
        now = time.monotonic()
        self._forget({each.replica_id for each in candidates})
        chosen = random.sample(candidates, 2)
        chosen.sort(key=lambda each: self._view(each).finish_s(now))
        return [[each] for each in chosen]

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        number = pending_request.metadata.internal_request_id
        if number in self._early:
            del self._early[number]
            return
        view = self._views.setdefault(replica_id, ReplicaView())
        view.sent(number, time.monotonic())

    def on_request_completed(self, replica_id: Any, internal_request_id: str) -> None:
        view = self._views.get(replica_id)
        if view is not None and view.has(internal_request_id):
            view.answered(internal_request_id, time.monotonic())
            return
        self._early[internal_request_id] = None
        if len(self._early) > _MOST_EARLY:  # those that a full replica refused stay
            del self._early[next(iter(self._early))]

    def _view(self, replica: Any) -> ReplicaView:
        view = self._views.setdefault(replica.replica_id, ReplicaView())
        stats = replica.routing_stats
        if stats and stats is not self._told.get(replica.replica_id):
            self._told[replica.replica_id] = stats
            view.pace = Pace(stats["batch_s"], stats["more_s"], stats["most"])
        return view

    def _forget(self, here: set[Any]) -> None:
        """Forget replicas that are gone, once there are many of them."""
        if len(self._views) > 2 * len(here) + 8:
            self._views = {each: view for each, view in self._views.items() if each in here}
            self._told = {each: told for each, told in self._told.items() if each in here}
