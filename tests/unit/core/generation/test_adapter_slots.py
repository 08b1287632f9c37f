"""Adapters' slots: who lies where, who gives way, and that nobody starves."""

from collections.abc import Callable

from headway.core.generation.adapters import AdapterSlots
from headway.core.generation.limits import EngineLimits
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Sequence
from headway.core.generation.step import Placed, Step


def aged(*names: str) -> Callable[[str], bool]:
    return lambda adapter: adapter in names


def test_the_adapter_that_was_idle_longest_gives_way() -> None:
    slots = AdapterSlots(2)
    assert [slots.take(each) for each in "ab"] == [0, 1]
    assert slots.placed() == (Placed(0, "a"), Placed(1, "b"))
    slots.give("b")
    slots.give("a")
    slots.take("b")
    slots.give("b")  # used again: a has been idle longer
    assert slots.take("c") == 0
    assert slots.placed() == (Placed(0, "c"),)
    assert slots.resident == {"b": 1, "c": 0}


def test_a_held_slot_is_never_given_away() -> None:
    slots = AdapterSlots(1)
    slots.take("a")
    assert slots.can_take("a")
    assert not slots.can_take("b")
    slots.give("a")
    assert slots.can_take("b")
    assert slots.take("") == -1  # no adapter: no slot


def test_who_has_waited_long_claims_the_slot_that_was_taken_first() -> None:
    slots = AdapterSlots(2)
    slots.take("a")
    slots.take("b")
    slots.claim(["c"], aged())
    assert slots.can_take("a")
    slots.claim(["c"], aged("c"))
    assert not slots.can_take("a")  # no more of its sequences start
    assert slots.can_take("b")
    slots.give("a")
    assert slots.can_take("c")
    assert not slots.can_take("d")  # the slot is c's
    slots.claim([], aged())  # c's callers have left
    assert slots.can_take("d")


def test_an_unloaded_adapter_keeps_its_slot_until_its_sequences_have_ended() -> None:
    slots = AdapterSlots(1)
    slots.take("a")
    slots.forget("a")
    assert not slots.can_take("b")
    slots.give("a")
    assert slots.resident == {}
    assert slots.take("b") == 0


def test_who_claims_the_slot_of_an_adapter_that_is_unloaded_gets_it() -> None:
    slots = AdapterSlots(1)
    slots.take("a")
    slots.claim(["b"], aged("b"))
    slots.forget("a")
    slots.give("a")
    slots.claim(["b"], aged("b"))
    assert slots.can_take("b")


def scheduler(**limits: object) -> GenerationScheduler:
    given = {"blocks": 64, "block_size": 4, "max_sequences": 8, "step_tokens": 64, **limits}
    return GenerationScheduler(EngineLimits(**given))  # type: ignore[arg-type]


def step_of(scheduler: GenerationScheduler, now: float) -> Step:
    step = scheduler.next_step(now)
    assert isinstance(step, Step)
    scheduler.complete(step, [9] * len(step.sampled))
    return step


def test_a_sequence_whose_adapter_finds_no_slot_is_passed_over() -> None:
    made = scheduler(adapter_slots=1)
    for number, adapter in enumerate(["a", "b", "a", ""]):
        made.submit(Sequence(number, 0.0, (1, 2), 3, adapter=adapter))
    first = step_of(made, 0.0)
    assert {each.sequence: each.adapter for each in first.prefill} == {3: -1, 0: 0, 2: 0}
    assert first.placed == (Placed(0, "a"),)
    steps = [step_of(made, 0.0) for _ in range(3)]
    assert [each.sequence for each in steps[-1].prefill] == [1]
    assert steps[-1].placed == (Placed(0, "b"),)


def test_an_adapter_in_constant_demand_starves_no_other() -> None:
    made = scheduler(adapter_slots=1, ageing_s=1.0)
    made.submit(Sequence(0, 0.0, (1, 2), 8, adapter="a"))
    made.submit(Sequence(1, 0.0, (1, 2), 1, adapter="b"))
    served_at = None
    for number in range(2, 200):
        now = number * 0.1
        made.submit(Sequence(number, now, (1, 2), 8, adapter="a"))
        if any(each.sequence == 1 for each in step_of(made, now).prefill):
            served_at = now
            break
    assert served_at is not None
    assert 1.0 < served_at < 3.0


def test_a_tenants_adapters_share_what_is_its_own() -> None:
    made = scheduler(max_sequences=1, step_tokens=8)
    for number in range(6):
        made.submit(Sequence(number, 0.0, (1, 2), 4, tenant="t", adapter="a"))
    for number in range(6, 8):
        made.submit(Sequence(number, 1.0, (1, 2), 4, tenant="t", adapter="b"))
    order: list[int] = []
    while len(order) < 8:
        order += [each.sequence for each in step_of(made, 1.0).prefill]
    assert order[:4] == [0, 6, 1, 7]
