"""Metrics of this process: CPU time, memory and open files. Those that a system does not report are
left out."""

import os
from contextlib import suppress
from pathlib import Path

from headway.observe import families
from headway.observe.exposition import Exposition

_SELF = Path("/proc/self")


def add_process(page: Exposition) -> None:
    spent = os.times()
    page.add(families.CPU_SECONDS, "", spent.user + spent.system)
    with suppress(OSError, ValueError, IndexError):  # not Linux, or not allowed
        # After the command's name, which may hold anything: field 3 of proc(5) comes first.
        fields = (_SELF / "stat").read_text().rpartition(")")[2].split()
        page.add(families.RESIDENT_BYTES, "", int(fields[21]) * os.sysconf("SC_PAGE_SIZE"))
        page.add(families.VIRTUAL_BYTES, "", int(fields[20]))
        ticks = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        page.add(families.START_TIME, "", _boot_time() + ticks)
    with suppress(OSError):
        page.add(families.OPEN_FDS, "", len(os.listdir(_SELF / "fd")))
    with suppress(ImportError, OSError):
        import resource  # not on Windows

        page.add(families.MAX_FDS, "", resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _boot_time() -> float:
    for line in Path("/proc/stat").read_text().splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    raise ValueError("/proc/stat does not say when the system came up")
