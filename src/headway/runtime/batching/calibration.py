"""Before traffic: time the model on typical batches, find out which values may share a batch, limit
its size."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

from headway.core.batching.scheduler import Scheduler
from headway.core.costs import CostTable, probe_order
from headway.errors import ConfigError, NotReady
from headway.runtime.batching.decider import BatchDecider
from headway.runtime.batching.making import ModelJobs
from headway.runtime.calling.inputs import InputReader
from headway.runtime.calling.row_dependence import DependentRows
from headway.runtime.calling.runner import TensorRunner, WholeRunner
from headway.runtime.jobs.probing import ProbeWatcher, Trial, probe

_log = logging.getLogger(__name__)


class Calibration:
    def __init__(self, decider: BatchDecider, maker: ModelJobs, inputs: InputReader) -> None:
        self._decider = decider
        self._maker = maker
        self._inputs = inputs
        self._name = decider.name

    async def measure(
        self, samples: Sequence[Any], *, repeats: int, limit_s: float, watcher: ProbeWatcher | None
    ) -> CostTable:
        """Time the model. The scheduler uses the returned table from now on."""
        shell = self._decider.shell
        with shell.lock:
            event_loop = shell.choose_loop()
            if not self._decider.queue.scheduler.is_idle:
                raise NotReady(f"{self._name} is busy: warm up before traffic")
        sized: dict[int, Any] = {}
        for sample in samples:
            size, value = await self._inputs.sized(sample)
            sized.setdefault(size, value)
        if not sized:
            raise ConfigError("needs at least one typical value", field="samples")
        policy = self._maker.policy
        table = await probe(
            self._decider.start_probe,
            self._maker.runner,
            event_loop.clock,
            sized,
            rows=policy.batch_sizes
            or probe_order(policy.max_batch_size, coarse=list(sized) != [0]),
            repeats=repeats,
            limit_s=limit_s,
            watcher=watcher,
        )
        self._decider.learn(table)
        return table

    def limit_rows(self, rows: int) -> None:
        """Make no batch larger than this."""
        policy = self._maker.policy
        with self._decider.shell.lock:
            if not self._decider.queue.scheduler.is_idle:
                raise NotReady(f"{self._name} is busy: limit it before traffic")
            sizes = tuple(size for size in policy.batch_sizes if size <= rows)
            if policy.batch_sizes and not sizes:
                raise ConfigError(
                    f"none of {policy.batch_sizes} fits into memory", field="batch_sizes"
                )
            largest = sizes[-1] if sizes else min(rows, policy.max_batch_size)
            policy = dataclasses.replace(policy, max_batch_size=largest, batch_sizes=sizes)
            self._maker.policy = policy
            self._decider.adopt(Scheduler(policy))
        if isinstance(self._maker.runner, TensorRunner):
            dependence = self._maker.runner.row_dependence
            dependence.max_rows, dependence.row_counts = policy.max_batch_size, policy.batch_sizes

    async def try_out(self, dependent_rows: DependentRows) -> None:
        """Find out, before there are callers, whether the model's rows depend on each other, and
        whether it may be padded. Raises ConfigError."""
        runner, policy = self._maker.runner, self._maker.policy
        if not isinstance(runner, TensorRunner) or isinstance(runner, WholeRunner):
            return
        trial = Trial(
            self._decider.start_probe,
            runner,
            self._decider.shell.current_loop().clock,
            policy.batch_sizes,
            policy.max_batch_size,
        )
        is_tried = runner.may_rerun and dependent_rows != "batch" and policy.max_batch_size > 1
        if is_tried and await self._try_row_dependence(trial, runner, dependent_rows):
            return
        runner.varying.pad_sizes = policy.pad_sizes
        if runner.varying.candidates:
            await trial.padding()

    async def _try_row_dependence(
        self, trial: Trial, runner: TensorRunner, dependent_rows: DependentRows
    ) -> bool:
        """Find out whether the model's rows depend on each other."""
        policy, dependence = self._maker.policy, runner.row_dependence
        dependence.max_rows, dependence.row_counts = policy.max_batch_size, policy.batch_sizes
        dependence.revoked = self._tell_alone
        outputs = await trial.dependent_outputs() if runner.knows_inputs else None
        if outputs is None:
            dependence.watch()
            return False
        if outputs and dependent_rows == "refuse":
            raise ConfigError(f"{self._name}: {_dependent(outputs)}", field="dependent_rows")
        if outputs:
            dependence.revoke(outputs)
            with self._decider.shell.lock:
                policy = dataclasses.replace(policy, max_batch_size=1, batch_sizes=())
                self._maker.policy = policy
                self._decider.adopt(Scheduler(policy))
        return bool(outputs)

    def _tell_alone(self, outputs: Sequence[str]) -> None:
        """Log that requests run alone from now on. It may be called in a worker's thread."""
        _log.warning(
            "%s: %s. Each request runs alone from now on, its own rows in one call. "
            "dependent_rows = 'refuse' refuses such a model, 'batch' batches it all the same",
            self._name,
            _dependent(outputs),
        )


def _dependent(outputs: Sequence[str]) -> str:
    return f"its rows depend on each other: in a batch a row has another {', '.join(outputs)}"
