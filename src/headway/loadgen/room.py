"""Did the client have room? How much CPU it used, and how long it waited for one."""

import time
from dataclasses import dataclass
from pathlib import Path

_SCHEDSTAT = Path("/proc/self/schedstat")  # of Linux: ns on a CPU, ns waiting for one, times


@dataclass(frozen=True, slots=True)
class ClientRoom:
    """Shares of the run's time."""

    busy: float  # at work on a CPU
    waiting: float  # ready to run, and no CPU free; 0 where the system does not tell


class RoomMeter:
    def __init__(self) -> None:
        self._used_s = time.process_time()
        self._waited_s = _waited_s()
        self.started_at = time.perf_counter()

    def told(self, idle_s: float) -> ClientRoom:
        """`idle_s`: time on a CPU in which there was nothing to do."""
        elapsed_s = max(1e-9, time.perf_counter() - self.started_at)
        used_s = time.process_time() - self._used_s
        return ClientRoom(
            busy=max(0.0, used_s - idle_s) / elapsed_s,
            waiting=max(0.0, _waited_s() - self._waited_s) / elapsed_s,
        )


def _waited_s() -> float:
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
