"""What a worker does with one batch: call the model, find the culprit if it raises, measure.

A job never raises: whatever happens is its result. It runs on a thread (`run`) or in an event
loop (`run_async`), and tells its batcher when it is done.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from headway.core.faults.fitting import Misfit
from headway.core.items import Batch
from headway.errors import ModelFailed
from headway.runtime.calling.faults import WorkerLost, is_stopped, name_of, text_of
from headway.runtime.calling.nesting import Chain, enter, leave
from headway.runtime.calling.owning import own_all
from headway.runtime.calling.runner import BrokenContract, Runner
from headway.runtime.driving.calls import Answerable
from headway.runtime.driving.step_queue import StepQueue
from headway.runtime.driving.streams import StreamCall
from headway.runtime.jobs.cancelling import BatchCancel
from headway.runtime.jobs.rerunning import Reruns

_log = logging.getLogger(__name__)
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

    cancel: BatchCancel | None = None  # where its model wants to know that nobody waits any more
    lost: WorkerLost | None = None  # its worker was lost: no call of it has been answered
    ran_out_of_memory = False
    misfit: Misfit | None = None  # where no item of it is to blame for that
    max_reruns = 0
    owner: object = None  # for whom it runs: the same for all batches of a model
    chain: Chain = ()  # the batches that wait for this one

    def __init__(
        self,
        batch: Batch,
        calls: Sequence[Answerable],
        worker: Worker,
        clock: Clock,
        done: "Done",
        name: str,
    ) -> None:
        self._name = name
        self.batch = batch
        self.calls = calls
        self.worker = worker
        self.active_at = batch.fired_at  # of a stream: its latest step
        self.finished_at = 0.0
        self.ran_s = 0.0
        self.reruns = 0
        self.model_s: float | None = None  # what the model took, where that tells its speed
        self.results: list[Any] = []  # one per item; an Exception is that item's error
        self._clock = clock
        self._done = done

    def run(self) -> None:
        started, run = self._clock(), enter(self.chain, self.owner, self._name)
        try:
            self._run(started)
        except BaseException as error:  # noqa: BLE001  ours, or an exception that cannot be read
            _log.exception("a batch failed while its errors were examined")
            failure = f"the batch failed: {name_of(error)}: {text_of(error)}"
            self.results = [ModelFailed(failure) for _ in self.calls]
        finally:
            leave(run)
            self.ran_s = self._clock() - started
            self._done(self)

    def _run(self, started: float) -> None:
        """In a worker's thread. What it raises fails every call of the batch."""
        raise NotImplementedError

    async def run_async(self) -> None:
        raise NotImplementedError

    def _start_reruns(self, reruns: Reruns) -> Reruns:
        self.results = reruns.results  # also of items whose turn never comes
        return reruns

    def _adopt(self, reruns: Reruns) -> None:
        self.reruns = reruns.count
        self.lost = reruns.lost
        self.ran_out_of_memory = reruns.ran_out_of_memory
        self.misfit = reruns.misfit


Done: TypeAlias = Callable[[BatchJob], None]


class PredictJob(BatchJob):
    """One answer per item."""

    def __init__(
        self,
        batch: Batch,
        calls: Sequence[Answerable],
        worker: Worker,
        clock: Clock,
        done: "Done",
        runner: Runner,
        max_reruns: int,
        batch_sizes: Sequence[int] = (),
    ) -> None:
        super().__init__(batch, calls, worker, clock, done, runner.name)
        self._runner = runner
        self._batch_sizes = batch_sizes
        self.max_reruns = max_reruns if runner.may_rerun else 0

    def _run(self, started: float) -> None:
        values = [call.value for call in self.calls]
        try:
            self.results = self._runner.predict(values, self.batch.padded_rows)
            self.model_s = self._clock() - started
            if self.max_reruns and (row := self._runner.to_compare(values)) is not None:
                self._compare(values, *row)
        except BaseException as error:  # noqa: BLE001  the model is user code; its thread must survive
            reruns = self._reruns(error)
            while (call := reruns.next_call()) is not None:
                try:
                    reruns.succeeded(self._runner.predict(*call))
                except BaseException as again:  # noqa: BLE001  as above
                    reruns.failed(again)
            self._adopt(reruns)

    async def run_async(self) -> None:
        started, task = self._clock(), asyncio.current_task()
        run = enter(self.chain, self.owner, self._name)
        values = [call.value for call in self.calls]
        try:
            self.results = await self._runner.predict_async(values, self.batch.padded_rows)
            self.model_s = self._clock() - started
            if self.max_reruns and (row := self._runner.to_compare(values)) is not None:
                await self._compare_async(values, *row)
        except BaseException as error:
            if is_stopped(error, task):
                raise
            reruns = self._reruns(error)
            while (call := reruns.next_call()) is not None:
                try:
                    reruns.succeeded(await self._runner.predict_async(*call))
                except BaseException as again:
                    if is_stopped(again, task):
                        raise
                    reruns.failed(again)
            self._adopt(reruns)
        finally:  # cancelled with its loop: answer what there is
            leave(run)
            self.ran_s = self._clock() - started
            self._done(self)

    def _compare(self, values: list[Any], place: int, row: Any) -> None:
        """Run this one alone: does company change its answer? Then what was shared no longer is."""
        try:
            [alone] = self._runner.predict([row], self._rows_alone(row))
            differ = self._runner.differing(alone, self.results[place])
            if not differ:
                return
            [again] = self._runner.predict([row], self._rows_alone(row))
        except WorkerLost:
            raise
        except Exception:  # noqa: BLE001  alone it fails: that tells nothing of its neighbours
            return
        if not self._runner.differing(alone, again):  # else it never answers twice alike
            self._runner.revoke(differ)
            self.results = self._runner.predict(values, self.batch.padded_rows)

    async def _compare_async(self, values: list[Any], place: int, row: Any) -> None:
        try:
            [alone] = await self._runner.predict_async([row], self._rows_alone(row))
            differ = self._runner.differing(alone, self.results[place])
            if not differ:
                return
            [again] = await self._runner.predict_async([row], self._rows_alone(row))
        except Exception:  # noqa: BLE001  as above
            return
        if not self._runner.differing(alone, again):
            self._runner.revoke(differ)
            self.results = await self._runner.predict_async(values, self.batch.padded_rows)

    def _rows_alone(self, value: Any) -> int:
        rows = self._runner.shape(value)[0]
        return next((size for size in self._batch_sizes if size >= rows), rows)

    def _reruns(self, error: BaseException) -> Reruns:
        return self._start_reruns(
            Reruns(
                self.batch,
                self.calls,
                self._runner.name,
                error,
                self.max_reruns,
                runner=self._runner,
                batch_sizes=self._batch_sizes,
            )
        )


