"""Serve's autoscaling policy: replicas from work and queued seconds, as replicas report them.

Called in Serve's controller, ten times a second: it computes and nothing else. Serve applies the
limits and delays of its own configuration to the result.
"""

from collections.abc import Mapping
from typing import Any

from headway.core.lifecycle.scaling import TARGET_LOAD, replicas_for


class WorkPolicy:
    def __init__(self, target_wait_s: float = 0.1, target_load: float = TARGET_LOAD) -> None:
        self._target_wait_s = target_wait_s
        self._target_load = target_load

    def __call__(self, context: Any) -> tuple[int, dict[str, Any]]:
        target: int = context.target_num_replicas
        here = set(context.running_replicas)
        work, queued_s = (_latest(context, name) for name in ("work", "queued_s"))
        if context.total_queued_requests and not here:
            return max(1, target), {}
        if work is None or queued_s is None:
            return target, {}
        is_starting = len(here) < target
        # What waits grows until those that start are there: it asks for no further ones meanwhile.
        wanted = replicas_for(
            work,
            0.0 if is_starting else queued_s,
            target_wait_s=self._target_wait_s,
            target_load=self._target_load,
        )
        return max(wanted, target) if is_starting else wanted, {}


def _latest(context: Any, name: str) -> float | None:
    """The sum over the running replicas of what each said last; None: none has said anything."""
    series: Mapping[Any, Any] = (context.raw_metrics or {}).get(name) or {}
    values = [points[-1].value for points in series.values() if points]
    return sum(values) if values else None
