"""Which replica gets the next request: one that is expected to answer it soon. Pure.

A count of requests says little about a batching server: it cannot see that a batch is nearly done,
that a replica is slow, or that a request is long. So a router keeps, for each replica, what it
needs to predict when a request sent now would be answered. It knows for certain only its own
requests; what a replica says of its queue is some milliseconds old, and routers that all chose the
least of such figures would all choose the same replica: hence `TWO_CHOICES`.
"""

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

_LATEST: Final = 0.1  # the weight of the latest answer in how fast a replica is
_FASTEST, _SLOWEST = 0.05, 100.0  # of an answer, against the prediction
_FORGOTTEN_S: Final = 10.0  # without answers, what was learned counts half after this
_OVERDUE: Final = 0.5  # a batch that is late by t is expected to take this share of t longer


class RoutingRule(StrEnum):
    """How a replica is chosen."""

    ROUND_ROBIN = "round-robin"
    RANDOM = "random"
    TWO_CHOICES = "two-choices"  # of two at random, the one that is expected to answer first
    FINISH = "finish"  # the one of all that is expected to answer first


class Pace(NamedTuple):
    """How long a replica's batches take."""

    batch_s: float  # with one request of the usual size
    more_s: float  # for each further one
    most: float = 64.0  # requests in a batch

    def seconds(self, weight: float) -> float:
        """The time of batches with requests of that weight together."""
        full = 0.0
        if weight > self.most:
            full = (weight - 1e-9) // self.most
            weight -= full * self.most
        full_s = self.batch_s + (self.most - 1.0) * self.more_s
        return full * full_s + self.batch_s + max(0.0, weight - 1.0) * self.more_s


UNKNOWN: Final = Pace(0.010, 0.0005)  # only the proportions matter: the ratio is learned


class _Sent(NamedTuple):
    at: float
    weight: float
    raw_s: float  # the predicted time, before the learned ratio


class ReplicaView:
    """What one router knows of one replica. The replica is taken to start a batch with all that
    waits whenever one comes back: so each answer says when the running batch began."""

    def __init__(self, pace: Pace | None = None) -> None:
        self.pace = pace or UNKNOWN
        self.usual = 1.0  # the ratio of a replica that nothing is known of
        self._ratio = 1.0  # of real times to predicted ones, at the last answer
        self._answered_at = -math.inf
        self._sent: dict[object, _Sent] = {}
        self._weight = 0.0  # of all that was sent and is not answered
        self._running = 0.0  # of that, what the running batch holds
        self._began = 0.0  # the running batch
        self._others_until = 0.0  # until the requests of other routers are done

    @property
    def in_flight(self) -> int:
        return len(self._sent)

    def has(self, number: object) -> bool:
        return number in self._sent

    def finish_s(self, now: float, weight: float = 1.0) -> float:
        """In how many seconds a request sent now would be answered."""
        return self._rest_s(now) + self._raw_s(weight) * self.ratio(now)

    def ratio(self, now: float) -> float:
        """Of real times to predicted ones. A replica that was slow is tried again in time."""
        kept: float = 0.5 ** ((now - self._answered_at) / _FORGOTTEN_S)
        return self.usual + (self._ratio - self.usual) * kept

    @property
    def is_known(self) -> bool:
        """Has it ever answered?"""
        return self._answered_at > -math.inf

    def _raw_s(self, weight: float) -> float:
        return self.pace.seconds(self._weight - self._running + weight)

    def _rest_s(self, now: float) -> float:
        """Until the running batch is done, and the requests of others."""
        rest_s = max(0.0, self._others_until - now)
        if not self._sent:
            return rest_s
        left_s = self._began + self.pace.seconds(self._running) * self.ratio(now) - now
        return rest_s + (left_s if left_s >= 0.0 else -left_s * _OVERDUE)

    def sent(self, number: object, now: float, weight: float = 1.0) -> None:
        """Note a request that goes there now; `number` tells it from others."""
        raw_s = self._rest_s(now) / self.ratio(now) + self._raw_s(weight)
        if not self._sent:
            self._running, self._began = weight, now
        self._sent[number] = _Sent(now, weight, raw_s)
        self._weight += weight

    def answered(self, number: object, now: float) -> None:
        """It was answered: a batch has come back, and the next one holds what is left."""
        sent = self._end(number)
        self._running, self._began = self._weight, now
        if sent.raw_s > 0.0:
            ratio = min(max((now - sent.at) / sent.raw_s, _FASTEST), _SLOWEST)
            before = self.ratio(now)
            share = _LATEST if self.is_known else 1.0
            self._ratio, self._answered_at = before + (ratio - before) * share, now

    def failed(self, number: object) -> None:
        """It was refused or lost, or its caller left: that says nothing about batches."""
        self._end(number)
        self._running = min(self._running, self._weight)

    def _end(self, number: object) -> _Sent:
        sent = self._sent.pop(number)
        self._weight = self._weight - sent.weight if self._sent else 0.0
        return sent

    def reported(self, now: float, *, pace: Pace | None, queue_s: float) -> None:
        """The replica has reported its pace, and how long its queue takes. The part of the queue
        that this router has not sent comes from other routers."""
        if pace is not None:
            self.pace = pace
        own_s = self.pace.seconds(self._weight) * self.ratio(now) if self._sent else 0.0
        self._others_until = now + max(0.0, queue_s - own_s)


class Router:
    """Chooses among replicas. `draw(n)` is a random number below n."""

    def __init__(self, route: RoutingRule, draw: Callable[[int], int]) -> None:
        self._route = route
        self._draw = draw
        self._turn = -1

    def choose(self, replicas: Sequence[ReplicaView], now: float, weight: float = 1.0) -> int:
        """The index of the replica; there is at least one."""
        count = len(replicas)
        if count == 1:
            return 0
        if self._route is RoutingRule.ROUND_ROBIN:
            self._turn += 1
            return self._turn % count
        first = self._draw(count)
        if self._route is RoutingRule.RANDOM:
            return first
        if self._route is RoutingRule.TWO_CHOICES:
            second = (first + 1 + self._draw(count - 1)) % count
            candidates = [first, second]
        else:
            candidates = [(first + step) % count for step in range(count)]  # ties: any of them
        best, best_s = first, replicas[first].finish_s(now, weight)
        for candidate in candidates[1:]:
            finish_s = replicas[candidate].finish_s(now, weight)
            if finish_s < best_s:
                best, best_s = candidate, finish_s
        return best
