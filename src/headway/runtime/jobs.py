"""What a worker does with one batch: call the model, find the culprit if it raises, measure.

A job never raises: whatever happens is its result. It runs on a thread (`run`) or in an event
loop (`run_async`), and tells its batcher when it is done.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Protocol

from headway.core.bisecting import Bisection
from headway.core.items import Batch
from headway.errors import ModelFailed
from headway.runtime.calls import Answerable, StreamCall
from headway.runtime.runner import BrokenContract, Runner

Clock = Callable[[], float]


class Worker(Protocol):
    """Runs one job at a time."""

    @property
    def is_lost(self) -> bool:
        """Its job can never finish."""
        ...

    def start(self, job: "Job") -> None: ...

    def stop(self) -> None: ...


class Job(Protocol):
    """Anything a worker runs."""

    def run(self) -> None: ...

    async def run_async(self) -> None: ...


class BatchJob:
    """A batch on its way through a worker."""

    def __init__(
        self,
        batch: Batch,
        calls: Sequence[Answerable],
        worker: Worker,
        clock: Clock,
        done: "Callable[[BatchJob], None]",
    ) -> None:
        self.batch = batch
        self.calls = calls
        self.worker = worker
        self.finished_at = 0.0
        self.ran_s = 0.0
        self.reruns = 0
        self.model_s: float | None = None  # what the model took, where that tells its speed
        self.results: list[Any] = []  # one per item; an Exception is that item's error
        self._clock = clock
        self._done = done

    def run(self) -> None:
        raise NotImplementedError

    async def run_async(self) -> None:
        raise NotImplementedError

    def _fail(self, error: BaseException, name: str) -> None:
        self.results = [model_failed(name, error) for _ in self.calls]


class PredictJob(BatchJob):
    """One answer per item."""

    def __init__(
        self,
        batch: Batch,
        calls: Sequence[Answerable],
        worker: Worker,
        clock: Clock,
        done: Callable[[BatchJob], None],
        runner: Runner,
        max_reruns: int,
    ) -> None:
        super().__init__(batch, calls, worker, clock, done)
        self._runner = runner
        self._max_reruns = max_reruns if runner.may_rerun else 0

    def run(self) -> None:
        started = self._clock()
        values = [call.value for call in self.calls]
        try:
            self.results = self._runner.predict(values, self.batch.padded_rows)
            self.model_s = self._clock() - started
        except BaseException as error:  # noqa: BLE001  the model is user code; its thread must survive
            bisection = self._suspect(error)
            while bisection and (group := self._next_group(bisection)):
                try:
                    self._keep(group, self._runner.predict(*self._rerun_of(group)))
                    bisection.succeeded()
                except BaseException as again:  # noqa: BLE001  as above
                    bisection.failed(again)
            self._blame(bisection)
        self.ran_s = self._clock() - started
        self._done(self)

    async def run_async(self) -> None:
        started = self._clock()
        values = [call.value for call in self.calls]
        try:
            self.results = await self._runner.predict_async(values, self.batch.padded_rows)
            self.model_s = self._clock() - started
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  the model is user code
            raise_if_cancelled(error)
            bisection = self._suspect(error)
            while bisection and (group := self._next_group(bisection)):
                try:
                    results = await self._runner.predict_async(*self._rerun_of(group))
                    self._keep(group, results)
                    bisection.succeeded()
                except (Exception, asyncio.CancelledError) as again:  # noqa: BLE001  as above
                    raise_if_cancelled(again)
                    bisection.failed(again)
            self._blame(bisection)
        finally:  # cancelled with its loop: answer what there is
            self.ran_s = self._clock() - started
            self._done(self)

    # ---- finding the culprit. Units are requests: parts of one request fail together anyway.

    def _suspect(self, error: BaseException) -> Bisection | None:
        self._fail(error, self._runner.name)
        self._units = _units(self.batch)
        if isinstance(error, BrokenContract) or not self._max_reruns or len(self._units) == 1:
            return None
        return Bisection(len(self._units), error, self._max_reruns)

    def _next_group(self, bisection: Bisection) -> list[int] | None:
        units = bisection.next_group()
        if units is None:
            return None
        self.reruns += 1
        return [index for unit in units for index in self._units[unit]]

    def _rerun_of(self, group: list[int]) -> tuple[list[Any], int]:
        # The callers' values once more: the first list was the model's, to do with as it liked.
        values = [self.calls[index].value for index in group]
        rows = sum(self.batch.items[index].rows for index in group)
        fixed = self.batch.padded_rows > self.batch.rows
        return values, self.batch.padded_rows if fixed else rows

    def _keep(self, group: list[int], results: list[Any]) -> None:
        for index, result in zip(group, results, strict=True):
            self.results[index] = result

    def _blame(self, bisection: Bisection | None) -> None:
        for unit, error in (bisection.errors if bisection else {}).items():
            for index in self._units[unit]:
                self.results[index] = model_failed(self._runner.name, error)


class StreamJob(BatchJob):
    """Many answers per item: each step of the model is passed on as it comes."""

    def __init__(
        self,
        batch: Batch,
        calls: Sequence[StreamCall],
        worker: Worker,
        clock: Clock,
        done: Callable[[BatchJob], None],
        stream: Callable[[list[Any]], Iterator[Any] | AsyncIterator[Any]],
        name: str,
    ) -> None:
        super().__init__(batch, calls, worker, clock, done)
        self._streams = calls
        self._stream = stream
        self._name = name

    def run(self) -> None:
        started = self._clock()
        try:
            steps = self._stream([call.value for call in self.calls])
            assert isinstance(steps, Iterator), "an async stream needs an event loop"
            try:
                for step in steps:
                    if not self._pass_on(step):
                        break
            finally:
                self._close(steps)
            self._succeed()
        except BaseException as error:  # noqa: BLE001  the model is user code; its thread must survive
            self._fail(error, self._name)
        self._end(started)

    async def run_async(self) -> None:
        started = self._clock()
        try:
            steps = self._stream([call.value for call in self.calls])
            if isinstance(steps, AsyncIterator):
                await self._run_async(steps)
            else:
                await self._run_inline(steps)
            self._succeed()
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  the model is user code
            raise_if_cancelled(error)
            self._fail(error, self._name)
        finally:  # cancelled with its loop: answer what there is
            self._end(started)

    async def _run_async(self, steps: AsyncIterator[Any]) -> None:
        try:
            async for step in steps:
                if not self._pass_on(step):
                    break
        finally:
            close = getattr(steps, "aclose", None)
            if close is not None:
                await close()

    async def _run_inline(self, steps: Iterator[Any]) -> None:
        try:
            for step in steps:
                if not self._pass_on(step):
                    break
                await asyncio.sleep(0)  # the readers live in this loop
        finally:
            self._close(steps)

    def _pass_on(self, step: Any) -> bool:
        """False when nobody is left to read."""
        entries = list(step)
        if len(entries) != len(self.calls):
            raise BrokenContract(
                f"{self._name} yielded {len(entries)} entries for {len(self.calls)} items"
            )
        for call, entry in zip(self._streams, entries, strict=True):
            call.push(entry)
        return not all(call.is_done for call in self._streams)

    def _close(self, steps: Iterator[Any]) -> None:
        close = getattr(steps, "close", None)
        if close is not None:
            close()

    def _succeed(self) -> None:
        self.results = [None for _ in self.calls]

    def _end(self, started: float) -> None:
        self.ran_s = self._clock() - started
        self._done(self)


def raise_if_cancelled(error: BaseException) -> None:
    """Cancelled from outside, or did the model raise a CancelledError of its own?"""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error


def model_failed(name: str, error: BaseException) -> ModelFailed:
    """One caller's own exception: a shared instance would collect everybody's tracebacks."""
    if isinstance(error, BrokenContract):
        return BrokenContract(str(error))
    failure = ModelFailed(f"{name} raised {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def _units(batch: Batch) -> list[list[int]]:
    """Indices of the batch's items, grouped by the request they belong to."""
    units: dict[tuple[bool, int], list[int]] = {}
    for index, item in enumerate(batch.items):
        key = (True, item.request) if item.request is not None else (False, item.id)
        units.setdefault(key, []).append(index)
    return list(units.values())
