"""The parts of one batcher, wired together; how they open, close, and start over after a fork."""

import asyncio
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headway.core.batching.scheduler import Scheduler
from headway.core.lifecycle.placement import place, process_setting
from headway.model import Model, TensorModel
from headway.runtime.batching.calibration import Calibration
from headway.runtime.batching.decider import BatchDecider
from headway.runtime.batching.entrance import Entrance, Followers
from headway.runtime.batching.making import ModelJobs
from headway.runtime.batching.options import BatcherOptions
from headway.runtime.batching.watchdog import BatchWatchdog
from headway.runtime.calling.callbacks import Callbacks
from headway.runtime.calling.choosing import check_callable, runner_for
from headway.runtime.calling.inputs import InputReader
from headway.runtime.calling.threads import run_in_thread
from headway.runtime.driving.event_loop import EventLoop, FloatingLoop
from headway.runtime.events import Observers
from headway.runtime.forking import left_behind
from headway.runtime.workers import HAS_PROCESSES

if TYPE_CHECKING:
    from headway.runtime.workers.process.team import ProcessTeam


class BatcherParts:
    """Parts that last, and (see `_wire`) parts that a forked process has to make again."""

    def __init__(
        self,
        target: Any,
        options: BatcherOptions,
        *,
        is_floating: bool = False,
        make: Callable[[], Any] | None = None,
    ) -> None:
        self._model = model = target() if isinstance(target, type) else target
        self._options = options
        runner = runner_for(model, options.name)
        self.name = runner.name
        self.callbacks = Callbacks(
            model,
            self.name,
            max_waiting=options.max_queue,
            prepare=options.prepare,
            size=options.size,
            limit_s=options.execute_timeout_s,
        )
        self.inputs = InputReader(model, runner, self.callbacks)
        if options.max_batch_cost is not None:
            self.inputs.check_sizes()
        policy = options.policy_for(model)
        self.placement = place(
            self.name,
            options.worker,
            is_async=runner.is_async,
            workers=options.workers,
            is_python=False,  # processes only if asked for: a closure cannot run in one
            needs_process=process_setting(options.worker_memory_mb, options.pin),
            has_processes=HAS_PROCESSES,
        )
        self.observers = Observers(options.observers)
        self.followers = Followers()
        self._make_team = self._team_maker(target, make)
        self.maker = ModelJobs(
            model,
            runner,
            self.inputs.parameters,
            policy,
            team=self._make_team(),
            is_inline=self.placement.kind == "inline",
            max_reruns=options.max_reruns,
        )
        self._watchdog: BatchWatchdog | None = None
        self._wire(is_floating=is_floating)

    def _team_maker(
        self, target: Any, make: Callable[[], Any] | None
    ) -> "Callable[[], ProcessTeam | None]":
        if self.placement.kind != "process":
            return lambda: None
        from headway.runtime.workers.process.options import ProcessOptions
        from headway.runtime.workers.process.team import ProcessTeam

        options = self._options
        return functools.partial(
            ProcessTeam,
            self.name,
            target,
            make,
            workers=options.workers,
            options=ProcessOptions.of(options),
        )

    def _wire(self, *, is_floating: bool) -> None:
        maker, limit_s = self.maker, self._options.execute_timeout_s
        self.decider = BatchDecider(
            self.name,
            Scheduler(maker.policy, self._options.costs),
            maker,
            self.observers,
            FloatingLoop(f"headway-{self.name}") if is_floating else None,
        )
        self.shell = self.decider.shell
        self.entrance = Entrance(self.decider, self.inputs, maker, self.followers)
        self.warm_up = Calibration(self.decider, maker, self.inputs)
        if maker.team is not None:
            maker.team.attach(self.decider.losses)
        elif limit_s is not None:
            self._watchdog = BatchWatchdog(self.decider, limit_s=limit_s)
            self.observers.add(self._watchdog)

    def after_fork(self) -> None:
        """Make new parts in the child process, which has no threads or workers of the parent."""
        old = self.shell
        if self._watchdog is not None:
            self.observers.remove(self._watchdog)
        left_behind.append((self.decider, self.maker.team, self.callbacks.start_over()))
        self.maker.team = self._make_team()
        self._wire(is_floating=old.floating is not None)
        self.shell.after_fork(old)

    # ---- life

    async def open(self) -> None:
        shell = self.shell
        shell.begin_opening()
        event_loop = EventLoop(asyncio.get_running_loop())
        try:
            await self._load(event_loop)
        except BaseException:
            shell.fail_opening()
            raise
        try:
            shell.finish_opening(event_loop)
        except BaseException:
            shell.fail_opening()
            await self._wait_stopped()
            raise
        try:
            await self.warm_up.try_out(self._options.dependent_rows)
        except BaseException:
            await self.close(0.0)
            raise

    async def _load(self, event_loop: EventLoop) -> None:
        """Load the model where it runs; `setup` runs here, too."""
        model, team = self._model, None if event_loop.is_virtual else self.maker.team
        if isinstance(model, Model | TensorModel):
            await run_in_thread(_set_up_and_load(model) if team is None else model.setup)
        else:
            check_callable(model, self.name)
        if team is not None:
            await team.wait_started()

    async def close(self, drain_s: float | None) -> None:
        try:
            await self.shell.close(drain_s)
        finally:
            self.callbacks.stop()
            await self._wait_stopped()

    async def _wait_stopped(self) -> None:
        if self.maker.team is not None:
            await self.maker.team.wait_stopped()


def _set_up_and_load(model: "Model[Any, Any] | TensorModel") -> Callable[[], None]:
    def both() -> None:
        model.setup()
        model.load()

    return both