class StreamJob(BatchJob):
    """Many answers per item: each step of the model is passed on as it comes."""

    def __init__(
        self,
        batch: Batch,
        calls: Sequence[StreamCall],
        worker: Worker,
        clock: Clock,
        done: "Done",
        stream: Callable[[list[Any]], Iterator[Any] | AsyncIterator[Any]],
        runner: Runner,
        max_reruns: int,
    ) -> None:
        super().__init__(batch, calls, worker, clock, done, runner.name)
        self.max_reruns = max_reruns if runner.may_rerun else 0
        self._streams = calls
        self._stream = stream
        self._runner = runner

    def _run(self, started: float) -> None:
        try:
            self._pass_steps(self._readers(self._streams))
            self.results = [None for _ in self.calls]
        except BaseException as error:  # noqa: BLE001  the model is user code; its thread must survive
            reruns = self._reruns(error)
            while reruns.next_call() is not None:
                try:
                    self._pass_steps(self._readers(self._again(reruns)))
                    reruns.succeeded([None for _ in reruns.group])
                except BaseException as again:  # noqa: BLE001  as above
                    reruns.failed(again)
            self._adopt(reruns)

    async def run_async(self) -> None:
        started, task = self._clock(), asyncio.current_task()
        run = enter(self.chain, self.owner, self._name)
        try:
            await self._pass_steps_async(self._readers(self._streams))
            self.results = [None for _ in self.calls]
        except BaseException as error:
            if is_stopped(error, task):
                raise
            reruns = self._reruns(error)
            while reruns.next_call() is not None:
                try:
                    await self._pass_steps_async(self._readers(self._again(reruns)))
                    reruns.succeeded([None for _ in reruns.group])
                except BaseException as again:
                    if is_stopped(again, task):
                        raise
                    reruns.failed(again)
            self._adopt(reruns)
        finally:  # cancelled with its loop: answer what there is
            leave(run)
            self.ran_s = self._clock() - started
            self._done(self)

    def _reruns(self, error: BaseException) -> Reruns:
        return self._start_reruns(
            Reruns(self.batch, self.calls, self._name, error, self.max_reruns)
        )

    def _again(self, reruns: Reruns) -> list[StreamCall]:
        return [self._streams[index] for index in reruns.group]

    def _readers(self, calls: Sequence[StreamCall]) -> list[StreamCall]:
        """The streams still read. Chunks that a reader has seen are not sent again."""
        for call in calls:
            if not call.is_done:
                call.start(may_rerun=self.max_reruns > 0)
        return [call for call in calls if not call.is_done]

    def _pass_steps(self, readers: list[StreamCall]) -> None:
        if not readers:
            return
        steps = self._stream(self._runner.given([call.value for call in readers]))
        assert isinstance(steps, Iterator), "an async stream needs an event loop"
        queue = StepQueue(readers)
        try:
            for step in steps:
                if not self._pass_on(step, queue):
                    break
        finally:
            queue.put_waiting()
            _close(steps)

    async def _pass_steps_async(self, readers: list[StreamCall]) -> None:
        if not readers:
            return
        steps = self._stream(self._runner.given([call.value for call in readers]))
        queue = StepQueue(readers)
        if not isinstance(steps, AsyncIterator):
            await self._pass_steps_inline(steps, queue)
            return
        try:
            async for step in steps:
                if not self._pass_on(step, queue):
                    break
        finally:
            queue.put_waiting()
            close = getattr(steps, "aclose", None)
            if close is not None:
                await close()

    async def _pass_steps_inline(self, steps: Iterator[Any], queue: StepQueue) -> None:
        try:
            for step in steps:
                if not self._pass_on(step, queue):
                    break
                await asyncio.sleep(0)  # the readers live in this loop
        finally:
            queue.put_waiting()
            _close(steps)

    def _pass_on(self, step: Any, queue: StepQueue) -> bool:
        """False when no reader is left."""
        self.active_at = self._clock()
        entries = list(step)
        if len(entries) != len(queue.calls):
            raise BrokenContract(
                f"{self._name} yielded {len(entries)} entries for {len(queue.calls)} items"
            )
        # What comes from another process, too: mostly it is a text.
        queue.deliver(own_all(entries))
        return not all(call.is_done for call in queue.calls)


def _close(steps: Iterator[Any]) -> None:
    close = getattr(steps, "close", None)
    if close is not None:
        close()
