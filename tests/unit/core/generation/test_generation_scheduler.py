"""Which sequences compute which tokens in a step, decided without a clock or a model."""

import math
from typing import Any

import pytest

from headway.core.generation.sequence import FinishReason
from headway.core.generation.step import Step
from headway.core.items import Priority, Wait
from headway.errors import ConfigError, DeadlineExceeded, InputTooLarge, InvalidInput, QueueFull
from step_world import World, counts


def test_a_sequence_is_computed_and_then_decodes_token_by_token() -> None:
    world = World()
    world.submit(1, 10, max_tokens=3)
    first = world.step()
    assert counts(first) == ([], {1: 10})
    assert first.sampled == (1,)
    assert len(first.prefill[0].blocks) == 3
    assert counts(world.step()) == ([1], {})
    assert counts(world.step()) == ([1], {})
    assert world.finished[1].reason is FinishReason.LENGTH
    assert world.finished[1].tokens == 3
    assert world.scheduler.next_step(world.now) == Wait(math.inf)


def test_decodes_come_first_and_prompts_fill_the_rest_of_the_step() -> None:
    world = World(max_sequences=4, step_tokens=10)
    world.submit(1, 4)
    world.step()
    world.submit(2, 20)
    assert counts(world.step()) == ([1], {2: 9})
    assert counts(world.step()) == ([1], {2: 9})
    assert counts(world.step()) == ([1], {2: 2})
    assert counts(world.step()) == ([1, 2], {})


def test_the_last_token_of_a_prompt_may_be_a_chunk_of_its_own() -> None:
    world = World(max_sequences=4, step_tokens=10)
    world.submit(1, 11, max_tokens=2)
    assert [counts(world.step()) for _ in range(3)] == [([], {1: 10}), ([], {1: 1}), ([1], {})]


def test_a_prompt_in_progress_leaves_half_of_the_step_to_shorter_ones() -> None:
    world = World(max_sequences=8, step_tokens=16, blocks=100)
    world.submit(1, 100)
    assert counts(world.step()) == ([], {1: 16})
    world.submit(2, 6)
    world.submit(3, 95)
    assert counts(world.step()) == ([], {1: 10, 2: 6})
    assert world.first_token == {2: 2}


def test_a_longer_prompt_follows_in_the_step_that_ends_the_one_before() -> None:
    world = World(max_sequences=8, step_tokens=16, blocks=100)
    world.submit(1, 20)
    world.step()
    world.submit(2, 40)
    assert counts(world.step()) == ([], {1: 4, 2: 12})


def test_whoever_waits_behind_a_prompt_keeps_its_class() -> None:
    world = World(max_sequences=2, step_tokens=16, blocks=100)
    world.submit(1, 20, max_tokens=50)
    world.step()
    world.submit(2, 40, max_tokens=50)
    for _ in range(8):
        world.step()
    world.submit(3, 4)  # of the same class: it has no right to either's slot
    assert world.step().preempted == ()


def test_without_chunks_a_prompt_is_computed_in_one_step() -> None:
    world = World(max_sequences=4, step_tokens=10, chunking=False)
    world.submit(1, 4)
    world.submit(2, 20)
    assert counts(world.step()) == ([], {1: 4})
    assert counts(world.step()) == ([1], {2: 20})


def test_a_prefix_that_is_cached_is_not_computed_again() -> None:
    world = World()
    prefix = tuple(range(20))
    world.submit(1, (*prefix, 91, 92))
    world.run()
    world.submit(2, (*prefix, 93, 94))
    assert counts(world.step()) == ([], {2: 2})
    world.run()
    assert world.finished[2].cached_tokens == 20


@pytest.mark.parametrize("step_tokens", [17, 64, 4096])
def test_a_prefix_that_many_send_at_once_is_computed_once(step_tokens: int) -> None:
    world = World(blocks=512, max_sequences=16, step_tokens=step_tokens)
    prefix = tuple(range(200))
    for number in range(16):
        world.submit(number, (*prefix, 1000 + number), max_tokens=1)
    world.run()
    assert world.engine.computed == 200 + 16


def test_answers_to_one_prompt_share_its_blocks() -> None:
    world = World(max_sequences=8)
    prompt = tuple(range(18))
    for number in range(4):
        world.submit(number, prompt)
    world.step()
    assert world.scheduler.blocks_used == 4 + 4  # four full ones are shared, the fifth is not


@pytest.mark.parametrize("fields", [{"adapter": "x"}, {"salt": "x"}, {"salt": "\ud800"}])
def test_another_adapter_or_salt_does_not_meet_the_cache(fields: dict[str, str]) -> None:
    world = World()
    world.submit(1, tuple(range(20)))
    world.run()
    world.submit(2, tuple(range(20)), **fields)
    assert counts(world.step()) == ([], {2: 20})


