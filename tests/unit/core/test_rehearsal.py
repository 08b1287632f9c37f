"""The window and the batch size that would have served the latest arrivals best."""

import random
from collections.abc import Callable

import pytest

from headway.core.batching.rehearsal import Rehearsal, Setting
from headway.core.batching.replay import Sharing
from headway.core.costs import Costs, CostTable, probe_rows
from headway.core.policy import Policy
from headway.core.queueing.running import Running

Curve = Callable[[int], float]


def gpu(rows: int) -> float:
    return 0.005 + 0.00005 * rows


def cpu(rows: int) -> float:
    return 0.001 + 0.0008 * rows


def tiles(rows: int) -> float:
    return 0.001 + 0.0001 * 16 * -(-rows // 16)


def table(curve: Curve, most: int = 64, errors: tuple[float, ...] = ()) -> CostTable:
    rows = probe_rows(most)
    return CostTable(tuple(rows), None, tuple((curve(each),) for each in rows), errors=errors)


def new_rehearsal(policy: Policy, costs: Costs) -> Rehearsal:
    return Rehearsal(policy, costs, Running(policy.workers))


def rehearsed(
    curve: Curve,
    arrivals: list[float],
    *,
    errors: tuple[float, ...] = (),
    workers: int = 2,
    **options: object,
) -> Setting:
    """What is in force after those arrivals, each followed by a moment to rehearse in."""
    policy = Policy(max_batch_size=64, workers=workers, **options)  # type: ignore[arg-type]
    rehearsal = new_rehearsal(policy, Costs(64, table(curve, errors=errors)))
    for at in arrivals:
        rehearsal.arrived([at])
        rehearsal.step(at)
    for _ in range(5_000):  # whatever is still under way
        rehearsal.step(arrivals[-1])
    assert rehearsal.setting is not None
    return rehearsal.setting


def poisson(rate_rps: float, count: int = 3_000, seed: int = 3) -> list[float]:
    draw, at, times = random.Random(seed), 0.0, []
    for _ in range(count):
        at += draw.expovariate(rate_rps)
        times.append(at)
    return times


def groups(size: int, gap_s: float, every_s: float, count: int = 300) -> list[float]:
    draw = random.Random(5)
    return sorted(
        group * every_s + draw.uniform(0.0, gap_s) for group in range(count) for _ in range(size)
    )


@pytest.mark.parametrize("uptime_s", [0.0, 1e6, 1e9])
def test_how_long_the_clock_has_run_does_not_matter(uptime_s: float) -> None:
    """A model of 0.1 µs, on a machine that has been up for years: sums of moments round more away
    than a batch takes."""
    arrivals = [uptime_s + at for at in poisson(2_000.0, 1_200)]
    assert rehearsed(lambda rows: 1e-7 + 1e-9 * rows, arrivals).window_s >= 0.0


def test_a_group_that_comes_within_a_moment_is_waited_for() -> None:
    setting = rehearsed(gpu, groups(8, 0.002, 0.050))
    assert 0.001 <= setting.window_s <= 0.005


def test_without_anybody_to_join_nobody_waits() -> None:
    assert rehearsed(cpu, [0.1 * number for number in range(600)]).window_s == 0.0


def test_several_workers_share_the_load_in_turn() -> None:
    """Eight workers that each take all waiting items start together, and later items wait."""
    setting = rehearsed(gpu, poisson(40_000, 6_000), workers=8)
    assert 0.0002 <= setting.window_s <= 0.003
    assert setting.cap_rows >= 24


def test_several_workers_do_not_begin_a_second_tile() -> None:
    assert 12 <= rehearsed(tiles, poisson(20_000, 6_000), workers=8).cap_rows <= 16


def test_where_rows_cost_time_workers_take_a_few_each() -> None:
    assert rehearsed(cpu, poisson(4_800, 6_000), workers=8).cap_rows <= 4


def test_a_batch_size_with_which_the_workers_do_not_keep_up_is_not_chosen() -> None:
    cap_rows = rehearsed(cpu, poisson(2_200), workers=2).cap_rows
    assert cap_rows / cpu(cap_rows) >= 1_100


def test_the_longest_wait_that_the_user_allows_is_kept() -> None:
    assert rehearsed(gpu, groups(8, 0.002, 0.050), max_wait_s=0.0005).window_s <= 0.0005


def test_waiting_never_costs_answers_in_time() -> None:
    """A wait that would be good for all together is none where it makes some late."""
    arrivals = groups(8, 0.002, 0.050)
    assert rehearsed(gpu, arrivals).window_s > 0.001
    assert rehearsed(gpu, arrivals, slo_s=0.0125).window_s <= 0.0125 - gpu(8)


def test_batches_are_replayed_with_what_they_take_on_average() -> None:
    errors = (0.0,) * 49 + (9.0,)
    steady = rehearsed(gpu, poisson(900), errors=(0.0,) * 50)
    straggling = rehearsed(gpu, poisson(900), errors=errors)
    assert straggling.window_s <= 1.5 * max(steady.window_s, 0.001)


@pytest.mark.parametrize("workers", [2, 4])
def test_the_work_of_a_rehearsal_is_bounded_by_the_time(workers: int) -> None:
    rehearsal = new_rehearsal(Policy(workers=workers), Costs(64, table(gpu)))
    times = poisson(5_000, 30_000)
    for at in times:
        rehearsal.arrived([at])
        rehearsal.step(at)
    assert 0.02 <= rehearsal.spent_s <= 0.1 + 0.01 * times[-1] + 0.05


def test_a_model_that_nobody_has_timed_is_not_rehearsed_with() -> None:
    rehearsal = new_rehearsal(Policy(workers=2), Costs(64))
    for at in poisson(1_000, 500):
        rehearsal.arrived([at])
        rehearsal.step(at)
    assert rehearsal.setting is None


@pytest.mark.parametrize("waiting", range(1, 200, 7))
@pytest.mark.parametrize("curve", [gpu, cpu, tiles])
def test_several_workers_share_a_queue_so_that_its_last_row_is_answered_soonest(
    waiting: int, curve: Curve
) -> None:
    sizes = [(rows, 4 * rows / curve(rows), curve(rows)) for rows in (8, 16, 32, 48, 64)]
    taken = Sharing(sizes).items_to_take(waiting, 16)
    assert min(16, waiting) <= taken <= waiting
    if curve is gpu:
        assert taken >= min(64, waiting) // 2, "a row more costs hardly anything"
    if curve is cpu:
        assert taken == min(16, waiting), "a row more costs nearly as much as one alone"
    if curve is tiles:
        assert taken == waiting or taken % 16 == 0


def test_sizes_that_serve_no_more_than_smaller_ones_sustain_nothing() -> None:
    """Where rows are computed in tiles of 16, 24 of them serve fewer a second than 16."""
    sizes = [(rows, 4 * rows / tiles(rows), tiles(rows)) for rows in (16, 24, 32, 48, 64)]
    for waiting in (17, 24, 40, 100):
        taken = Sharing(sizes).items_to_take(waiting, 16)
        assert taken % 16 == 0 or taken == waiting


@pytest.mark.parametrize("seed", range(3))
def test_a_size_that_serves_a_little_more_than_comes_is_kept(seed: int) -> None:
    """Tiles of 16 on eight workers at 98 % of what batches of 16 serve: they fill up so evenly that
    hardly anybody waits, and 32 rows would take 1.6 times as long."""
    chosen = rehearsed(tiles, poisson(0.98 * 8 * 16 / (tiles(16) + 5e-5), 6_000, seed), workers=8)
    assert chosen.cap_rows == 16


def test_what_takes_microseconds_is_not_cut() -> None:
    """The way to a worker and back is replayed with every batch."""
    arrivals = groups(40, 0.00001, 0.010)
    quick = rehearsed(lambda rows: 0.00002 + 0.000002 * rows, arrivals, workers=2)
    assert quick.cap_rows >= 16
