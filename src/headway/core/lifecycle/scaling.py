"""How many replicas the work needs. Pure: figures in, a number out.

A batching server is busy nearly all the time at a twentieth of its load, with small batches; so
busy time, CPU and GPU use say nothing. These figures do:

- *load*: seconds of work done per second, where work is the least time that the rows can take, in
  full batches. 1 is one replica that can do no more.
- *queued seconds*: how long the queue would take, in full batches.
"""

import math
from collections import deque
from typing import Final

TARGET_LOAD: Final = 0.7  # of each replica: the rest is for bursts
# What a replica that loads counts as, in work a second: one that loads alone is not idle. It asks
# for further ones by as much, so it is small: 0.5 would ask for 3.5 times what is missing.
LOADING_WORK: Final = 0.1

# Scalers take the mean load of a minute. That of a few seconds is half luck, and replicas that
# follow it come and go; what cannot wait for a minute is in the queue.
SCALED_S: Final = 60.0
_SHOWN_S: Final = 5.0
_USUAL_S = 0.05  # a queue of that many seconds halves a balancer's weight
_STEP_S = 0.25  # between two readings that are kept


def replicas_for(
    load: float, queued_s: float, *, target_wait_s: float, target_load: float = TARGET_LOAD
) -> int:
    """The replicas that this takes. Both figures are sums over all replicas: the load keeps the
    capacity, and the queue answers bursts."""
    by_load = load / target_load
    by_queue = queued_s / target_wait_s
    return max(0, math.ceil(max(by_load, by_queue) - 1e-9))


def weight_percent(queued_s: float) -> int:
    """A balancer's weight for a replica, of the weight that it has with an empty queue."""
    return max(1, round(100.0 * _USUAL_S / (_USUAL_S + max(0.0, queued_s))))


class WorkRate:
    """The load: the rate of a sum of work over the last seconds."""

    def __init__(self, window_s: float = _SHOWN_S) -> None:
        self._window_s = window_s
        self._readings: deque[tuple[float, float]] = deque()

    def read(self, now: float, work_s: float) -> float:
        """The load, now that the sum is `work_s`; 0 at the first reading."""
        readings = self._readings
        while len(readings) > 1 and readings[1][0] <= now - self._window_s:
            readings.popleft()
        began, before_s = readings[0] if readings else (now, work_s)
        if not readings or now - readings[-1][0] >= _STEP_S:
            readings.append((now, work_s))
        return max(0.0, (work_s - before_s) / (now - began)) if now > began else 0.0
