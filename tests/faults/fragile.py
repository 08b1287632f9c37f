"""Workers that die like processes, on virtual time: killed, hung, out of memory, and back again."""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from headway import Batcher, Model
from headway.runtime.batching.decider import BatchDecider
from headway.runtime.calling.faults import WorkerLost
from headway.runtime.driving.event_loop import EventLoop
from headway.runtime.jobs.jobs import Job, Worker
from headway.runtime.workers.inline import InlineWorker

_running_on: contextvars.ContextVar["FragileWorker"] = contextvars.ContextVar("running_on")

Behave = Callable[["FragileWorker", list[Any]], Any]


class FragileWorker(InlineWorker):
    """One worker process: what it runs is lost with it, and it is back after `restart_s`."""

    def __init__(
        self,
        current_loop: Callable[[], EventLoop],
        decider: BatchDecider,
        *,
        restart_s: float,
        watchdog_s: float,
    ) -> None:
        super().__init__(current_loop)
        self.is_alive = True
        self.is_frozen = False
        self.deaths = 0
        self.values: list[Any] = []  # what it is running
        self._decider = decider
        self._restart_s = restart_s
        self._watchdog_s = watchdog_s
        self._busy: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._restart: asyncio.TimerHandle | None = None

    def start(self, job: Job) -> None:
        token = _running_on.set(self)
        try:
            super().start(job)
        finally:
            _running_on.reset(token)

    def stop(self) -> None:
        self._is_stopped = True
        if self._restart is not None:
            self._restart.cancel()
        super().stop()

    async def work(self, values: list[Any], seconds: float) -> None:
        """Take so long, unless the process dies before that."""
        if not self.is_alive:
            raise WorkerLost("it had died before it started")
        loop = asyncio.get_running_loop()
        self.values, self._busy = values, loop.create_future()
        timer = self._timer = loop.call_later(seconds, _settle, self._busy)
        if self.is_frozen:
            timer.cancel()
        watchdog = loop.call_later(self._watchdog_s, self.die, "killed: no answer")
        try:
            await self._busy
        finally:
            timer.cancel()
            watchdog.cancel()
            self.values, self._busy = [], None

    def die(self, reason: str = "killed by SIGKILL", *, out_of_memory: bool = False) -> None:
        if not self.is_alive or self._is_stopped:
            return
        self.is_alive = False
        self.deaths += 1
        if self._busy is not None and not self._busy.done():
            self._busy.set_exception(WorkerLost(reason, out_of_memory=out_of_memory))
        else:
            self._decider.losses.worker_left(self)
        loop = asyncio.get_running_loop()
        self._restart = loop.call_later(self._restart_s, self._back)

    def freeze(self) -> None:
        """SIGSTOP: it goes on no more, until somebody notices and kills it."""
        if not self.is_alive or self._is_stopped:
            return
        self.is_frozen = True
        if self._timer is not None:
            self._timer.cancel()
        asyncio.get_running_loop().call_later(self._watchdog_s, self._notice)

    def _notice(self) -> None:
        if self.is_frozen:
            self.die("killed: no heartbeat")

    def _back(self) -> None:
        self.is_alive = True
        self.is_frozen = False
        self._decider.losses.worker_back(self)


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class FragileModel(Model[Any, Any]):
    """Behaves as it is told, in the worker that runs it."""

    def __init__(self, behave: Behave, chunks: int = 3) -> None:
        self._behave = behave
        self._chunks = chunks

    async def predict(self, items: list[Any]) -> Sequence[Any]:  # type: ignore[override]
        results: Sequence[Any] = await self._behave(_running_on.get(), items)
        return results

    async def stream(self, items: list[Any]) -> AsyncIterator[Any]:  # type: ignore[override]
        for number in range(self._chunks):
            results = await self._behave(_running_on.get(), items)
            yield [(number, result) for result in results]


class FragileBatcher(Batcher[Any, Any]):
    def __init__(
        self, behave: Behave, *, restart_s: float = 0.05, watchdog_s: float = 1.0, **options: Any
    ) -> None:
        super().__init__(FragileModel(behave), name="fragile", **options)
        self._restart_s = restart_s
        self._watchdog_s = watchdog_s
        self._parts.maker.make_workers = self._make_workers  # type: ignore[method-assign]

    def _make_workers(
        self, event_loop: EventLoop, current_loop: Callable[[], EventLoop]
    ) -> list[Worker]:
        return [
            FragileWorker(
                current_loop,
                self._decider,
                restart_s=self._restart_s,
                watchdog_s=self._watchdog_s,
            )
            for _ in range(self.policy.workers)
        ]

    @property
    def decider(self) -> BatchDecider:
        return self._decider

    @property
    def fragile_workers(self) -> list[FragileWorker]:
        return [
            worker for worker in self._decider.pool.workers if isinstance(worker, FragileWorker)
        ]
