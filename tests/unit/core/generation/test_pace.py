"""How long a chunk may be beside decodes, learned from the times of steps."""

from headway.core.generation.pace import Pace


def taught(seconds_of: "dict[int, float]", stretch: float = 2.0) -> Pace:
    pace = Pace(stretch)
    for tokens, seconds in seconds_of.items():
        for _ in range(20):
            pace.observe(tokens, seconds)
    return pace


def test_until_a_step_was_timed_a_chunk_may_take_the_whole_budget() -> None:
    assert Pace(2.0).chunk(8, 500) == 500


def test_with_no_decode_beside_it_a_chunk_may_take_the_whole_budget() -> None:
    assert taught({8: 0.02, 512: 1.0}).chunk(0, 500) == 500


def test_a_chunk_makes_the_step_no_longer_than_the_stretch() -> None:
    pace = taught({tokens: 0.01 + 0.001 * tokens for tokens in (8, 16, 32, 64, 128, 256, 512)})
    chunk = pace.chunk(8, 500)
    assert 0.01 + 0.001 * (8 + chunk) <= 2.0 * 0.018 + 1e-9
    assert chunk >= 16


def test_where_tokens_cost_nothing_more_the_budget_is_used_up() -> None:
    pace = taught(dict.fromkeys((8, 16, 32, 64, 128, 256, 512), 0.02))
    assert pace.chunk(8, 500) == 500


def test_what_was_not_timed_is_tried_one_size_at_a_time() -> None:
    pace = taught({8: 0.02})
    assert pace.chunk(8, 500) == 8
    pace.observe(16, 0.021)
    assert pace.chunk(8, 500) == 24


def test_a_prompt_is_never_left_without_any_tokens() -> None:
    assert taught({8: 0.001, 16: 1.0}).chunk(8, 500) == 8


def test_one_pause_of_the_machine_is_forgotten() -> None:
    pace = taught({8: 0.02, 16: 0.02, 32: 0.02})
    pace.observe(32, 5.0)
    assert pace.chunk(8, 500) > 8


def test_a_prompt_that_is_late_may_stretch_steps_in_proportion() -> None:
    seconds = {tokens: 0.01 + 0.001 * tokens for tokens in (8, 16, 32, 64, 128, 256, 512)}
    pace = taught(seconds)
    in_time = pace.lateness(200, waited_s=0.2)
    late = pace.lateness(200, waited_s=2.0)
    assert in_time <= 1.0
    assert late > 2.0
    assert pace.chunk(8, 500, in_time) == pace.chunk(8, 500)
    assert pace.chunk(8, 500, late) > 2 * pace.chunk(8, 500)
    assert pace.chunk(8, 500, 1000.0) == 500
