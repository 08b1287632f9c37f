"""What a replay answers is what the rule would have done, however early it ends."""

import random
from collections.abc import Sequence

import pytest

from headway.core.batching.replay import Replayed, Sharing, Traffic, replay

SECONDS = [0.0, *(0.002 + 0.0004 * items for items in range(1, 33))]
SHARING = Sharing([(each, each / SECONDS[each], SECONDS[each]) for each in (8, 16, 32)])
NO_SLO = float("inf")


def traffic(
    rate_rps: float,
    slo_s: float = NO_SLO,
    count: int = 600,
    seed: int = 7,
) -> Traffic:
    draw, at, times = random.Random(seed), 0.0, []
    for _ in range(count):
        at += draw.expovariate(rate_rps)
        times.append(at)
    return Traffic(times, SECONDS, slo_s)


def run(
    given: Traffic, window_s: float, cap: int, speeds: Sequence[float], **options: float
) -> tuple[Replayed, int]:
    """The result, and the work it took, in batches."""
    work, steps = 0, replay(given, window_s, cap, SHARING, speeds, **options)
    while True:
        try:
            work += next(steps)
        except StopIteration as end:
            return end.value, work


def plainly(given: Traffic, window_s: float, cap: int, speeds: Sequence[float]) -> Replayed:
    """The same, item by item, without any short cut."""
    times = given.times
    free = [0.0 for _ in speeds]
    waits: list[float] = []
    waiting, largest = list(times), 0
    while waiting:
        start = waiting[0] + window_s
        if cap <= len(waiting):
            start = min(start, waiting[cap - 1])
        start = max(start, min(free))
        here = sum(at <= start for at in waiting)
        items = SHARING.items_to_take(here, cap)
        ends = [
            max(start, at) + SECONDS[items] * speed for at, speed in zip(free, speeds, strict=True)
        ]
        end = min(ends)
        free[ends.index(end)] = end
        waits += [end - at for at in waiting[:items]]
        largest = max(largest, items)
        del waiting[:items]
    waits.sort()
    late = sum(wait > given.slo_s for wait in waits)
    count = len(waits)
    return Replayed(waits[-(count // 100)], sum(waits) / count, late / count, largest)


SETTINGS = [(0.0, 32), (0.001, 8), (0.004, 16), (0.004, 2)]


@pytest.mark.parametrize("speeds", [(1.0,), (1.0, 1.0, 1.0), (1.0, 2.5)])
@pytest.mark.parametrize("rate_rps", [200.0, 1_500.0])
@pytest.mark.parametrize("slo_s", [NO_SLO, 0.012])
@pytest.mark.parametrize(("window_s", "cap"), SETTINGS)
def test_a_replay_is_the_rule_item_by_item(
    speeds: tuple[float, ...], rate_rps: float, slo_s: float, window_s: float, cap: int
) -> None:
    given = traffic(rate_rps, slo_s)
    found, _ = run(given, window_s, cap, speeds)
    wanted = plainly(given, window_s, cap, speeds)
    assert found.mean_s == pytest.approx(wanted.mean_s)
    assert found.largest == wanted.largest
    assert found.late == pytest.approx(wanted.late, abs=0.002), "but for one that rounding decides"
    assert found.tail_s == pytest.approx(wanted.tail_s)


@pytest.mark.parametrize("slo_s", [NO_SLO, 0.012])
@pytest.mark.parametrize("seed", range(6))
def test_a_setting_that_is_given_up_early_is_worse_than_asked_for(slo_s: float, seed: int) -> None:
    given = traffic(900.0, slo_s, seed=seed)
    whole = {setting: run(given, *setting, (1.0,)) for setting in SETTINGS}
    best = min(result.score for result, _ in whole.values())
    for setting, (result, work) in whole.items():
        early, early_work = run(given, *setting, (1.0,), worst=best)
        assert early_work <= work
        if result.score > best:
            assert best < early.score <= result.score + 1e-9
        else:
            assert early == result


def test_a_setting_that_cannot_win_is_given_up_soon() -> None:
    given = traffic(300.0)
    good, _ = run(given, 0.0, 32, (1.0,))
    _, whole = run(given, 0.015, 32, (1.0,))
    _, wasted = run(given, 0.015, 32, (1.0,), worst=good.score)
    assert wasted < whole / 2
