"""Times a model on batches of typical values, which makes the table of costs."""

import asyncio
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from headway.core.costs import CostTable
from headway.errors import Closed, HeadwayError, ModelFailed, NotReady
from headway.runtime.calling.faults import is_out_of_memory, is_stopped, running_task
from headway.runtime.calling.row_dependence import JUDGED, NEIGHBOURS
from headway.runtime.calling.runner import BrokenContract, ModelRunner, TensorRunner
from headway.runtime.calling.samples import ATTEMPTS
from headway.runtime.calling.varying import LONG, SHORT
from headway.runtime.jobs.jobs import Job
from headway.runtime.jobs.rerunning import model_failed

_MANY = 32  # rows


class ProbeWatcher:
    """Is called for every cell of the table. This one does nothing; subclasses measure memory, make
    pauses, and skip cells that are too large."""

    def may_run(self, rows: int, size: int) -> bool:
        return True

    async def wait_turn(self, last_s: float) -> None:
        """Called before each call of the model. `last_s`: the time of the last one, 0 at first."""

    def has_run(self, rows: int, size: int) -> int | None:
        """The most bytes of memory that the call took, if known."""
        return None

    def has_failed(self, error: HeadwayError) -> bool:
        """Did the cell fail because it is too large? Then the table ends before it."""
        return False


class ProbeJob:
    """One timed call of the model, as a job for a worker."""

    def __init__(
        self, runner: ModelRunner, values: list[Any], rows: int, clock: Callable[[], float]
    ) -> None:
        self._runner = runner
        self._values = values
        self._rows = rows
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self.seconds: asyncio.Future[float] = self._loop.create_future()
        self.results: list[Any] = []

    async def work(self) -> None:
        started, task = self._clock(), running_task()
        outcome: float | HeadwayError = Closed(f"{self._runner.name} was closed during its warm-up")
        try:
            self.results = await self._runner.predict(self._values, self._rows)
            outcome = self._clock() - started
        except BaseException as error:
            if is_stopped(error, task):
                raise
            is_broken = isinstance(error, BrokenContract)  # no other sample would help
            outcome = (
                BrokenContract(str(error)) if is_broken else model_failed(self._runner.name, error)
            )
        finally:  # even if it is cancelled with its batcher
            with suppress(RuntimeError):  # the loop is closed: no caller waits any more
                self._loop.call_soon_threadsafe(self._settle, outcome)

    def _settle(self, outcome: float | HeadwayError) -> None:
        if self.seconds.done():
            return
        if isinstance(outcome, HeadwayError):
            self.seconds.set_exception(outcome)
        else:
            self.seconds.set_result(outcome)


async def probe(
    start: Callable[[Job], None],  # on a worker
    runner: ModelRunner,
    clock: Callable[[], float],
    samples: Mapping[int, Any],  # one typical value by size
    *,
    rows: Sequence[int],
    repeats: int,
    limit_s: float,
    watcher: ProbeWatcher | None = None,
) -> CostTable:
    """Batch times for every row count and size, in the order given. Ends early, with fewer row
    counts, at `limit_s`; what does not fit into memory is left out, and all that is larger."""
    sizes = sorted(samples)
    give_up_at = clock() + limit_s
    probes = _Probes(start, runner, clock, repeats, watcher or ProbeWatcher())
    by_rows: dict[int, list[_Cell]] = {}
    too_many: float = math.inf
    for count in rows:
        if count >= too_many:
            continue
        cells = [await probes.cell(samples[size], count, size) for size in sizes]
        line = [cell for cell in cells if cell is not None]
        if len(line) < len(sizes):
            too_many = count
            continue
        by_rows[count] = line
        if clock() > give_up_at:
            break
    if not by_rows:
        raise NotReady(f"{runner.name}: not even one batch fits into memory")
    lines = [by_rows[count] for count in sorted(by_rows)]
    return CostTable(
        rows=tuple(sorted(by_rows)),
        sizes=tuple(sizes) if sizes != [0] else None,
        seconds=tuple(tuple(each.seconds for each in line) for line in lines),
        memory_bytes=_memory(lines),
        errors=tuple(error for line in lines for each in line for error in each.errors),
    )


