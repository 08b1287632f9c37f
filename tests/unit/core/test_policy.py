import math
from typing import Any

import pytest

from headway.core.batching.scheduler import Scheduler
from headway.core.items import Item, Run
from headway.core.policy import Firing, Order, Policy, choice
from headway.errors import ConfigError

WINDOW = {"firing": Firing.WINDOW}
STATIC = {"firing": Firing.STATIC}
HUGE = (2**53 + 1, 10**400, 10**5000)
BAD = [
    *(("max_batch_size", {"max_batch_size": bad}) for bad in (0, -1, math.nan, math.inf)),
    *(("workers", {"workers": bad}) for bad in (0, -1, math.nan, math.inf)),
    *(("max_queue", {"max_queue": bad}) for bad in (0, -1, math.nan, math.inf)),
    *(("max_batch_cost", {"max_batch_cost": bad}) for bad in (0, -1, math.nan, math.inf)),
    *(("max_wait_ms", {"max_wait_s": bad}) for bad in (-0.001, math.nan, math.inf, -math.inf)),
    *(("max_wait_ms", {**WINDOW, "max_wait_s": bad}) for bad in (-0.001, math.nan, math.inf)),
    ("max_wait_ms", WINDOW),
    ("max_wait_ms", {**STATIC, "max_wait_s": 0.005}),
    ("max_wait_ms", {**STATIC, "max_wait_s": 0.0}),
    *(("slo_ms", {"slo_s": bad}) for bad in (0.0, -0.05, math.nan, math.inf)),
    *(("slo_percentile", {"slo_percentile": bad}) for bad in (0, 100, -1, 101, math.nan, math.inf)),
    *(("ageing_s", {"ageing_s": bad}) for bad in (0.0, -1.0, math.nan, math.inf)),
    *(("acme", {"tenant_weights": {"acme": bad}}) for bad in (0.0, -1.0, math.nan, math.inf)),
    ("batch_sizes", {"max_batch_size": 8, "batch_sizes": (8, 4)}),
    ("batch_sizes", {"max_batch_size": 8, "batch_sizes": (4, 4, 8)}),
    ("batch_sizes", {"max_batch_size": 8, "batch_sizes": (0, 8)}),
    ("batch_sizes", {"max_batch_size": 8, "batch_sizes": (-4, 8)}),
    ("batch_sizes", {"max_batch_size": 8, "batch_sizes": (1, 4)}),
    ("batch_sizes", {"max_batch_size": 8, "batch_sizes": (1, 16)}),
    ("batch_sizes", {"max_batch_size": 8, "batch_sizes": (8, 2**20 + 1)}),
    *(("max_batch_size", {"max_batch_size": bad}) for bad in (2**20 + 1, 2**63, 10**5000)),
    *(("workers", {"workers": bad}) for bad in (4097, 10**12)),
    *((name, {name: bad}) for name in ("max_queue", "max_batch_cost") for bad in HUGE),
    *((name, {name: (1, bad)}) for name in ("buckets", "pad_sizes") for bad in HUGE),
    *((name, {name: -(10**5000)}) for name in ("max_queue", "max_batch_cost", "ageing_s")),
    *((name, {name: 7}) for name in ("buckets", "pad_sizes", "batch_sizes")),
    *((name, {name: 10**400}) for name in ("ageing_s", "slo_percentile")),
    ("max_wait_ms", {"max_wait_s": 10**400}),
    ("slo_ms", {"slo_s": 10**5000}),
    ("acme", {"tenant_weights": {"acme": 10**400}}),
]


@pytest.mark.parametrize(("name", "arguments"), BAD)
def test_a_bad_argument_is_refused_by_name(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Policy(**arguments)
    assert caught.value.field is not None
    assert name in caught.value.field
    assert str(caught.value).startswith(caught.value.field)


@pytest.mark.parametrize("name", ["max_batch_size", "workers", "max_queue", "max_batch_cost"])
def test_a_count_that_is_no_whole_number_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Policy(**{name: 2.5})


def test_a_queue_that_cannot_hold_one_batch_is_refused_where_only_full_batches_leave() -> None:
    """Pinned: it filled up, nothing was ever full, and everybody waited for ever."""
    with pytest.raises(ConfigError, match="max_queue"):
        Policy(firing=Firing.STATIC, max_batch_size=64, max_queue=32)


def test_the_defaults_are_those_of_the_design() -> None:
    policy = Policy()
    assert (policy.firing, policy.order) == (Firing.AUTO, Order.FIFO)
    assert (policy.max_batch_size, policy.max_queue, policy.workers) == (64, 4096, 1)
    assert (policy.max_wait_s, policy.slo_s, policy.slo_percentile) == (None, None, 99.0)


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_wait_s": 0.0},
        {"max_batch_size": 1},
        {**WINDOW, "max_wait_s": 0.0},
        STATIC,
        {"max_batch_size": 8, "batch_sizes": (1, 2, 8)},
        {"max_batch_size": 8, "batch_sizes": (8,)},
        {"tenant_weights": {"acme": 0.5}},
        {"slo_s": 0.05, "slo_percentile": 99.9},
    ],
)
def test_a_good_argument_is_taken(arguments: dict[str, Any]) -> None:
    Policy(**arguments)


def test_a_choice_that_does_not_exist_is_answered_with_those_that_do() -> None:
    assert choice(Firing, "window", "policy") is Firing.WINDOW
    with pytest.raises(ConfigError, match="policy: 'windw' is not one of 'auto', 'window', 'stati"):
        choice(Firing, "windw", "policy")


def test_a_time_is_shown_as_it_was_given() -> None:
    with pytest.raises(ConfigError, match=r"max_wait_ms: must be at least 0, not -1$"):
        Policy(max_wait_s=-0.001)
    with pytest.raises(ConfigError, match=r"slo_ms: must be more than 0, not -50$"):
        Policy(slo_s=-0.05)


def test_the_most_rows_that_a_batch_may_have_are_allowed() -> None:
    assert Policy(max_batch_size=2**20, batch_sizes=(1, 2**20)).max_batch_size == 2**20


def test_sizes_may_be_lists() -> None:
    """Compiled code takes nothing but tuples, so it is given those."""
    policy = Policy(max_batch_size=8, batch_sizes=[4, 8], pad_sizes=[16, 32], buckets=[64])  # type: ignore[arg-type]
    assert policy == Policy(max_batch_size=8, batch_sizes=(4, 8), pad_sizes=(16, 32), buckets=(64,))
    scheduler = Scheduler(policy)
    scheduler.submit(Item(1, 0.0, size=10))
    assert isinstance(scheduler.next_action(0.0), Run)


def test_the_largest_counts_can_be_decided_with() -> None:
    scheduler = Scheduler(Policy(max_queue=2**53, max_batch_cost=2**53, pad_sizes=(2**53,)))
    scheduler.submit(Item(1, 0.0, size=10))
    assert isinstance(scheduler.next_action(0.0), Run)
