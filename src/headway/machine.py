"""Free memory and cores of the machine or container, and the peak memory of one call.

None where that is unknown."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

_CGROUP = Path("/sys/fs/cgroup")


def free_bytes() -> int | None:
    """Free bytes on the device if one is in use, else `free_host_bytes`."""
    cuda = _cuda()
    return free_host_bytes() if cuda is None else int(cuda.mem_get_info()[0])


def free_host_bytes() -> int | None:
    """Free memory of the machine, or of the container if that has less."""
    known = [each for each in (_available(), _container_room()) if each is not None]
    return min(known, default=None)


def container_cores() -> float | None:
    """How many cores' time the container may use; None: no limit."""
    with suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        if quota != "max":
            return int(quota) / int(period)
    return None


class PeakMeter:
    """The most bytes in use between `start` and `peak_bytes`, beyond those in use before.

    Of this process, or of the one with that number, where the model runs.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._process = Path("/proc", "self" if pid is None else str(pid))
        self._before: int | None = None

    def start(self) -> None:
        cuda = _cuda()
        if cuda is not None:
            cuda.reset_peak_memory_stats()
            self._before = int(cuda.memory_allocated())
            return
        try:
            (self._process / "clear_refs").write_text("5")  # forget the highest mark so far
            self._before = self._status_bytes("VmRSS")
        except OSError:  # not Linux, or not allowed
            self._before = None

    def peak_bytes(self) -> int | None:
        if self._before is None:
            return None
        cuda = _cuda()
        peak = int(cuda.max_memory_allocated()) if cuda is not None else self._status_bytes("VmHWM")
        return None if peak is None else max(0, peak - self._before)

    def _status_bytes(self, field: str) -> int | None:
        return _kilobytes(self._process / "status", field)


def device_name() -> str:
    cuda = _cuda()
    if cuda is not None:
        return str(cuda.get_device_name())
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    import platform

    return platform.processor() or platform.machine()


def _cuda() -> Any:
    """torch.cuda, where the model has put something on it."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _available() -> int | None:
    return _kilobytes(Path("/proc/meminfo"), "MemAvailable")


def _container_room() -> int | None:
    """Page cache of files counts as used there, but is given up when needed."""
    try:
        most = (_CGROUP / "memory.max").read_text().strip()
        used = (_CGROUP / "memory.current").read_text().strip()
        if most == "max":
            return None
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        return max(0, int(most) - int(used) + int(stat.get("inactive_file", 0)))
    except (OSError, ValueError):
        return None


def _kilobytes(path: Path, field: str) -> int | None:
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return None