def test_no_choice_of_names_leads_to_anothers_cache() -> None:
    prefixes = World().scheduler._tables.prefixes
    assert prefixes.root("ab", "c") != prefixes.root("a", "bc")


def test_a_cached_prefix_gives_way_to_whoever_needs_its_blocks() -> None:
    world = World(blocks=8, max_context=32)
    world.submit(1, 20, max_tokens=4)
    world.run()
    world.submit(2, 20, max_tokens=12)
    world.run()
    world.submit(3, tuple(range(1000, 1020)), max_tokens=4)
    assert counts(world.step()) == ([], {3: 20})


def test_the_last_that_came_is_preempted_and_computed_again() -> None:
    world = World(blocks=8, max_sequences=4)
    world.submit(1, 8, max_tokens=24)
    world.now = 1.0
    world.submit(2, 8, max_tokens=24)
    preempted = []
    while world.scheduler.running or world.scheduler.waiting:
        preempted += world.step().preempted
    assert preempted
    assert set(preempted) == {2}
    assert world.finished[1].preemptions == 0
    assert world.finished[2].preemptions == len(preempted)
    assert world.finished[2].tokens == 24


def test_high_enters_at_the_next_step_whoever_has_the_slots() -> None:
    world = World(max_sequences=2, step_tokens=8)
    world.submit(1, 4, max_tokens=50)
    world.submit(2, 4, max_tokens=50)
    world.step()
    world.step()
    world.submit(3, 4, priority=Priority.HIGH)
    step = world.step()
    assert step.preempted == (2,)
    assert counts(step) == ([1], {3: 4})


def test_high_enters_at_the_next_step_whoever_has_the_blocks() -> None:
    world = World(blocks=16, max_sequences=4, step_tokens=60)
    world.submit(1, 28, max_tokens=20)
    world.submit(2, 24, max_tokens=20)
    world.step()
    world.submit(3, 16, priority=Priority.HIGH)
    step = world.step()
    assert 3 in step.sampled
    assert 2 in step.preempted


def test_high_goes_before_a_prompt_in_progress() -> None:
    world = World(max_sequences=4, step_tokens=8)
    world.submit(1, 60)
    world.step()
    world.submit(2, 7, priority=Priority.HIGH)
    assert counts(world.step()) == ([], {2: 7, 1: 1})


def test_low_is_not_starved_by_a_flood_of_high() -> None:
    world = World(max_sequences=2, step_tokens=16, ageing_s=1.0)
    world.submit(0, 4, priority=Priority.LOW)
    for number in range(1, 400):
        world.now += 0.1
        world.submit(number, 4, priority=Priority.HIGH, max_tokens=4)
        world.step()
    assert 0 in world.finished


def test_a_tenant_that_floods_leaves_the_others_their_share() -> None:
    world = World(blocks=1000, max_sequences=8, step_tokens=64)
    for number in range(100):
        world.submit(number, 8, tenant="flood", max_tokens=40)
    for _ in range(10):
        world.step()
    came = world.steps
    for number in range(100, 104):
        world.submit(number, 8, tenant="quiet", max_tokens=40)
    world.step()
    assert all(world.first_token[number] == came + 1 for number in range(100, 104))
    world.step()
    assert world.scheduler.running == 8
    world.run()
    assert len(world.finished) == 104


@pytest.mark.parametrize(("weight", "share"), [(1.0, 0.5), (3.0, 0.75)])
def test_tokens_are_shared_by_weight_while_all_flood(weight: float, share: float) -> None:
    world = World(
        blocks=1000, max_sequences=8, step_tokens=64, max_queue=9999, tenant_weights={"a": weight}
    )
    for number in range(600):
        world.submit(2 * number, 8, tenant="a", max_tokens=1 + number % 23)
        world.submit(2 * number + 1, 8, tenant="b", max_tokens=1 + number % 23)
    tokens = {"a": 0, "b": 0}
    for _ in range(400):
        for sequence in world.step().sampled:
            tokens["b" if sequence % 2 else "a"] += 1
    assert tokens["a"] / sum(tokens.values()) == pytest.approx(share, abs=0.03)


def test_a_cancelled_sequence_frees_its_blocks_for_the_next_step() -> None:
    world = World()
    world.submit(1, 40, max_tokens=20)
    world.step()
    world.scheduler.cancel(1)
    world.scheduler.cancel(1)
    assert world.scheduler.blocks_used == 0
    step = world.scheduler.next_step(world.now)
    assert isinstance(step, Step)
    assert [each.reason for each in step.finished] == [FinishReason.CANCELLED]
    assert not step.has_work


