"""The short form of `make chaos`: a real server under faults from outside; nothing is lost."""

from benchmarks.chaos.report import lines_of
from benchmarks.chaos.run import run
from benchmarks.chaos.scenario import plan


def test_nothing_is_lost_crossed_or_hurt_whatever_goes_wrong() -> None:
    # This seed has every kind of fault but the leak, which takes longer.
    done = run(plan(10, 8.0, fault_every_s=1.25, surge_s=2.0))
    assert not done.broken, "\n".join([*lines_of(done), *done.log[-50:]])
