import pytest

from headway.core.queueing.priority import FLOOR, MEMORY_S, Ageing, ClassUsage


def test_a_class_leads_once_its_oldest_has_waited_long_enough() -> None:
    ageing = Ageing(1.0, 3)
    assert not ageing.may_lead(2, 0.0, 1.0)
    assert ageing.may_lead(2, 0.0, 1.1)


def test_an_aged_class_gets_its_floor_and_no_more() -> None:
    ageing, led = Ageing(1.0, 3), 0
    for _ in range(100 * FLOOR):
        leads = ageing.may_lead(2, 0.0, 5.0)
        led += leads
        ageing.served((0, 0, 1) if leads else (1, 0, 0))
    assert led == pytest.approx(100, abs=2)


def test_what_a_class_gets_anyway_counts() -> None:
    ageing = Ageing(1.0, 3)
    for _ in range(1000):
        ageing.served((9, 0, 1))  # more than the floor
        assert not ageing.may_lead(2, 0.0, 5.0)


def test_the_share_of_the_classes_above_is_measured_and_forgotten() -> None:
    usage, now = ClassUsage(3), 0.0
    assert usage.above(2, now) == 0.0
    while now < 10 * MEMORY_S:
        now += 0.01
        usage.add(0, 0.002, now)
        usage.add(1, 0.003, now)
    assert usage.above(1, now) == pytest.approx(0.2, rel=0.05)
    assert usage.above(2, now) == pytest.approx(0.5, rel=0.05)
    assert usage.above(0, now) == 0.0
    assert usage.above(2, now + 20 * MEMORY_S) == 0.0