def test_a_late_sequence_ends_wherever_it_is() -> None:
    world = World(max_sequences=1, step_tokens=8)
    world.submit(1, 4, max_tokens=50, deadline=5.0)
    world.submit(2, 4, max_tokens=50, deadline=3.0)
    world.step()
    world.now = 4.0
    assert [each.sequence for each in world.step().finished] == [2]
    world.now = 5.0
    step = world.scheduler.next_step(world.now)
    assert isinstance(step, Step)
    assert [each.sequence for each in step.finished] == [1]


def test_while_it_waits_for_results_the_scheduler_names_the_next_deadline() -> None:
    world = World()
    world.submit(1, 4, max_tokens=1, deadline=5.0)
    assert isinstance(world.scheduler.next_step(0.0), Step)
    assert world.scheduler.next_step(0.0) == Wait(5.0)


def test_a_step_may_be_made_before_the_last_ones_tokens_are_known() -> None:
    world = World()
    world.submit(1, 4, max_tokens=3)
    steps = [world.scheduler.next_step(0.0) for _ in range(4)]
    assert [isinstance(each, Step) for each in steps] == [True, True, True, False]
    ended = []
    for step in steps[:3]:
        assert isinstance(step, Step)
        ended += world.scheduler.complete(step, world.engine.run(step))
    assert [each.tokens for each in ended] == [3]


def test_a_stop_id_counts_only_after_the_least_number_of_tokens() -> None:
    world = World()
    world.submit(1, 4, max_tokens=30, min_tokens=5, stop_ids=frozenset(range(64)))
    world.run()
    assert world.finished[1].reason is FinishReason.STOP
    assert world.finished[1].tokens == 6


def test_after_a_crash_all_go_on_from_what_is_known() -> None:
    world = World()
    world.submit(1, 10, max_tokens=6)
    world.step()
    world.step()
    world.scheduler.reset()
    world.engine.lose()
    assert counts(world.step()) == ([], {1: 12})
    world.run()
    assert world.finished[1].tokens == 6


def test_what_can_never_fit_is_refused_at_the_door() -> None:
    world = World(blocks=4, max_context=100)
    with pytest.raises(InputTooLarge, match=r"10 tokens of prompt and 7 to generate.*for 16"):
        world.submit(1, 10, max_tokens=7)
    world.submit(2, 10, max_tokens=6)
    world.run()
    with pytest.raises(InvalidInput, match="no tokens"):
        world.submit(3, 0)
    with pytest.raises(InvalidInput, match="max_tokens"):
        world.submit(4, 3, max_tokens=0)
    with pytest.raises(DeadlineExceeded):
        world.submit(5, 3, max_tokens=3, deadline=-1.0)


def test_the_queue_is_bounded() -> None:
    world = World(max_queue=2)
    world.submit(1, 3)
    world.submit(2, 3)
    with pytest.raises(QueueFull):
        world.submit(3, 3)


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"blocks": 0}, "blocks"),
        ({"max_sequences": 64, "step_tokens": 64}, "step_tokens"),
        ({"max_stretch": 1.0}, "max_stretch"),
        ({"tenant_weights": {"a": 0.0}}, "tenants"),
    ],
)
def test_a_limit_that_makes_no_sense_is_named(limits: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=field):
        World(**limits)


class Rested(World):
    """Its steps take time: 10 ms, and 0.1 ms a token."""

    def step(self) -> Step:
        step = self.scheduler.next_step(self.now)
        assert isinstance(step, Step), "there was nothing to do"
        seconds = 0.01 + 0.0001 * step.tokens
        self.now += seconds
        self.scheduler.complete(step, self.engine.run(step), seconds)
        return step


def rested(**limits: Any) -> Rested:
    """With one sequence that decodes."""
    world = Rested(**{"blocks": 4000, "max_stretch": 2.0, "has_rests": True, **limits})
    world.submit(1, 10, max_tokens=1000)
    for _ in range(10):
        world.step()
    return world


def test_after_a_chunk_comes_a_step_of_decodes_alone() -> None:
    world = rested()
    world.submit(2, 10)
    world.submit(3, 200)
    assert set(counts(world.step())[1]) >= {2}
    world.submit(4, 10)
    assert counts(world.step())[1] == {}
    assert world.step().prefill


