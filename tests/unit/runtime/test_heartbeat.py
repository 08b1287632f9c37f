"""A process that does not beat is dead if it ran or slept meanwhile; if it waited for a CPU, it is
only slow."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator

import pytest

from headway.runtime.workers.process.heartbeat import TICK_S, Heart, Vitals, vitals_of

ASLEEP = Vitals(cpu_s=3.0, is_runnable=False, is_stopped=False)


def reasons(heart: Heart, looks: Iterable[Vitals | None], beats: int = 1) -> list[str | None]:
    """At each tick without a new beat."""
    found = [heart.listen(100.0, beats, lambda: None)]  # the last beat
    for number, vitals in enumerate(looks, start=1):
        found.append(heart.listen(100.0 + number * TICK_S, beats, lambda seen=vitals: seen))
    return found


def running(share: float, ticks: int) -> list[Vitals]:
    """It gets so much of a CPU."""
    return [Vitals(3.0 + tick * share * TICK_S, True, False) for tick in range(ticks)]


def test_one_that_sleeps_is_dead_after_the_limit() -> None:
    found = reasons(Heart(10.0), [ASLEEP] * 20)
    assert found[:-1] == [None] * 20
    assert found[-1] == "showed no sign of life for 10 s"


def test_one_that_computes_without_beating_is_dead_after_the_limit() -> None:
    found = reasons(Heart(10.0), running(share=4.0, ticks=21))  # four threads of it
    assert found[-2:] == [None, "showed no sign of life for 10.5 s"]


def test_one_that_gets_no_cpu_is_not_dead() -> None:
    assert set(reasons(Heart(10.0), running(share=0.0, ticks=1000))) == {None}


def test_one_that_gets_little_cpu_has_as_much_more_time() -> None:
    found = reasons(Heart(10.0), running(share=0.1, ticks=201))
    assert found[-2:] == [None, "showed no sign of life for 100.5 s"]


def test_a_beat_begins_the_count_anew() -> None:
    heart = Heart(10.0)
    assert set(reasons(heart, [ASLEEP] * 19)) == {None}
    assert set(reasons(heart, [ASLEEP] * 19, beats=2)) == {None}


def test_where_the_kernel_tells_nothing_every_tick_counts() -> None:
    assert reasons(Heart(2.0), [None] * 4)[-1] == "showed no sign of life for 2 s"


def test_one_that_was_stopped_by_a_signal_is_ended_soon() -> None:
    found = reasons(Heart(10.0), [Vitals(3.0, False, True)] * 2)
    assert found == [None, None, "was stopped by a signal"]


@pytest.fixture
def started() -> Iterator[Callable[[str], int]]:
    processes = []

    def start(program: str) -> int:
        command = [sys.executable, "-c", f"print(flush=True); {program}"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        processes.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return process.pid

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def until(pid: int, fits: Callable[[Vitals], bool]) -> None:
    """The kernel says so, sooner or later."""
    while (seen := vitals_of(pid)) is not None and not fits(seen):
        pass
    assert seen is not None


def test_the_kernel_tells_who_runs_and_who_sleeps(started: Callable[[str], int]) -> None:
    busy = started("exec('while True: pass')")
    before = vitals_of(busy)
    assert before is not None
    until(busy, lambda now: now.is_runnable and now.cpu_s > before.cpu_s)
    asleep = started("import time; time.sleep(3600)")
    until(asleep, lambda now: not now.is_runnable and not now.is_stopped)


def test_one_thread_that_wants_a_cpu_is_enough(started: Callable[[str], int]) -> None:
    program = (
        "import threading; threading.Thread(target=exec, args=('while True: pass',)).start();"
        "threading.Event().wait()"
    )
    until(started(program), lambda now: now.is_runnable)


def test_of_a_process_that_is_gone_nothing_is_told() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert vitals_of(process.pid) is None
