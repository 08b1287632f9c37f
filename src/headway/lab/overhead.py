"""What a live server adds to the times of a profile: to each batch, and to each answer after it.

It is told by two looks at the server: one caller alone, and the load that is to be simulated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headway.core.costs import CostTable
from headway.lab.replay import AnswerDelay
from headway.lab.simulate import Scenario
from headway.lab.what_if import LEAST_ITEMS, model_of, read_traffic
from headway.lab.workload import Times

# One slow batch of the hundred that are seen is chance; drawn once in a hundred, it would
# make the simulated p99.
_COMMON = 0.97
_TELLING = 2.0  # the mean place of items in batches, for the part of each to show


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """What clients saw, and the batches that the server ran meanwhile (`/admin/explain`)."""

    latencies_s: Times
    batches: Sequence[Mapping[str, Any]]

    @property
    def items(self) -> int:
        return sum(len(each["items"]) for each in self.batches)

    def delays_s(self) -> tuple[float, float]:
        """What clients waited beyond the end of their batch, in the median; and the mean place of
        an item in its batch."""
        inside = [
            batch["finished_at"] - item["arrived_at"]
            for batch in self.batches
            for item in batch["items"]
        ]
        rows = np.array([batch["rows"] for batch in self.batches], float)
        place = float((rows * (rows - 1) / 2).sum() / rows.sum())
        return max(0.0, float(np.median(self.latencies_s) - np.median(inside))), place


@dataclass(frozen=True, slots=True, eq=False)
class LiveCosts:
    table: CostTable  # of the profile, plus what a batch takes longer on a server
    factors: Times  # how batches strayed from that
    delay: AnswerDelay

    def applied(self, scenario: Scenario) -> Scenario:
        """The scenario, built with this table, as a server would run it."""
        drawn = np.random.default_rng(0).choice(self.factors, scenario.requests)
        return replace(scenario, factors=drawn, delay=self.delay)


def live_costs(table: CostTable, alone: Look, loaded: Look) -> LiveCosts | None:
    """None: too little was seen, or the profile is not that of these items."""
    if any(look.items < LEAST_ITEMS for look in (alone, loaded)):
        return None
    traffic = read_traffic(loaded.batches)
    model = model_of(traffic, table)
    if model.is_fitted:
        return None
    expected = traffic.seconds / model.factors
    extra_s = float(np.median(traffic.seconds - expected))
    longer = [[max(1e-6, each + extra_s) for each in row] for row in table.seconds]
    first_s, _ = alone.delays_s()
    loaded_s, place = loaded.delays_s()
    delay = AnswerDelay(loaded_s)
    if place >= _TELLING:
        delay = AnswerDelay(first_s, max(0.0, loaded_s - first_s) / place)
    factors = traffic.seconds / np.maximum(expected + extra_s, 1e-6)
    return LiveCosts(
        replace(table, seconds=tuple(map(tuple, longer))),
        np.minimum(factors, np.quantile(factors, _COMMON)),
        delay,
    )