def test_a_prompt_that_is_late_or_of_a_high_class_waits_for_no_rest() -> None:
    world = rested()
    world.submit(2, 10)
    assert counts(world.step())[1] == {2: 10}
    world.submit(3, 10, priority=Priority.HIGH)
    assert counts(world.step())[1] == {3: 10}
    world.submit(4, 10)
    world.now += 10.0
    assert counts(world.step())[1] == {4: 10}


def test_a_burst_of_one_tenant_takes_small_chunks_and_lets_others_pass() -> None:
    world = Rested(blocks=4000, max_stretch=4.0, burst_stretch=2.0, step_tokens=4000)
    world.submit(1, 10, max_tokens=1000, tenant="steady")
    for number in range(2, 6):  # so that the time of larger steps is known
        world.submit(number, 100 * number, max_tokens=1, tenant="steady")
        for _ in range(20):
            world.step()
    for number in range(10, 30):
        world.submit(number, 150, max_tokens=1, tenant="burst")
    small = world.step().tokens
    assert 0.01 + 0.0001 * small <= 2.0 * 0.0102
    world.submit(6, 200, max_tokens=1, tenant="third")
    step = world.step()
    assert counts(step)[1][6] == 200  # all of it, though that is more than a burst gets
    for _ in range(60):
        world.step()
    assert world.scheduler.waiting == 0  # nobody is forgotten


def test_a_tenant_alone_has_no_bursts() -> None:
    world = Rested(blocks=4000, max_stretch=4.0, burst_stretch=2.0, step_tokens=4000)
    world.submit(1, 10, max_tokens=1000)
    for number in range(2, 6):
        world.submit(number, 100 * number, max_tokens=1)
        world.step()
    for number in range(10, 30):
        world.submit(number, 150, max_tokens=1)
    assert world.step().tokens > 250


def test_where_more_wait_than_run_their_prompts_take_longer_steps() -> None:
    chunks = {}
    for waiting in (1, 8):
        world = rested(has_rests=False)
        for number in range(50, 55):  # so that the time of larger steps is known
            world.submit(number, 10 * number, max_tokens=1)
            while world.scheduler.running > 1 or world.scheduler.waiting:
                world.step()
        for number in range(2, 2 + waiting):
            world.submit(number, 300)
        chunks[waiting] = sum(counts(world.step())[1].values())
    assert 2 * chunks[1] < chunks[8]


def test_only_those_count_that_find_a_slot() -> None:
    world = rested(has_rests=False, max_sequences=2)
    for number in range(2, 20):
        world.submit(number, 300)
    alone = rested(has_rests=False, max_sequences=2)
    alone.submit(2, 300)
    assert world.step().tokens == alone.step().tokens


class Idle(Rested):
    """It has run one prompt, so it knows how long steps take, and is idle."""

    def __init__(self) -> None:
        super().__init__(blocks=400, step_tokens=512)
        self.submit(1, 190, max_tokens=1)  # 29 ms
        self.step()
        self.now = 1.0


def test_an_idle_engine_begins_when_no_more_come() -> None:
    world = Idle()
    for number in (2, 3, 4):
        world.submit(number, 150)
        wait = world.scheduler.next_step(world.now)
        assert isinstance(wait, Wait)
        assert world.now < wait.until < world.now + 0.002
        world.now += 0.0004
    world.now = wait.until
    assert counts(world.step())[1] == {2: 150, 3: 150, 4: 150}


def test_an_idle_engine_begins_at_once_where_the_step_is_full() -> None:
    world = Idle()
    world.submit(2, 600)
    assert counts(world.step())[1] == {2: 512}


def test_however_many_come_an_idle_engine_begins_soon() -> None:
    world, number = Idle(), 2
    world.submit(number, 4)
    while isinstance(world.scheduler.next_step(world.now), Wait):
        number, world.now = number + 1, world.now + 0.0001
        world.submit(number, 4)
    assert world.now < 1.002


def test_who_waits_for_others_still_has_a_deadline() -> None:
    world = Idle()
    world.submit(2, 190, deadline=world.now + 0.0001)
    assert world.scheduler.next_step(world.now) == Wait(world.now + 0.0001)
    world.now += 0.0001
    step = world.scheduler.next_step(world.now)
    assert isinstance(step, Step)
    assert [each.reason for each in step.finished] == [FinishReason.DEADLINE]


def test_a_sequence_that_left_at_once_is_not_part_of_a_later_burst() -> None:
    world = Idle()
    world.submit(2, 190)
    world.scheduler.cancel(2)
    assert isinstance(world.scheduler.next_step(world.now), Step)  # it names the end
    world.now = 60.0
    world.submit(3, 150)
    assert isinstance(world.scheduler.next_step(world.now), Wait)
