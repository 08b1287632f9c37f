"""When to decide the next step, while one runs on the device.

Late: a sequence that arrives until then is in it, and does not wait one step more. But early enough
for the device to find it when the running step ends: the host takes its time to decide a step and
to hand it over, and how long the running step takes is only estimated.
"""

_SMOOTH = 0.2
_DOUBT = 0.1  # of a step's expected time
_LEAST_S = 0.0005  # timers are late, too


class HandOver:
    """Times are of one clock. At first the host is taken to be slow."""

    def __init__(self) -> None:
        self._host_s = 0.002

    def took(self, seconds: float) -> None:
        """Learn how long the host needed to decide a step and hand it over."""
        seconds = min(seconds, 4 * self._host_s)
        self._host_s += (seconds - self._host_s) * _SMOOTH

    def at(self, began: float, expected_s: float) -> float:
        """When to decide the next step, if the running step began at `began`."""
        return began + (1 - _DOUBT) * expected_s - 1.5 * self._host_s - _LEAST_S
