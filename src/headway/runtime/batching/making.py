"""Workers for one model, and jobs for them: a batch with its callers, its runner, its keywords."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headway.core.items import Batch
from headway.core.policy import Policy
from headway.model import CANCEL, Model, TensorModel, overrides
from headway.runtime.calling.callbacks import own_method
from headway.runtime.calling.nesting import chain_of
from headway.runtime.calling.parameters import BatchKey, Parameters
from headway.runtime.calling.runner import ModelRunner
from headway.runtime.driving.event_loop import EventLoop
from headway.runtime.jobs.cancel_token import BatchCancel, takes_cancel
from headway.runtime.jobs.jobs import BatchJob, Done, PredictJob, StreamJob, Worker
from headway.runtime.workers.inline import InlineWorker
from headway.runtime.workers.thread import ThreadWorker

if TYPE_CHECKING:
    from headway.runtime.workers.process.team import ProcessTeam


class ModelJobs:
    """`policy` and `team` may be replaced while nothing runs."""

    def __init__(
        self,
        model: Any,
        runner: ModelRunner,
        parameters: Parameters | None,
        policy: Policy,
        *,
        team: "ProcessTeam | None",
        is_inline: bool,
        max_reruns: int,
    ) -> None:
        self.policy = policy
        self.team = team
        self.runner = self._own_runner = runner  # the latter for batches in this process
        self._stream = self._own_stream = own_method(model, "stream")
        self._parameters = parameters
        self._cancellable = _cancellable(model)
        self._is_inline = is_inline
        self._max_reruns = max_reruns
        self.has_nested = False  # models have called this one

    @property
    def streams(self) -> bool:
        return self._own_stream is not None

    def make_workers(
        self, event_loop: EventLoop, current_loop: Callable[[], EventLoop]
    ) -> list[Worker]:
        if self.team is not None and not event_loop.is_virtual:
            from headway.runtime.workers.process import current_model

            self.runner = self._own_runner.elsewhere(current_model.predict)
            self._stream = current_model.stream
            return list(self.team.start())
        self.runner, self._stream = self._own_runner, self._own_stream
        count = range(self.policy.workers)
        if self.runner.is_async or event_loop.is_virtual or self._is_inline:
            return [InlineWorker(current_loop) for _ in count]
        return [ThreadWorker(f"headway-{self.runner.name}-{number}") for number in count]

    def make_job(
        self, batch: Batch, calls: list[Any], worker: Worker, event_loop: EventLoop, done: Done
    ) -> BatchJob:
        sharing = batch.items[0].partition
        streams = isinstance(sharing, BatchKey) and sharing.streams
        method = "stream" if streams else "predict"
        keywords, token = self._keywords(method, sharing), None
        if method in self._cancellable:
            keywords[CANCEL] = token = BatchCancel(batch, calls, event_loop.clock)
        about = (batch, calls, worker, event_loop.clock, done)
        job: BatchJob
        if streams:
            assert self._stream is not None
            stream = functools.partial(self._stream, **keywords)
            job = StreamJob(*about, self.runner, self._max_reruns, stream)
        else:
            runner = self.runner.with_keywords(keywords) if keywords else self.runner
            job = PredictJob(*about, runner, self._max_reruns, self.policy.batch_sizes)
        job.cancel, job.owner = token, self
        if self.has_nested:
            job.chain = chain_of(calls)
        return job

    def _keywords(self, method: str, sharing: object) -> dict[str, Any]:
        if self._parameters is None or not isinstance(sharing, BatchKey):
            return {}
        if sharing.parameters is None:
            return {}
        return self._parameters.keywords(method, sharing.parameters)

    def cut(self, value: Any, start: int, stop: int) -> Any:
        return self.runner.cut(value, start, stop)

    def join(self, results: list[Any]) -> Any:
        return self.runner.join(results)


def _cancellable(model: Any) -> frozenset[str]:
    """The methods that take a token."""
    if not isinstance(model, Model | TensorModel):
        return frozenset(["predict"] if takes_cancel(model) else [])
    written = [method for method in ("predict", "stream") if overrides(model, method)]
    return frozenset(each for each in written if takes_cancel(getattr(model, each)))