class Trial:
    """Runs made-up rows before traffic, to see if neighbours or padding change answers."""

    def __init__(
        self,
        start: Callable[[Job], None],  # on a worker
        runner: TensorRunner,
        clock: Callable[[], float],
        batch_sizes: Sequence[int],
        max_rows: int,
    ) -> None:
        self._start = start
        self._runner = runner
        self._clock = clock
        self._batch_sizes = batch_sizes
        self._max_rows = max_rows

    async def dependent_outputs(self) -> Sequence[str] | None:
        """The outputs of a row that change with its neighbours; None: it could not be tried."""
        dependence, rows = self._runner.row_dependence, self._runner.row_dependence.samples.row
        for attempt in ATTEMPTS:
            judged = [rows(content, attempt) for content in JUDGED]
            try:
                apart = [(await self._together([row]))[0] for row in judged]
            except ModelFailed:  # our made-up rows failed, not a request
                continue
            try:
                together = [
                    await self._beside(judged, rows(content, attempt)) for content in NEIGHBOURS
                ]
                found = dependence.judge(apart, together)
                if found and not dependence.is_steady(
                    together[-1], await self._beside(judged, rows(NEIGHBOURS[-1], attempt))
                ):
                    return None  # the model never repeats its answers
            except ModelFailed as error:  # the model takes only one row, or few, at a time
                return None if is_out_of_memory(error) else sorted(apart[0])
            if found == []:
                found = await self._changed_among_many(
                    judged, rows(NEIGHBOURS[0], attempt), together[0]
                )
            return found
        return None

    async def _changed_among_many(
        self, judged: Sequence[Any], neighbour: Any, few: Sequence[Any]
    ) -> list[str]:
        """The outputs that change in a batch of many rows: some networks have limited room for
        rows of one kind."""
        first, last = judged
        others = [neighbour] * (min(self._max_rows, _MANY) - 2)
        if len(others) < 2:
            return []
        try:
            answers = await self._together([first, *others, last])
        except ModelFailed:  # the rows do not fit: the warm-up finds the limit
            return []
        return self._runner.row_dependence.judge_many(few, [answers[0], answers[-1]])

    async def _beside(self, judged: Sequence[Any], neighbour: Any) -> list[Any]:
        """The answers of both rows beside the neighbour: all three in one batch if they fit."""
        first, last = judged
        if self._max_rows > 2:
            answers = await self._together([first, neighbour, last])
            return [answers[0], answers[-1]]
        return [
            (await self._together([first, neighbour]))[0],
            (await self._together([neighbour, last]))[1],
        ]

    async def padding(self) -> bool:
        """Does padding change the model's answers? If not, inputs are padded from now on."""
        varying, contents = self._runner.varying, self._runner.varying.contents()
        short = [varying.sample(SHORT, each) for each in contents]
        long = [varying.sample(LONG, each) for each in contents]
        filled = [
            varying.sample(SHORT, each, full=LONG, fill=fill)
            for fill in (0, 1)
            for each in contents
        ]
        try:
            apart = await self._answers(short), await self._answers(long)
            together = await self._answers([*filled, *long])
        except ModelFailed:  # the model is not padded, that is all
            return False
        count = len(contents)
        return varying.judge(*apart, [together[at : at + count] for at in (0, count, 2 * count)])

    async def _answers(self, values: list[Any]) -> list[Any]:
        found: list[Any] = []
        for first in range(0, len(values), self._max_rows):
            found += await self._together(values[first : first + self._max_rows])
        return found

    async def _together(self, values: list[Any]) -> list[Any]:
        rows = next((size for size in self._batch_sizes if size >= len(values)), len(values))
        job = ProbeJob(self._runner, values, rows, self._clock)
        self._start(job)
        await job.seconds
        return job.results


class _Probes:
    """Times the cells of the table, one after the other."""

    def __init__(
        self,
        start: Callable[[Job], None],
        runner: ModelRunner,
        clock: Callable[[], float],
        repeats: int,
        watcher: ProbeWatcher,
    ) -> None:
        self._start = start
        self._runner = runner
        self._clock = clock
        self._repeats = repeats
        self._watcher = watcher
        self._last_s = 0.0

    async def cell(self, sample: Any, count: int, size: int) -> "_Cell | None":
        """Time one cell. None: `rows` rows do not fit into memory."""
        if not self._watcher.may_run(count, size):
            return None
        try:
            times = await self._times(_values(self._runner, sample, count), count)
        except HeadwayError as error:
            if self._watcher.has_failed(error):
                return None
            raise
        return _Cell(times, self._watcher.has_run(count, size))

    async def _times(self, values: list[Any], rows: int) -> list[float]:
        times = []
        for attempt in range(self._repeats + 1):
            await self._watcher.wait_turn(self._last_s)
            # The model may change its list.
            job = ProbeJob(self._runner, list(values), rows, self._clock)
            self._start(job)
            self._last_s = seconds = max(await job.seconds, 1e-9)
            if attempt > 0:  # the first call of a shape pays for what is built lazily
                times.append(seconds)
        return times


class _Cell:
    """How long the calls of one shape took."""

    def __init__(self, times: list[float], peak_bytes: int | None) -> None:
        self.seconds = statistics.median(times)
        self.errors = [time / self.seconds - 1.0 for time in times]
        self.peak_bytes = peak_bytes


def _memory(lines: list[list[_Cell]]) -> tuple[tuple[int, ...], ...] | None:
    """None if the memory of any cell is unknown."""
    known = [[each.peak_bytes for each in line if each.peak_bytes is not None] for line in lines]
    if any(len(some) < len(line) for some, line in zip(known, lines, strict=True)):
        return None
    return tuple(tuple(line) for line in known)


def _values(runner: ModelRunner, sample: Any, count: int) -> list[Any]:
    per_row = runner.shape(sample)[0]
    if per_row <= count:
        return [sample] * (count // per_row)
    return [runner.cut(sample, 0, count)]
