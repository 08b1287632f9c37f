"""The work on one batch: call the model, find the culprit if it raises, measure.

A job never raises: an error becomes its result. It is one coroutine, which runs in an event loop
or, for models that never wait, in a worker's thread (`run_to_end`). It tells its batcher when it is
done.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from headway.core.faults.fitting import Misfit
from headway.core.items import Batch
from headway.errors import HeadwayError, ModelFailed
from headway.runtime.calling.faults import WorkerLost, is_stopped, name_of, running_task, text_of
from headway.runtime.calling.nesting import Chain, enter, leave
from headway.runtime.calling.ownership import own_all
from headway.runtime.calling.row_dependence import RowDependence
from headway.runtime.calling.runner import BrokenContract, ModelRunner
from headway.runtime.driving.calls import Answerable
from headway.runtime.driving.streams import StepQueue, StreamCall
from headway.runtime.jobs.cancel_token import BatchCancel
from headway.runtime.jobs.rerunning import Reruns, own_errors

_log = logging.getLogger(__name__)
Clock = Callable[[], float]


class Worker(Protocol):
    """Runs one job at a time."""

    @property
    def is_lost(self) -> bool:
        """Its job can never finish: its event loop is closed."""

    def start(self, job: "Job") -> None: ...

    def stop(self) -> None: ...


class Job(Protocol):
    """Anything a worker runs: in its thread by `run_to_end`, or as a task."""

    def work(self) -> Coroutine[Any, Any, None]: ...


def run_to_end(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never waits, here and now."""
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    raise AssertionError("a job of a worker's thread waits for an event loop")


@dataclass(eq=False)
class BatchJob:
    """A batch on its way through a worker."""

    batch: Batch
    calls: Sequence[Answerable]
    worker: Worker
    clock: Clock
    done: "Done"
    runner: ModelRunner
    max_reruns: int
    results: list[Any] = field(default_factory=list, init=False)  # an Exception: an item's error
    ran_s: float = field(default=0.0, init=False)
    model_s: float | None = field(default=None, init=False)  # its one run; None: several
    work_s: float = field(default=0.0, init=False)  # the least time that its rows can take
    active_at: float = field(default=0.0, init=False)  # of a stream: its latest step
    finished_at: float = field(default=0.0, init=False)
    reruns: int = field(default=0, init=False)
    lost: WorkerLost | None = field(default=None, init=False)  # no call of it has been answered
    is_abandoned: bool = field(default=False, init=False)  # it ran too long: its callers know
    ran_out_of_memory: bool = field(default=False, init=False)
    misfit: Misfit | None = field(default=None, init=False)  # too many rows; not one item's fault
    cancel: BatchCancel | None = field(default=None, init=False)  # if its model takes one
    owner: object = field(default=None, init=False)  # the same for all batches of a model
    chain: Chain = field(default=(), init=False)  # the batches that wait for this one

    def __post_init__(self) -> None:
        self.active_at = self.batch.fired_at
        if not self.runner.may_rerun:
            self.max_reruns = 0

    async def work(self) -> None:
        started, task = self.clock(), running_task()
        run = enter(self.chain, self.owner, self.runner.name)
        try:
            await self._call_model(started, task)
        except BaseException as error:
            if is_stopped(error, task):
                raise
            # Ours, or an exception that cannot be read. It fails every call of the batch.
            _log.exception("a batch failed while its errors were examined")
            failure = f"the batch failed: {name_of(error)}: {text_of(error)}"
            self.results = [ModelFailed(failure) for _ in self.calls]
        finally:  # even if cancelled with its loop: answer the calls that have results
            leave(run)
            self.ran_s = self.clock() - started
            self.done(self)

    async def _call_model(self, started: float, task: "asyncio.Task[Any] | None") -> None:
        try:
            await self._run(started)
        except BaseException as error:
            if is_stopped(error, task):
                raise
            reruns = self._reruns(error)
            self.results = reruns.results  # also of items that are never run again
            self._failed(reruns, error)
            while (call := reruns.next_call()) is not None:
                try:
                    reruns.succeeded(await self._rerun(call, reruns.group))
                except BaseException as again:
                    if is_stopped(again, task):
                        raise
                    reruns.failed(again)
                    self._failed(reruns, again)
            self.reruns = reruns.count
            self.lost = reruns.lost
            self.ran_out_of_memory = reruns.ran_out_of_memory
            self.misfit = reruns.misfit

    async def _run(self, started: float) -> None:
        """Call the model for the whole batch. If it raises, items run again to find the culprit."""
        raise NotImplementedError

    async def _rerun(self, call: "tuple[list[Any], int]", group: Sequence[int]) -> list[Any]:
        """The results of these items of the batch. `call`: their values, and the padded rows."""
        raise NotImplementedError

    def _reruns(self, error: BaseException) -> Reruns:
        raise NotImplementedError

    def _failed(self, reruns: Reruns, error: BaseException) -> None:
        """The items of `reruns.group` ran together, and the model raised."""


