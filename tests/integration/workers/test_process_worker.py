"""Models in processes of their own: the same answers and errors, and no process left behind."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import numpy
import pytest
import worker_models
from worker_models import Counting, CountingLater, Echo, Keeping, Obeying

import headway
from headway.errors import ConfigError, ModelFailed, NotReady, Poison
from headway.events import Event, WorkerChanged
from processes import wait_gone

T = TypeVar("T")
PATIENCE_S = 60.0


def run(main: Coroutine[Any, Any, T]) -> T:
    """In real time, and never for ever."""

    async def bounded() -> T:
        async with asyncio.timeout(PATIENCE_S):
            return await main

    return asyncio.run(bounded())


def process_of(model: Any, **options: Any) -> "headway.Batcher[Any, Any]":
    return headway.Batcher(model, worker="process", **options)


async def all_of(batcher: "headway.Batcher[Any, Any]", *values: Any) -> list[Any]:
    return await asyncio.gather(*map(batcher.submit, values), return_exceptions=True)


class Changes:
    """An observer. `wait_ready` waits until workers were ready again so many times in all."""

    def __init__(self) -> None:
        self._ready = 0
        self._news = asyncio.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event, WorkerChanged) and event.state == "ready":
            self._ready += 1
            self._news.set()

    async def wait_ready(self, times: int) -> None:
        while self._ready < times:
            self._news.clear()
            await self._news.wait()


def kill(batcher: "headway.Batcher[Any, Any]") -> int:
    """The first worker, from outside; its number."""
    pid = batcher.worker_processes[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# ---- the same as elsewhere


@pytest.mark.parametrize("model", [worker_models.double, worker_models.double_later])
def test_functions_plain_and_async_answer_from_their_process(model: Any) -> None:
    async def main() -> None:
        async with process_of(model, workers=2) as batcher:
            assert await batcher.many(range(50)) == [2 * n for n in range(50)]

    run(main())


def test_a_decorated_function_runs_in_a_process_and_opens_itself() -> None:
    async def main() -> None:
        assert await worker_models.triple.many([1, 2, 3]) == [3, 6, 9]
        await worker_models.triple.close()

    run(main())


def test_a_model_answers_and_its_processes_are_gone_afterwards() -> None:
    async def main() -> list[int]:
        async with process_of(Obeying, workers=2) as batcher:
            pids = [each.pid for each in batcher.worker_processes]
            answers = await all_of(batcher, *range(20))
            assert [answer[0] for answer in answers] == list(range(20))
            assert {answer[1] for answer in answers} <= set(pids)
            return [pid for pid in pids if pid is not None]

    pids = run(main())
    assert len(pids) == 2
    assert not any(map(is_running, pids))


def test_arrays_of_every_size_come_back_as_they_went() -> None:
    async def main() -> None:
        async with process_of(Echo) as batcher:
            for columns in (1, 100, 10_000, 1_000_000, 3, 2_000_000):
                value = numpy.random.default_rng(columns).integers(0, 9**9, (2, columns))
                answer = await batcher.submit({"x": value})
                assert numpy.array_equal(answer["y"], value)

    run(main())


def test_a_result_that_is_kept_stays_what_it_was() -> None:
    async def main() -> None:
        async with process_of(Echo) as batcher:
            kept = []
            for n in range(12):
                answer = await batcher.submit({"x": numpy.full((1, 200_000), n)})
                kept.append(answer["y"])
            assert [array[0, 0] for array in kept] == list(range(12))
            assert [array[-1, -1] for array in kept] == list(range(12))

    run(main())


def test_an_input_that_the_model_keeps_stays_what_it_was() -> None:
    async def main() -> None:
        async with process_of(Keeping) as batcher:
            for n in range(8):
                answer = await batcher.submit({"x": numpy.full((1, 200_000), n)})
            # It has kept those of its trials before traffic, too.
            assert answer["sums"][0, -8:].tolist() == list(range(8))

    run(main())


def test_answers_belong_to_their_inputs_whatever_their_sizes() -> None:
    async def main() -> None:
        generator = numpy.random.default_rng(7)
        async with process_of(Echo, workers=2) as batcher:

            async def ask(n: int, columns: int) -> bool:
                answer = await batcher.submit({"x": numpy.full((1, columns), n)})
                return bool((answer["y"] == n).all() and answer["y"].shape == (1, columns))

            sizes = generator.choice([1, 50, 5_000, 300_000], 200)
            assert all(await asyncio.gather(*(ask(n, int(c)) for n, c in enumerate(sizes))))

    run(main())


@pytest.mark.parametrize("model", [Counting, CountingLater])
def test_streams_come_step_by_step_and_may_be_left(model: Any) -> None:
    async def main() -> None:
        async with process_of(model) as batcher:
            assert [chunk async for chunk in batcher.stream(5)] == [0, 1, 2, 3, 4]
            endless = batcher.stream(10**9)
            assert [await anext(endless) for _ in range(3)] == [0, 1, 2]
            await endless.aclose()  # type: ignore[attr-defined]
            assert [chunk async for chunk in batcher.stream(2)] == [0, 1]

    run(main())


def test_a_model_in_a_script_runs_too(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio, headway\n"
        "class Shout(headway.Model):\n"
        "    def predict(self, items): return [item.upper() for item in items]\n"
        "async def main():\n"
        "    async with headway.Batcher(Shout, worker='process') as batcher:\n"
        "        print(await batcher.submit('hello'))\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )
    command = [sys.executable, script]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.stdout == "HELLO\n"


def test_a_script_without_a_guard_is_told_what_is_missing(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import asyncio, headway\n"
        "def double(items): return [2 * item for item in items]\n"
        "async def main():\n"
        "    async with headway.Batcher(double, worker='process'): pass\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, script]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "worker: this script is imported by its own worker process" in done.stderr


# ---- errors


def test_the_models_error_keeps_its_type_and_tells_where_it_was_raised() -> None:
    async def main() -> None:
        async with process_of(Obeying) as batcher:
            bad, good = await all_of(batcher, "value", 1)
            assert good[0] == 1
            assert isinstance(bad, ModelFailed)
            assert isinstance(bad.__cause__, ValueError)
            assert "worker_models.py" in bad.__cause__.__notes__[0]

    run(main())


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("odd", "Obeying raised OddError: 3 feet"),
        ("unsendable", "Obeying raised TypeError: not for sending"),
        ("sys.exit", "Obeying raised SystemExit: 4"),
    ],
)
def test_what_cannot_travel_is_told_in_words(item: str, message: str) -> None:
    async def main() -> None:
        async with process_of(Obeying) as batcher:
            bad, good = await all_of(batcher, item, 1)
            assert (str(bad), good[0]) == (message, 1)
            assert batcher.worker_processes[0].restarts == 0

    run(main())


def test_an_item_that_cannot_be_sent_fails_alone() -> None:
    async def main() -> None:
        async with process_of(Obeying) as batcher:
            bad, good = await all_of(batcher, worker_models.Unsendable(), 1)
            assert isinstance(bad, ModelFailed)
            assert good[0] == 1

    run(main())


def test_an_exception_among_the_results_is_that_callers_error() -> None:
    async def main() -> None:
        async with process_of(Obeying) as batcher:
            bad, good = await all_of(batcher, "odd result", 1)
            assert (type(bad).__name__, str(bad), good[0]) == ("OddError", "5 feet", 1)

    run(main())


def test_what_no_other_process_can_import_is_a_mistake_in_the_configuration() -> None:
    def local(items: list[int]) -> list[int]:
        return items

    for model in (local, lambda items: items):
        with pytest.raises(ConfigError, match="at the top of its module"):
            process_of(model)


# ---- starting


def test_a_load_that_fails_raises_what_it_raised() -> None:
    async def main() -> None:
        with pytest.raises(FileNotFoundError, match="no weights here"):
            async with process_of(worker_models.BrokenLoad, workers=2):
                pass

    run(main())


def test_a_process_that_ends_while_it_loads_is_told() -> None:
    async def main() -> None:
        with pytest.raises(Exception, match="exited with status 7"):
            async with process_of(worker_models.ExitingLoad):
                pass

    run(main())


def test_a_load_that_hangs_is_ended() -> None:
    async def main() -> None:
        with pytest.raises(Exception, match=r"load\(\) took longer than 1 s"):
            async with process_of(worker_models.HangingLoad, load_timeout_s=1.0):
                pass

    run(main())


def test_closing_while_it_loads_leaves_no_process(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> int:
        batcher = process_of(worker_models.HangingLoad)
        printed, loop = asyncio.Event(), asyncio.get_running_loop()
        with (
            caplog.at_level(logging.INFO),
            caplog.filtering(lambda _: bool(loop.call_soon_threadsafe(printed.set))),
        ):
            opening = asyncio.create_task(batcher.__aenter__())
            await printed.wait()  # what it prints while it loads
        pid = batcher.worker_processes[0].pid
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        assert pid is not None
        return pid

    assert not is_running(run(main()))


# ---- being lost


@pytest.mark.parametrize("fate", ["exit", "segfault", "kill", "stop"])
def test_who_ends_the_process_is_refused_and_its_neighbours_are_answered(fate: str) -> None:
    async def main() -> None:
        async with process_of(Obeying) as batcher:
            *good, bad = await all_of(batcher, 1, 2, 3, fate)
            assert [answer[0] for answer in good] == [1, 2, 3]
            assert isinstance(bad, Poison)
            assert batcher.worker_processes[0].restarts >= 2

    run(main())


def test_one_that_is_killed_from_outside_costs_nobody_an_answer() -> None:
    async def main() -> None:
        options = {"workers": 2, "max_batch_size": 8, "observers": [changes := Changes()]}
        async with process_of(worker_models.SlowLoad, **options) as batcher:
            asked = asyncio.gather(*(batcher.submit(n) for n in range(2_000)))
            for times in range(1, 5):
                kill(batcher)
                await changes.wait_ready(times)
            assert await asked == list(range(2_000))

    run(main())


def test_one_that_dies_idle_is_replaced_before_anybody_needs_it() -> None:
    async def main() -> None:
        async with process_of(Obeying, observers=[changes := Changes()]) as batcher:
            pid = kill(batcher)
            await changes.wait_ready(1)
            value, answered_by = await batcher.submit(1)
            assert value == 1
            assert answered_by not in (pid, os.getpid())

    run(main())


def test_who_makes_a_batch_run_over_its_time_is_refused_and_its_neighbours_are_answered() -> None:
    async def main() -> None:
        async with process_of(Obeying, execute_timeout_ms=500) as batcher:
            bad, good = await all_of(batcher, "hang", 1)
            assert isinstance(bad, Poison)
            assert "did not answer within 0.5 s" in str(bad)
            assert good[0] == 1
            assert batcher.worker_processes[0].restarts >= 2
            assert batcher.is_open  # and no door is shut for the others
            assert (await batcher.submit(2))[0] == 2

    run(main())


def test_a_process_that_holds_the_lock_for_too_long_is_ended() -> None:
    async def main() -> None:
        async with process_of(Obeying, heartbeat_timeout_s=1.0) as batcher:
            bad, good = await all_of(batcher, "hold the lock", 1)
            assert isinstance(bad, Poison)
            assert "no sign of life" in str(bad)
            assert good[0] == 1

    run(main())


def test_a_stream_that_ends_its_process_ends_with_an_error() -> None:
    async def main() -> None:
        async with process_of(Counting) as batcher:
            stream = batcher.stream(-5)
            assert [await anext(stream), await anext(stream)] == [0, 1]
            with pytest.raises(ModelFailed, match="broke off"):
                await anext(stream)
            assert [chunk async for chunk in batcher.stream(2)] == [0, 1]
            assert batcher.worker_processes[0].restarts == 1

    run(main())


def test_one_that_cannot_start_again_is_given_up_and_callers_are_told(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.touch()

    async def main() -> None:
        model = worker_models.OnceLoad(str(weights))
        async with process_of(model, max_restarts=2) as batcher:
            assert await batcher.submit(1) == 1
            weights.unlink()
            answers = await all_of(batcher, "exit", 2)
            assert [type(answer) for answer in answers] == [NotReady, NotReady]
            with pytest.raises(NotReady, match="no worker left"):
                await batcher.submit(3)
            assert batcher.worker_processes[0].state == "failed"
            assert "FileNotFoundError" in batcher.worker_processes[0].last_error

    run(main())


# ---- limits and places


def test_memory_beyond_the_limit_is_the_items_own_error() -> None:
    async def main() -> None:
        async with process_of(Obeying, worker_memory_mb=512) as batcher:
            for _ in range(2):  # in a new process, and in one that has answered
                bad, good = await all_of(batcher, "memory", 1)
                assert isinstance(bad, ModelFailed)
                assert isinstance(bad.__cause__, MemoryError)
                assert good[0] == 1

    run(main())


def test_what_a_leak_leaves_too_little_for_runs_in_a_new_process() -> None:
    async def main() -> None:
        async with process_of(Obeying, worker_memory_mb=512) as batcher:
            assert (await batcher.submit(1))[0] == 1
            first = batcher.worker_processes[0].pid
            while batcher.worker_processes[0].pid == first:
                # Each keeps 64 MiB: one of them no longer fits, and has a new process to itself.
                assert await batcher.submit("leak") == "leaked"
            assert (await batcher.submit(2))[0] == 2

    run(main())


def test_each_process_has_its_place() -> None:
    cores = sorted(os.sched_getaffinity(0))

    async def main() -> None:
        async with process_of(Obeying, pin=[str(cores[0])]) as batcher:
            assert await batcher.submit("cores") == [cores[0]]
        async with process_of(Obeying, pin=["cuda:3"]) as batcher:
            assert await batcher.submit("device") == "3"

    run(main())


@pytest.mark.parametrize("place", ["x", "0-", "9999", "cuda"])
def test_a_place_that_is_none_is_a_mistake_in_the_configuration(place: str) -> None:
    with pytest.raises(ConfigError, match="pin"):
        process_of(Obeying, pin=[place])


def test_what_a_worker_prints_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with process_of(Obeying, name="talker") as batcher:
            await batcher.submit("print")

    run(main())
    lines = [(each.levelname, each.getMessage()) for each in caplog.records]
    said = {(level, *line.split(": ", 1)) for level, line in lines if line.startswith("talker[")}
    assert {(level, text) for level, _, text in said} >= {
        ("INFO", "hello from the worker"),
        ("WARNING", "and from its stderr"),
    }


# ---- nothing is left


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_no_process_outlives_its_parent(end: signal.Signals) -> None:
    script = (
        "import asyncio, headway, worker_models\n"
        "async def main():\n"
        "    async with headway.Batcher(worker_models.Obeying, worker='process', workers=2) as b:\n"
        "        asyncio.ensure_future(b.submit('hang'))\n"
        "        print(*(each.pid for each in b.worker_processes), flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    ) as parent:
        assert parent.stdout is not None
        pids = list(map(int, parent.stdout.readline().split()))
        parent.send_signal(end)
        parent.wait(PATIENCE_S)
    assert len(pids) == 2
    for pid in pids:
        wait_gone(pid)


def test_losses_leave_neither_files_nor_threads_behind() -> None:
    async def main() -> None:
        async with process_of(Obeying, observers=[changes := Changes()]) as batcher:
            counts = []
            for times in range(1, 6):
                kill(batcher)
                await changes.wait_ready(times)
                assert (await batcher.submit([numpy.zeros(500_000)]))[1]
                counts.append((len(os.listdir("/proc/self/fd")), threading.active_count()))
            assert max(counts[1:]) <= (counts[1][0] + 8, counts[1][1] + 2)  # a spare comes and goes

    run(main())
