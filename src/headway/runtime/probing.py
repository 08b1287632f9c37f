"""Times a model on batches of typical values: the cost table that decisions rest on."""

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from headway.core import CostTable
from headway.errors import Closed, HeadwayError
from headway.runtime.jobs import Job, model_failed, raise_if_cancelled
from headway.runtime.runner import Runner


class _Probe:
    """One timed call of the model, as a job for a worker."""

    def __init__(
        self, runner: Runner, values: list[Any], rows: int, clock: Callable[[], float]
    ) -> None:
        self._runner = runner
        self._values = values
        self._rows = rows
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.seconds: asyncio.Future[float] = self._loop.create_future()

    def run(self) -> None:
        started = self._clock()
        try:
            self._runner.predict(self._values, self._rows)
            outcome: float | HeadwayError = self._clock() - started
        except BaseException as error:  # noqa: BLE001  the model is user code; its thread must survive
            outcome = model_failed(self._runner.name, error)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._settle, outcome)

    async def run_async(self) -> None:
        started = self._clock()
        try:
            await self._runner.predict_async(self._values, self._rows)
            self._settle(self._clock() - started)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  the model is user code
            raise_if_cancelled(error)
            self._settle(model_failed(self._runner.name, error))
        finally:  # cancelled: the batcher closes
            self._settle(Closed(f"{self._runner.name} was closed during its warm-up"))

    def _settle(self, outcome: float | HeadwayError) -> None:
        if self.seconds.done():
            return
        if isinstance(outcome, HeadwayError):
            self.seconds.set_exception(outcome)
        else:
            self.seconds.set_result(outcome)


async def probe(
    start: Callable[[Job], None],  # on a worker
    runner: Runner,
    clock: Callable[[], float],
    samples: Mapping[int, Any],  # one typical value by size
    *,
    rows: Sequence[int],
    repeats: int,
    limit_s: float,
) -> CostTable:
    """Batch times for every row count and size. Ends early, with fewer row counts, at `limit_s`."""
    sizes = sorted(samples)
    give_up_at = clock() + limit_s
    table: list[tuple[float, ...]] = []
    errors: list[float] = []
    for count in rows:
        line = []
        for size in sizes:
            per_row = runner.shape(samples[size])[0]
            if per_row <= count:
                values = [samples[size]] * (count // per_row)
            else:
                values = [runner.cut(samples[size], 0, count)]
            times = await _times(start, runner, values, count, clock, repeats)
            line.append(statistics.median(times))
            errors += [time / line[-1] - 1.0 for time in times]
        table.append(tuple(line))
        if clock() > give_up_at:
            break
    return CostTable(
        rows=tuple(rows[: len(table)]),
        sizes=tuple(sizes) if sizes != [0] else None,
        seconds=tuple(table),
        errors=tuple(errors),
    )


async def _times(
    start: Callable[[Job], None],
    runner: Runner,
    values: list[Any],
    rows: int,
    clock: Callable[[], float],
    repeats: int,
) -> list[float]:
    times = []
    for attempt in range(repeats + 1):
        job = _Probe(runner, list(values), rows, clock)  # a model may do with it as it likes
        start(job)
        seconds = max(await job.seconds, 1e-9)
        if attempt > 0:  # the first call of a shape pays for what is built lazily
            times.append(seconds)
    return times
