"""What a call takes at most, and who says that memory has run out."""

import mmap
from pathlib import Path

import pytest

from headway import machine
from headway.errors import ModelFailed
from headway.machine import PeakMeter, device_name, free_bytes
from headway.runtime.calling.faults import is_out_of_memory


def test_the_peak_of_a_call_is_seen_after_it_has_gone() -> None:
    meter = PeakMeter()
    meter.start()
    if meter.peak_bytes() is None:
        pytest.skip("nobody can tell here")
    with mmap.mmap(-1, 64_000_000) as pages:  # not malloc's: that may have as much left over
        for at in range(0, len(pages), mmap.PAGESIZE):
            pages[at] = 1
    peak = meter.peak_bytes()
    assert peak is not None
    assert peak > 50e6
    meter.start()
    later = meter.peak_bytes()
    assert later is not None
    assert later < peak


def test_there_is_some_memory_on_some_device() -> None:
    free = free_bytes()
    assert free is None or free > 0
    assert device_name()


def test_files_in_the_page_cache_leave_a_container_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("10000000\n")
    (tmp_path / "memory.current").write_text("9900000\n")
    (tmp_path / "memory.stat").write_text("anon 100000\nfile 9800000\ninactive_file 9000000\n")
    assert free_bytes() == 9_100_000


@pytest.mark.parametrize(
    ("written", "cores"),
    [("max 100000\n", None), ("150000 100000\n", 1.5), ("nonsense\n", None), ("5 0\n", None)],
)
def test_a_container_says_how_many_cores_it_may_use(
    written: str, cores: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert machine.container_cores() is None
    (tmp_path / "cpu.max").write_text(written)
    assert machine.container_cores() == cores


class OutOfMemoryError(RuntimeError):
    """As torch's is called."""


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("[ONNXRuntimeError] Failed to allocate memory for requested buffer"), True),
        (ValueError("a bad value"), False),
    ],
)
def test_running_out_of_memory_is_known_also_as_a_cause(error: Exception, is_memory: bool) -> None:
    assert is_out_of_memory(error) is is_memory
    failed = ModelFailed("it raised")
    failed.__cause__ = error
    assert is_out_of_memory(failed) is is_memory
    assert not is_out_of_memory(None)