Done: TypeAlias = Callable[[BatchJob], None]


@dataclass(eq=False)
class PredictJob(BatchJob):
    """A job with one answer per item."""

    batch_sizes: Sequence[int] = ()

    async def _run(self, started: float) -> None:
        values = [call.value for call in self.calls]
        self.results = await self.runner.predict(values, self.batch.padded_rows)
        self.model_s = self.clock() - started
        dependence = self.runner.row_dependence
        if dependence is not None and dependence.is_watched and self.max_reruns and len(values) > 1:
            await self._look_at(dependence, values)

    async def _rerun(self, call: tuple[list[Any], int], group: Sequence[int]) -> list[Any]:
        return await self.runner.predict(*call)

    async def _look_at(self, dependence: RowDependence, values: list[Any]) -> None:
        """Run one request alone: if its answer changes, the rows of this model depend on each
        other, and every request runs alone from now on."""
        place = dependence.look(len(values))
        try:
            alone = await self._alone(values[place])
            differ = dependence.differing(alone, self.results[place])
            if not differ or dependence.differing(alone, await self._alone(values[place])):
                return  # the same answer, or a model that never repeats its answers
        except WorkerLost:
            raise
        except Exception:  # noqa: BLE001  if it fails alone, nothing is known about its neighbours
            return
        dependence.revoke(differ)
        self.results = await self.runner.predict(values, self.batch.padded_rows)

    async def _alone(self, value: Any) -> Any:
        rows = self.runner.shape(value)[0]
        padded = next((size for size in self.batch_sizes if size >= rows), rows)
        [answer] = await self.runner.predict([value], padded)
        return answer

    def _reruns(self, error: BaseException) -> Reruns:
        return Reruns(
            self.batch,
            self.calls,
            self.runner.name,
            error,
            self.max_reruns,
            runner=self.runner,
            batch_sizes=self.batch_sizes,
        )


@dataclass(eq=False)
class StreamJob(BatchJob):
    """A job with many answers per item: each step of the model is delivered at once."""

    stream: Callable[[list[Any]], Iterator[Any] | AsyncIterator[Any]]

    async def _run(self, started: float) -> None:
        await self._pass_steps(range(len(self.calls)))
        self.results = [None for _ in self.calls]

    async def _rerun(self, call: tuple[list[Any], int], group: Sequence[int]) -> list[Any]:
        await self._pass_steps(group)
        return [None for _ in group]

    def _reruns(self, error: BaseException) -> Reruns:
        return Reruns(self.batch, self.calls, self.runner.name, error, self.max_reruns)

    def _failed(self, reruns: Reruns, error: BaseException) -> None:
        """Streams that have begun end here: their readers must not see a chunk twice."""
        begun = [call for call in self._streams(reruns.group) if call.has_begun]
        if not begun:
            return
        errors: list[HeadwayError]
        if reruns.lost is None:
            is_alone = len(reruns.group) == 1
            errors = own_errors(self.runner.name, error, len(begun), is_alone=is_alone)
        else:
            why = f"{self.runner.name}: the stream broke off: its worker {reruns.lost.reason}"
            errors = [ModelFailed(why) for _ in begun]
        for call, each in zip(begun, errors, strict=True):
            call.fail(each)

    def _streams(self, group: Sequence[int]) -> list[StreamCall]:
        """The streams of these items that are still being read."""
        calls = [self.calls[index] for index in group]
        return [call for call in calls if isinstance(call, StreamCall) and not call.is_done]

    async def _pass_steps(self, group: Sequence[int]) -> None:
        readers = self._streams(group)
        if not readers:
            return
        steps = self.stream(self.runner.given([call.value for call in readers]))
        queue = StepQueue(readers)
        try:
            await self._pass_all(steps, queue)
        finally:
            await _close(steps)

    async def _pass_all(self, steps: Iterator[Any] | AsyncIterator[Any], queue: StepQueue) -> None:
        if isinstance(steps, AsyncIterator):
            async for step in steps:
                if not self._pass_on(step, queue):
                    return
            return
        is_beside_readers = asyncio._get_running_loop() is not None
        for step in steps:
            if not self._pass_on(step, queue):
                return
            if is_beside_readers:
                await asyncio.sleep(0)

    def _pass_on(self, step: Any, queue: StepQueue) -> bool:
        """False when no reader is left."""
        self.active_at = self.clock()
        entries = list(step)
        if len(entries) != len(queue.calls):
            raise BrokenContract(
                f"{self.runner.name} yielded {len(entries)} entries for {len(queue.calls)} items"
            )
        # Also of chunks from another process: mostly these are texts, which cost nothing.
        queue.deliver(own_all(entries))
        return not all(call.is_done for call in queue.calls)


async def _close(steps: Iterator[Any] | AsyncIterator[Any]) -> None:
    if isinstance(steps, AsyncIterator):
        if (close := getattr(steps, "aclose", None)) is not None:
            await close()
    elif (close := getattr(steps, "close", None)) is not None:
        close()
