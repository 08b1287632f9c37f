"""Chooses among several servers of the same models. Pure: the time is passed in.

It draws two servers at random and takes the one that should answer first (`core/routing.py`),
judged by this client's own calls and by what servers now and then report of their batches and
queues. A server that cannot be reached, or asks for a pause, gets no calls for a while.
"""

import json
import random
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headway.client.calls import ClientAnswer, seconds_of
from headway.core.routing import Pace, ReplicaView, Router, RoutingRule
from headway.errors import DeadlineExceeded, HeadwayError

ASKED: Final = {"endpoint-load-metrics-format": "JSON"}
_ASK_EVERY_S = 0.25  # how often a server is asked for its load
_FIRST_AWAY_S, _LONGEST_AWAY_S = 1.0, 30.0
_LATEST = 0.05  # the weight of the latest body in the mean size
_LIGHTEST, _HEAVIEST = 0.1, 10.0  # of a request, against the mean
_MOST_MODELS = 256  # of further ones the oldest is forgotten


@dataclass(slots=True)
class _Server:
    away_until: float = 0.0
    away_s: float = 0.0  # how long it was left alone last
    asked_at: float = float("-inf")


@dataclass(slots=True)
class _Views:
    """What is known of one model on every server."""

    views: list[ReplicaView]
    mean_bytes: float = 0.0

    def weight(self, size: int) -> float:
        """How heavy a request is beside others, by its bytes."""
        self.mean_bytes += (size - self.mean_bytes) * (_LATEST if self.mean_bytes else 1.0)
        ratio = size / self.mean_bytes if self.mean_bytes else 1.0
        return min(max(ratio, _LIGHTEST), _HEAVIEST)

    def learned(self, now: float) -> None:
        """What nothing is known of is taken to be as fast as the fastest: so it is tried."""
        known = [view.ratio(now) for view in self.views if view.is_known]
        for view in self.views:
            view.usual = min(known, default=1.0)


@dataclass(frozen=True, slots=True)
class ChosenServer:
    """Where a request goes. To be given back with its outcome."""

    model: str
    server: int
    number: int
    view: ReplicaView
    headers: dict[str, str] = field(default_factory=dict)


class Balancer:
    """Used from any thread."""

    def __init__(self, servers: int) -> None:
        self._servers = [_Server() for _ in range(servers)]
        self._models: dict[str, _Views] = {}
        self._router = Router(RoutingRule.TWO_CHOICES, random.randrange)
        self._lock = threading.Lock()
        self._count = 0

    def choose(
        self, model: str, size: int, now: float, *, tried: Collection[int] = (), asks: bool = True
    ) -> ChosenServer:
        """A server for a request with a body of `size` bytes, if possible none of those `tried`.
        `asks`: it may be asked for its load."""
        with self._lock:
            known = self._known(model)
            weight = known.weight(size)
            open_ = self._open(now, tried) or self._soonest(tried)
            chosen = open_[self._router.choose([known.views[each] for each in open_], now, weight)]
            server = self._servers[chosen]
            self._count += 1
            view = known.views[chosen]
            view.sent(self._count, now, weight)
            headers: dict[str, str] = {}
            if asks and len(self._servers) > 1 and now - server.asked_at >= _ASK_EVERY_S:
                server.asked_at = now
                headers = ASKED
            return ChosenServer(model, chosen, self._count, view, headers)

    def has_other(self, now: float, tried: Collection[int]) -> bool:
        """Is there a server that was not tried and may be asked now?"""
        with self._lock:
            return bool(self._open(now, tried))

    def ended(
        self, place: ChosenServer, outcome: ClientAnswer | HeadwayError | None, now: float
    ) -> None:
        """`outcome`: an error if there was no answer; None: the caller left."""
        with self._lock:
            server = self._servers[place.server]
            if outcome is None:
                place.view.failed(place.number)
            elif isinstance(outcome, DeadlineExceeded):
                place.view.answered(place.number, now)  # it takes so long at least
            elif isinstance(outcome, HeadwayError):
                place.view.failed(place.number)
                server.away_s = min(max(2 * server.away_s, _FIRST_AWAY_S), _LONGEST_AWAY_S)
                server.away_until = now + server.away_s
            elif outcome.status in (429, 503):
                place.view.failed(place.number)
                pause_s = seconds_of(outcome.retry_after) or 0.0
                server.away_until = now + min(pause_s, _LONGEST_AWAY_S)
            else:
                place.view.answered(place.number, now)
                server.away_s = server.away_until = 0.0
                self._known(place.model).learned(now)
            if isinstance(outcome, ClientAnswer) and outcome.load is not None:
                _report(place.view, outcome.load, now)

    @property
    def models_known(self) -> int:
        return len(self._models)

    def _known(self, model: str) -> _Views:
        known = self._models.get(model)
        if known is None:
            if len(self._models) >= _MOST_MODELS:
                del self._models[next(iter(self._models))]
            known = self._models[model] = _Views([ReplicaView() for _ in self._servers])
        return known

    def _open(self, now: float, tried: Collection[int]) -> list[int]:
        return [
            number
            for number, server in enumerate(self._servers)
            if number not in tried and server.away_until <= now
        ]

    def _soonest(self, tried: Collection[int]) -> Sequence[int]:
        """All are away, or were tried: the one that is back first."""
        numbers = range(len(self._servers))
        rest = [each for each in numbers if each not in tried] or numbers
        return [min(rest, key=lambda each: self._servers[each].away_until)]


def _report(view: ReplicaView, text: str, now: float) -> None:
    """Take in what a server says of itself; what cannot be read is left out."""
    form, _, figures = text.partition(" ")
    if form != "JSON":
        return
    try:
        named: dict[str, Any] = json.loads(figures)["named_metrics"]
        pace = None
        if "batch_seconds" in named:
            pace = Pace(
                float(named["batch_seconds"]),
                float(named["more_seconds"]),
                max(1.0, float(named["batch_rows"])),
            )
        view.reported(now, pace=pace, queue_s=float(named["queue_seconds"]))
    except (ValueError, KeyError, TypeError):
        return
