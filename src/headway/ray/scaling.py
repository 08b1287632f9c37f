"""Serve's autoscaling policy: replicas from work and queued seconds, as replicas report them.

Called in Serve's controller, ten times a second: it computes and nothing else. Serve applies the
limits and delays of its own configuration to the result.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headway.core.lifecycle.scaling import TARGET_LOAD, replicas_for

_LATELY_S: Final = 5.0  # as long as replicas' own `work` looks back
_STARTS_S: Final = 10.0  # a replica that is asked for now answers about then
_TOLERANCE: Final = 0.1  # of what is there: a load at the edge of a number does not go to and fro


class WorkPolicy:
    def __init__(self, target_wait_s: float = 0.1, target_load: float = TARGET_LOAD) -> None:
        self._target_wait_s = target_wait_s
        self._target_load = target_load

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        target: int = context.target_num_replicas
        here = len(context.running_replicas)
        work, queues = (_series(context, name) for name in ("work", "queued_s"))
        if context.total_queued_requests and not here:
            return max(1, target), {}
        if not work or not queues:
            return target, {}
        # What arrives is what was done and what the queue grew by: a queue that is worked off is no
        # load, and one that builds up shows all of it.
        load = sum(points[-1].value for points in work) + sum(map(_growth, queues))
        is_edge = here < load / self._target_load <= here * (1.0 + _TOLERANCE)
        wanted = here if is_edge else self._replicas(load, 0.0)
        if here < target:  # what waits grows until those that start are there
            return max(wanted, target), {}
        # Those that the load needs work the queue off; replicas for the rest of it only.
        queued_s = sum(points[-1].value for points in queues) - (wanted - load) * _STARTS_S
        return max(wanted, self._replicas(0.0, queued_s)), {}

    def _replicas(self, load: float, queued_s: float) -> int:
        return replicas_for(
            load, queued_s, target_wait_s=self._target_wait_s, target_load=self._target_load
        )


def _series(context: Any, name: str) -> list[Sequence[Any]]:
    """What each replica that runs has said lately."""
    series: Mapping[Any, Sequence[Any]] = (context.raw_metrics or {}).get(name) or {}
    here = set(context.running_replicas)
    return [points for replica, points in series.items() if points and replica in here]


def _growth(points: Sequence[Any]) -> float:
    """Seconds of queue that came to it a second."""
    last = points[-1]
    first = next(each for each in points if each.timestamp >= last.timestamp - _LATELY_S)
    span_s = last.timestamp - first.timestamp
    return float(last.value - first.value) / span_s if span_s > 0.0 else 0.0
