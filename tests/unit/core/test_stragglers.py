"""How many answers are late because some batches are slow, without saying which."""

import pytest

from headway.core.batching.stragglers import Stragglers

SOME_SLOW = [10 / 1.18] * 2 + [1 / 1.18] * 98
NOISY = [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75]


SLO_S, NEXT_S = 0.030, 0.008


def late_s(ratios: list[float], waited_s: float, batch_s: float) -> float:
    return Stragglers(sorted(ratios), SLO_S, NEXT_S).late_s(waited_s, batch_s)


def plainly(ran_s: float, waited_s: float) -> float:
    """Of all moments since the oldest came: those whose items are answered too late."""
    step_s = 1e-5
    late = 0
    for step in range(round((waited_s + ran_s) / step_s)):
        left_s = waited_s + ran_s - (step + 0.5) * step_s  # when the batch ends
        is_own = step * step_s < waited_s
        late += left_s + (0.0 if is_own else NEXT_S) > SLO_S
    return late * step_s


@pytest.mark.parametrize("ratios", [SOME_SLOW, NOISY, [1.0]])
@pytest.mark.parametrize("waited_s", [0.0, 0.004, 0.020, 0.028])
@pytest.mark.parametrize("batch_s", [0.001, 0.008, 0.020, 0.025])
def test_it_is_the_mean_over_all_batches_less_what_is_late_anyway(
    ratios: list[float], waited_s: float, batch_s: float
) -> None:
    each_s = [plainly(ratio * batch_s, waited_s) for ratio in ratios]
    wanted_s = sum(each_s) / len(each_s) - plainly(batch_s, waited_s)
    assert late_s(ratios, waited_s, batch_s) == pytest.approx(wanted_s, abs=5e-5)


def test_where_a_batch_takes_the_same_whatever_is_in_it_fewer_make_fewer_late() -> None:
    often, rarely = (late_s(SOME_SLOW, waited_s, 0.007) for waited_s in (0.007, 0.014))
    assert rarely < 1.3 * often
