"""What the server and its workers hold of the machine, over time, and whether it grows."""

import asyncio
import itertools
import os
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos.server import Server

PROC = Path("/proc")
SHM = Path("/dev/shm")
_LISTENING = "0A"


@dataclass(frozen=True, slots=True)
class Measure:
    """One thing that must stay flat, and how much of it is no growth."""

    name: str
    unit: str
    slack: float
    share: float = 0.05


MEASURES = {
    "server_mib": Measure("server: memory of its own", "MiB", 16.0),
    "server_shared_mib": Measure("server: shared memory mapped", "MiB", 4.0),
    "server_fds": Measure("server: file descriptors, clients' aside", "", 8.0),
    "server_threads": Measure("server: threads", "", 3.0),
    "processes": Measure("worker processes, spare ones included", "", 1.0),
    "zombies": Measure("ended, not reaped", "", 1.0),
    "workers_mib": Measure("workers: memory of their own, median", "MiB", 8.0),
    "workers_shared_mib": Measure("workers: shared memory mapped, median", "MiB", 2.0),
    "workers_fds": Measure("workers: file descriptors, median", "", 2.0),
    "shm_files": Measure("files in /dev/shm", "", 0.0),
}

Sample = dict[str, float]


async def watch(
    server: Server, seconds: float, every_s: float, *, clock: Callable[[], float]
) -> list[tuple[float, Sample]]:
    """Samples until the time is up."""
    samples: list[tuple[float, Sample]] = []
    for number in itertools.count(1):
        await asyncio.sleep(number * every_s - clock())
        if clock() >= seconds:
            return samples
        samples.append((clock(), await asyncio.to_thread(sample, server.pid)))
    raise AssertionError


def sample(pid: int) -> Sample:
    children = children_of(pid)
    living = [child for child in children if not is_zombie(child)]
    own = status_of(pid)
    workers = [found for child in living if (found := status_of(child))]
    return {
        "server_mib": own["RssAnon"] / 1024,
        "server_shared_mib": _memfd_mib(pid),
        "server_fds": _fd_count(pid),
        "server_threads": own["Threads"],
        "processes": len(living),
        "zombies": len(children) - len(living),
        "workers_mib": _median([each["RssAnon"] / 1024 for each in workers]),
        "workers_shared_mib": _median([_memfd_mib(child) for child in living]),
        "workers_fds": _median([_fd_count(child) for child in living]),
        "shm_files": len(shm_files()),
    }


@dataclass(frozen=True, slots=True)
class Trend:
    measure: Measure
    first: float  # median of the first third
    last: float  # median of the last third
    highest: float
    per_hour: float

    @property
    def is_flat(self) -> bool:
        return self.last - self.first <= self.measure.slack + self.measure.share * self.first


def trends(samples: Sequence[tuple[float, Sample]]) -> list[Trend]:
    """Of each measure. The first fifth is not counted: caches fill."""
    settled = samples[len(samples) // 5 :]
    return [
        _trend(measure, [(at, values[key]) for at, values in settled])
        for key, measure in MEASURES.items()
    ]


def _trend(measure: Measure, series: list[tuple[float, float]]) -> Trend:
    values = [value for _, value in series]
    third = max(1, len(values) // 3)
    # Theil-Sen: a few odd samples do not tilt it.
    slopes = [
        (b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(series, 2) if b[0] > a[0]
    ]
    return Trend(
        measure,
        first=statistics.median(values[:third]),
        last=statistics.median(values[-third:]),
        highest=max(values),
        per_hour=3600 * statistics.median(slopes or [0.0]),
    )


# ---- /proc


def children_of(pid: int) -> list[int]:
    found = []
    for task in PROC.joinpath(str(pid), "task").glob("*/children"):
        with suppress(OSError):
            found += [int(child) for child in task.read_text().split()]
    return found


def is_zombie(pid: int) -> bool:
    with suppress(OSError):
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def status_of(pid: int) -> dict[str, float]:
    """The figures of /proc/PID/status, sizes in KiB. Nothing: it has just ended."""
    found: dict[str, float] = {}
    with suppress(OSError):
        for line in (PROC / str(pid) / "status").read_text().splitlines():
            key, _, text = line.partition(":")
            number = text.split()[:1]
            if number and number[0].isdigit():
                found[key] = float(number[0])
    return found if "RssAnon" in found else {}


def shm_files() -> set[str]:
    with suppress(OSError):
        return {each.name for each in SHM.iterdir()}
    return set()


def _fd_count(pid: int) -> float:
    """Without clients' connections: those come and go as the clients like."""
    links = []
    with suppress(OSError):
        for fd in (PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):
                links.append(os.readlink(fd))
    connections = _connections(pid)
    return sum(link not in connections for link in links)


def _connections(pid: int) -> set[str]:
    """As the links of their descriptors read."""
    fields = []
    with suppress(OSError):
        table = (PROC / str(pid) / "net" / "tcp").read_text()
        fields = [line.split() for line in table.splitlines()[1:]]
    return {f"socket:[{each[9]}]" for each in fields if each[3] != _LISTENING}


def _memfd_mib(pid: int) -> float:
    size = 0
    with suppress(OSError):
        for line in (PROC / str(pid) / "maps").read_text().splitlines():
            if "/memfd:" in line:
                start, _, end = line.split()[0].partition("-")
                size += int(end, 16) - int(start, 16)
    return size / 2**20


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0
