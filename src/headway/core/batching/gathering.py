"""In a closed loop: how many callers a batch waits for, and how many present callers share it.

A batch starts at the number of callers with the most answers per second (`returns`). If all callers
are here at once, because they think for the same time, they are served in parts: one part is served
while the others think. Callers that wait for each other come back together all the same, which only
a trial shows: if parts do not raise the throughput, they are given up for a while.
"""

from typing import NamedTuple

from headway.core.batching.arrivals import Arrivals
from headway.core.batching.returns import EQUAL, GAIN, Start, best_of, starts, together
from headway.core.costs import Costs
from headway.core.queueing.queue import Lane
from headway.core.queueing.running import Running

_LOOK_EVERY = 8  # batches between two computations of the start, after the first few
_SHORT_OF = 0.25  # a last part may be smaller than the others by this part of their size
_SETTLING = 2  # the first batches of a trial do not count: the parts are only forming
_TRIAL = 4  # batches after which it is checked whether parts have paid
_REST = 256  # batches until the next trial after a failed one; doubled after each failure


class Gathering:
    def __init__(self, costs: Costs, arrivals: Arrivals, running: Running, max_rows: int) -> None:
        self._costs = costs
        self._arrivals = arrivals
        self._running = running
        self._max_rows = max_rows
        self._start: Start | None = None
        self._key = -1, 0
        self._trial: _Trial | None = None
        self._rest_until = 0  # by the number of batches
        self._rest = _REST

    def start(self, lane: Lane) -> Start | None:
        """The best number of items to start a batch with; None: too little is known."""
        arrivals = self._arrivals
        batches = arrivals.batches
        callers = -(-arrivals.callers // self._running.workers)
        is_new = batches < _LOOK_EVERY or self._trial is not None
        turn = batches if is_new else batches // _LOOK_EVERY
        key = turn, callers
        if key != self._key:
            self._key = key
            self._start = self._best(callers, lane.mean_size, lane.rows / lane.items)
        return self._start

    def part_rows(self, lane: Lane) -> int:
        """How many of the lane's rows share a batch."""
        start = self.start(lane)
        if start is None or self._trial is None:
            return lane.rows
        return -(-lane.rows // max(1, int(lane.items / start.items + _SHORT_OF)))

    def _best(self, callers: int, size: int, item_rows: float) -> Start | None:
        """The start with the most answers per second. It may begin a trial of parts, or end one."""
        if self._trial is not None and self._is_too_early(self._trial, callers):
            return self._trial.parts
        best_rows = min(self._costs.best_rows(size), self._max_rows)
        wanted = min(callers, max(1, int(best_rows / item_rows)))
        seconds = self._costs.by_items(wanted, size, item_rows)
        away = self._arrivals.returns.away()  # how many callers are still away, by time
        most = len(seconds) - 1  # items of which the batch time is known
        if away is None or not most:
            return None
        all_ = together(away, callers, seconds, most)
        if self._trial is not None:
            if self._do_parts_pay(self._trial, callers, all_.rate_rps):
                return self._trial.parts
            self._trial, self._arrivals.served_in_parts = None, 0
        found = starts(away, callers, seconds, most)
        if self._running.workers > 1 or callers > most or not away.is_in_step(seconds[1]):
            best = best_of(found, callers)
            at_once = found[0]
            return best if best.rate_rps > GAIN * at_once.rate_rps else at_once
        parts = [each for each in found if 2.0 * each.items <= most]
        if most < wanted or not parts or self._arrivals.batches < self._rest_until:
            return all_
        best = best_of(parts, callers)
        if best.rate_rps <= EQUAL * all_.rate_rps:
            return all_
        self._trial = _Trial(
            best,
            all_.rate_rps,
            self._arrivals.batches + _SETTLING,
            self._arrivals.last_completion,
            self._arrivals.answered,
        )
        self._arrivals.served_in_parts = callers
        return best

    def _is_too_early(self, trial: "_Trial", callers: int) -> bool:
        """Must more batches end, before the trial shows whether parts pay?"""
        arrivals = self._arrivals
        if arrivals.batches <= trial.batches:  # the first parts are still on their way
            at, answered = arrivals.last_completion, arrivals.answered
            self._trial = trial._replace(at=at, answered=answered)
        return arrivals.batches < trial.batches + _TRIAL and callers == arrivals.served_in_parts

    def _do_parts_pay(self, trial: "_Trial", callers: int, together_rps: float) -> bool:
        """Is the throughput at least as high as if all callers shared one batch?

        `together_rps`: as callers come back now. If they wait for each other, they come back later
        in parts; if the trial began with the first requests, they came back later then.
        """
        arrivals = self._arrivals
        if callers != arrivals.served_in_parts:
            return False
        batches, at, answered = arrivals.batches, arrivals.last_completion, arrivals.answered
        most_rps = max(trial.together_rps, together_rps)
        if answered - trial.answered >= most_rps * (at - trial.at):
            self._trial = trial._replace(batches=batches, at=at, answered=answered)
            return True
        self._rest_until = batches + self._rest
        self._rest *= 2
        return False


class _Trial(NamedTuple):
    """A trial of serving callers in parts that come back all at once."""

    parts: Start
    together_rps: float  # answers per second with one batch for all callers
    batches: int  # measured from here: soon after the trial began, or when it last paid
    at: float
    answered: int  # items answered until `at`
