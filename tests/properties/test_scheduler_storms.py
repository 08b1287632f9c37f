"""Long storms drawn from seeds: whatever comes, leaves or is lost, a scheduler never raises.

An exception out of a scheduler ends its server. The machine next door explores short histories
closely; what is learned (returns, rehearsals, costs, speeds of workers) takes thousands of events,
and a full queue, to go wrong.
"""

import math
import random
from contextlib import suppress

import pytest

from headway.core.batching.scheduler import Scheduler
from headway.core.costs import CostTable
from headway.core.faults.fitting import Misfit
from headway.core.items import Batch, Item, Priority, Refuse, Run
from headway.core.policy import Compose, Firing, Order, Policy
from headway.errors import ConfigError, HeadwayError

ROWS = [(1,), (1, 2, 4, 8, 16, 32, 64), (1, 4), (2, 16), (3,), tuple(range(1, 40))]
STEPS = 400


class Storm:
    """One world: a policy, a table, a clock that has run for a second or for years."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = random.Random(seed)
        self.is_sized = draw.random() < 0.5
        self.sizes = draw.choice([None, (8,), (4, 16, 64)]) if self.is_sized else None
        self.policy = self._policy()
        self.scheduler = Scheduler(self.policy, self._table() if draw.random() < 0.7 else None)
        self.now = draw.choice([0.0, 100.0, 25_000.0, 1e7, 1e9])
        self.rate_rps = 10 ** draw.uniform(1, 5)
        self.batch_s = 10 ** draw.uniform(-7, -2)
        self.is_mixed = draw.random() < 0.6
        self.workers = self.policy.workers
        self.running: list[Batch] = []
        self.queued: dict[int, Item] = {}
        self.last_id = 0

    def _policy(self) -> Policy:
        draw = self.draw
        while True:
            firing = draw.choice([Firing.AUTO, Firing.AUTO, Firing.AUTO, *Firing])
            most = draw.choice([1, 2, 3, 6, 8, 12, 32, 64])
            waits = {Firing.AUTO: draw.choice([None, 0.0, 0.002]), Firing.WINDOW: 0.005}
            try:
                return Policy(
                    firing=firing,
                    max_wait_s=waits.get(firing),
                    max_batch_size=most,
                    batch_sizes=draw.choice([(), (), (), tuple(sorted({1, -(-most // 2), most}))]),
                    max_batch_cost=draw.choice([None, None, 40, 2000]),
                    max_queue=draw.choice([8, 64, 1000]),
                    slo_s=draw.choice([None, None, 0.001, 0.02, 0.5]),
                    order=draw.choice(list(Order)),
                    compose=draw.choice(list(Compose)),
                    workers=draw.choice([1, 1, 2, 3, 8]),
                    ageing_s=draw.choice([0.01, 1.0]),
                )
            except ConfigError:  # these do not go together
                continue

    def _table(self) -> CostTable:
        draw, rows = self.draw, self.draw.choice(ROWS)
        power, base_s, noise = draw.uniform(0, 1.6), 10 ** draw.uniform(-9, -1), draw.choice([0, 1])

        def seconds(count: int, size: int) -> float:
            plain_s = (base_s + base_s * draw.random() * count**power) * (1 + size / 64)
            return max(1e-9, plain_s * draw.lognormvariate(0, noise))

        times = tuple(tuple(seconds(each, size) for size in self.sizes or (0,)) for each in rows)
        errors = tuple(draw.uniform(-0.999, 5) for _ in range(draw.choice([0, 1, 20])))
        return CostTable(rows=rows, sizes=self.sizes, seconds=times, errors=errors)

    # ---- what happens

    def run(self) -> None:
        draw = self.draw
        happenings = [self._arrive, self._finish, self._lose]
        happenings += [self._cancel, self._resize, self._learn]
        for _ in range(STEPS):
            self.now += draw.choice([0.0, 1e-9, draw.expovariate(self.rate_rps)])
            draw.choices(happenings, [55, 30, 1, 5, 3, 0.2])[0]()
            if draw.random() < 0.8:
                self._ask()
        self._drain()

    def _arrive(self) -> None:
        for _ in range(self.draw.randrange(6)):
            whole = self._item()
            limit = self.scheduler.part_rows(whole.size)
            ids = iter(range(self.last_id + 1, self.last_id + 100))
            for start in range(0, whole.rows, limit):
                part = whole if not start else whole._replace(id=next(ids))
                part = part._replace(rows=min(limit, whole.rows - start))
                with suppress(HeadwayError):
                    self.scheduler.submit(part)
                    self.queued[part.id] = part
                    self.last_id = max(self.last_id, part.id)

    def _item(self) -> Item:
        draw, now = self.draw, self.now
        self.last_id += 1
        if not self.is_mixed:
            return Item(self.last_id, now)
        return Item(
            self.last_id,
            now - draw.choice([0, 0, 1e-4]),
            draw.choice([1, 1, 3, 9]),
            draw.choice([0, 1, 7, 64, 300]) if self.is_sized else 0,
            draw.choice(list(Priority)),
            draw.choice(["", "a", "b"]),
            draw.choice([math.inf, math.inf, now, now + 0.003, now + 2]),
            draw.choice([None, None, "x"]),
        )

    def _finish(self) -> None:
        if not self.running:
            return
        draw, batch = self.draw, self.running.pop(self.draw.randrange(len(self.running)))
        if draw.random() < 0.02:
            self.scheduler.does_not_fit(Misfit(batch.padded_rows, batch.size))
        ran_s = self.batch_s * draw.lognormvariate(0, 1) * draw.choice([1, 1, 1, 1e-3, 1e3])
        self.scheduler.finish(batch, self.now, ran_s=None if draw.random() < 0.05 else ran_s)

    def _lose(self) -> None:
        if not self.running:
            return
        draw, batch = self.draw, self.running.pop()
        self._resize()
        waiting = [item for item in batch.items if draw.random() < 0.8]
        how = {"max_losses": draw.choice([0, 1, 5]), "out_of_memory": draw.random() < 0.3}
        self.scheduler.lost(batch, waiting, **how)  # type: ignore[arg-type]
        self.queued.update((item.id, item) for item in waiting)

    def _cancel(self) -> None:
        if self.queued:
            item_id = self.draw.choice(list(self.queued))
            if self.scheduler.cancel(item_id):
                del self.queued[item_id]

    def _resize(self) -> None:
        self.workers = max(len(self.running), self.draw.randrange(self.policy.workers + 1))
        self.scheduler.set_workers(range(self.workers))

    def _learn(self) -> None:
        self.scheduler.learn(self._table())

    # ---- what is decided

    def _ask(self) -> float:
        for _ in range(10_000):
            action = self.scheduler.next_action(self.now)
            if isinstance(action, Run):
                self.running.append(action.batch)
                for item in action.batch.items:
                    del self.queued[item.id]
                assert len(self.running) <= max(self.workers, 1)
            elif isinstance(action, Refuse):
                for refusal in action.refusals:
                    del self.queued[refusal.item.id]
            else:
                assert not math.isnan(action.until)
                return action.until
        raise AssertionError("it never says wait")

    def _drain(self) -> None:
        self.workers = self.policy.workers
        self.scheduler.set_workers(self.workers)
        self.scheduler.drain()
        self._ask()
        while self.running:
            self.scheduler.finish(self.running.pop(), self.now, ran_s=self.batch_s)
            self._ask()
        assert self.scheduler.is_idle
        assert self.scheduler.queued_rows == 0
        assert not self.queued


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_no_storm_breaks_a_scheduler(first: int) -> None:
    for seed in range(first, first + 20):
        Storm(seed).run()
