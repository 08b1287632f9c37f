"""Is a process without heartbeats dead, or only slow?

A process beats four times a second, from a thread of its own. On a busy machine it may get no CPU
for many seconds, and cannot beat. So the limit counts the time in which it ran or slept without a
beat, and not the time in which it waited for a CPU.
"""

from collections.abc import Callable
from contextlib import suppress
from os import sysconf
from pathlib import Path
from typing import NamedTuple

TICK_S = 0.5  # between two looks at the heart; the child beats twice as often
_STOPPED_TICKS = 2  # without a beat, when the process was stopped by a signal
_CLOCK_HZ = sysconf("SC_CLK_TCK")


class Vitals(NamedTuple):
    """The kernel's figures of a process."""

    cpu_s: float  # that all its threads have used so far
    is_runnable: bool  # a thread of it runs, or waits for a CPU
    is_stopped: bool  # by a signal


class Heart:
    """The heart of one process. A look counts for one tick at most: if this process itself was held
    up, it cannot judge another."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = max(_STOPPED_TICKS * TICK_S, limit_s)
        self._beats = 0
        self._missed = 0  # ticks in a row
        self._silent_s = 0.0  # of these: it ran or slept
        self._cpu_s: float | None = None  # at the last look
        self._looked_at = 0.0

    def listen(self, now: float, beats: int, look: Callable[[], Vitals | None]) -> str | None:
        """Why the process must be ended; None: it need not be. `look` is called only where a beat
        is missing, and gives None where the kernel tells nothing."""
        if now - self._looked_at < 0.9 * TICK_S:
            return None  # woken by output
        self._looked_at = now
        if beats != self._beats:
            self._beats, self._missed, self._silent_s, self._cpu_s = beats, 0, 0.0, None
            return None
        vitals = look()
        self._missed += 1
        self._silent_s += self._counted_s(vitals)
        if self._missed >= _STOPPED_TICKS and vitals is not None and vitals.is_stopped:
            return "was stopped by a signal"
        if self._silent_s >= self._limit_s - 1e-6:
            return f"showed no sign of life for {self._missed * TICK_S:g} s"
        return None

    def _counted_s(self, vitals: Vitals | None) -> float:
        if vitals is None:
            return TICK_S
        before, self._cpu_s = self._cpu_s, vitals.cpu_s
        if not vitals.is_runnable:
            return TICK_S  # it sleeps, and does not beat
        return 0.0 if before is None else min(TICK_S, vitals.cpu_s - before)


def vitals_of(pid: int) -> Vitals | None:
    with suppress(OSError, IndexError, ValueError):
        fields = _fields(Path(f"/proc/{pid}/stat"))
        states = "".join(_states(pid))
        cpu_s = (int(fields[11]) + int(fields[12])) / _CLOCK_HZ
        return Vitals(cpu_s, "R" in states, fields[0] in "Tt")
    return None


def _states(pid: int) -> list[str]:
    """The figures of all its threads."""
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            found.append(_fields(thread / "stat")[0])
    return found


def _fields(stat: Path) -> list[str]:
    """The fields from the third (the state) on: the second, a name, may have spaces."""
    return stat.read_text().rpartition(")")[2].split()
