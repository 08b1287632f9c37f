"""How long a chunk may be beside decodes, learned from the times of steps."""

import pytest

from headway.core.generation.pace import ChunkPace, HandOver


def taught(seconds_of: "dict[int, float]", stretch: float = 2.0) -> ChunkPace:
    pace = ChunkPace(stretch)
    for tokens, seconds in seconds_of.items():
        for _ in range(20):
            pace.observe(tokens, seconds)
    return pace


def test_until_a_step_was_timed_a_chunk_may_take_the_whole_budget() -> None:
    assert ChunkPace(2.0).chunk(8, 500) == 500


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


def test_a_size_whose_first_step_met_a_pause_is_tried_again() -> None:
    pace = taught({8: 0.005, 16: 0.005, 32: 0.005, 64: 0.006, 128: 0.007}, stretch=4.0)
    pace.observe(250, 3.0)  # of which the model took a hundredth
    for _ in range(10):
        tokens = 8 + pace.chunk(8, 500)
        pace.observe(tokens, 0.004 + 0.00003 * tokens)
    assert pace.chunk(8, 500) >= 400


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


def test_beyond_the_late_stretch_no_prompt_is_late_enough() -> None:
    pace = ChunkPace(2.0, late_stretch=3.0)
    for tokens in (8, 16, 32, 64, 128, 256, 512):
        pace.observe(tokens, 0.01 + 0.001 * tokens)
    assert pace.chunk(8, 500, 1000.0) == pace.chunk(8, 500, 1.5)
    assert 0.01 + 0.001 * (8 + pace.chunk(8, 500, 1000.0)) <= 3.0 * 0.018 + 1e-9


def test_decodes_and_a_chunk_fill_whole_tiles() -> None:
    pace = ChunkPace(4.0, tile=64)
    for tokens in (8, 16, 32, 64, 128, 256, 512):
        pace.observe(tokens, 0.01 + 0.001 * tokens)
    chunk = pace.chunk(30, 1000)  # 160 ms: 150 tokens
    assert chunk + 30 == 128
    assert ChunkPace(4.0, tile=64).chunk(200, 40) == 40


def test_larger_steps_get_known_though_chunks_fill_whole_tiles() -> None:
    pace = ChunkPace(4.0, tile=128)
    pace.observe(12, 0.005, has_prompts=False)
    for _ in range(10):
        tokens = 12 + min(190, pace.chunk(12, 1000))
        pace.observe(tokens, 0.004 + 0.00002 * tokens)
    assert pace.chunk(12, 1000) + 12 >= 384


def test_less_than_a_tile_is_better_than_nothing() -> None:
    pace = ChunkPace(1.5, tile=512)
    for tokens in (8, 16, 32, 64, 128, 256, 512):
        pace.observe(tokens, 0.01 + 0.001 * tokens)
    assert pace.chunk(30, 1000) == 20


def test_a_step_of_decodes_is_expected_to_take_what_the_last_one_took() -> None:
    pace = ChunkPace(2.0)
    assert pace.expected_s(10, has_prompts=False) == 0.0
    pace.observe(100, 0.02)
    pace.observe(10, 0.006, has_prompts=False)
    pace.observe(10, 0.005, has_prompts=False)
    assert pace.expected_s(10, has_prompts=False) == 0.005
    assert pace.expected_s(55, has_prompts=True) == pytest.approx(0.0129, abs=1e-4)


def test_the_next_step_is_due_before_the_running_one_is_expected_to_end() -> None:
    hand_over = HandOver()
    for _ in range(50):
        hand_over.took(0.001)
    due = hand_over.at(100.0, 0.020)
    assert 100.015 < due < 100.018  # the host's own time, and a tenth for doubt
    assert hand_over.at(100.0, 0.0) < 100.0  # nothing is known: at once


def test_a_slow_host_hands_over_earlier() -> None:
    quick, slow = HandOver(), HandOver()
    for _ in range(50):
        quick.took(0.0005)
        slow.took(0.004)
    assert slow.at(0.0, 0.02) < quick.at(0.0, 0.02) - 0.004
    slow.took(10.0)  # a pause of the machine
    assert slow.at(0.0, 0.02) > 0.0
