"""Engines are lost, and nobody is blamed on suspicion."""

import itertools
import random

import pytest

from headway.core.generation.recovery import MAX_LOSSES, PROOF, LossVerdict, Recovery, SequenceMoves
from headway.core.items import Priority

NOBODY = LossVerdict([], [])


def entered(recovery: Recovery, *sequences: int) -> list[int]:
    return [each for each in sequences if recovery.enter(each, float(each), Priority.NORMAL)]


def running(*sequences: int) -> Recovery:
    recovery = Recovery()
    recovery.started()
    assert entered(recovery, *sequences) == list(sequences)
    return recovery


def proven(recovery: Recovery, *sequences: int) -> SequenceMoves:
    for _ in range(PROOF - 1):
        recovery.progress(sequences)
    return recovery.progress(sequences)


def test_whoever_comes_while_there_is_no_engine_is_sent_to_the_next() -> None:
    recovery = Recovery()
    assert entered(recovery, 1, 2) == []
    assert recovery.started() == [1, 2]
    assert entered(recovery, 3) == [3]


def test_after_the_first_loss_all_resume_together() -> None:
    recovery = running(1, 2, 3)
    assert recovery.lost(out_of_memory=False) == NOBODY
    assert recovery.started() == [1, 2, 3]
    assert recovery.is_watching
    proven(recovery, 1, 2)
    assert recovery.is_watching
    proven(recovery, 3)
    assert not recovery.is_watching


def test_losses_with_tokens_in_between_are_nobodys_fault_up_to_a_limit() -> None:
    recovery = running(1, 2)
    for _ in range(MAX_LOSSES):
        assert recovery.lost(out_of_memory=False) == NOBODY
        assert recovery.started() == [1, 2]
        proven(recovery, 1, 2)
    assert recovery.lost(out_of_memory=False) == LossVerdict([], [1, 2])
    assert recovery.started() == []


def test_one_token_proves_nothing() -> None:
    """It comes with the prompt; what kills may come after it."""
    recovery = running(1)
    recovery.lost(out_of_memory=False)
    recovery.started()
    recovery.progress([1])
    assert recovery.lost(out_of_memory=False) == LossVerdict([1], [])


def test_a_lone_sequence_is_blamed_for_the_second_engine() -> None:
    recovery = running(1)
    assert recovery.lost(out_of_memory=False) == NOBODY
    assert recovery.started() == [1]
    assert entered(recovery, 2) == []  # it shall be alone
    assert recovery.lost(out_of_memory=False) == LossVerdict([1], [])
    assert recovery.started() == [2]


def test_newcomers_wait_for_the_end_of_a_search() -> None:
    recovery = running(1)
    recovery.lost(out_of_memory=False)
    assert recovery.started() == [1]
    assert entered(recovery, 2) == []
    change = proven(recovery, 1)
    assert change.send == [2]
    assert change.recall == []


def test_a_suspect_that_leaves_ends_its_trial() -> None:
    recovery = running(1)
    recovery.lost(out_of_memory=False)
    recovery.started()
    entered(recovery, 2)
    assert recovery.end(1).send == [2]


def test_an_engine_that_dies_under_everybody_is_given_up() -> None:
    recovery = running(1, 2, 3, 4)
    ended: list[int] = []
    for losses in itertools.count():
        assert losses < 100
        verdict = recovery.lost(out_of_memory=False)
        ended += verdict.blamed + verdict.given_up
        if len(ended) == 4:
            break
        recovery.started()
    assert sorted(ended) == [1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(200))
def test_the_culprit_is_found_and_nobody_else_is_blamed(seed: int) -> None:
    """A world in which one sequence ends every engine that computes a token for it."""
    rng = random.Random(seed)
    count = rng.randint(1, 40)
    culprit = rng.randrange(count)
    recovery = Recovery()
    recovery.started()
    on_engine = set(entered(recovery, *range(count)))
    blamed: list[int] = []
    losses = 0
    for _ in range(10_000):
        if culprit in on_engine and rng.random() < 0.5:
            losses += 1
            verdict = recovery.lost(out_of_memory=False)
            assert not verdict.given_up
            blamed += verdict.blamed
            on_engine = set(recovery.started())
            continue
        lucky = {each for each in on_engine if each != culprit or rng.random() < 0.2}
        change = recovery.progress(lucky)
        on_engine = (on_engine - set(change.recall)) | set(change.send)
        if blamed and not recovery.is_watching:
            break
    assert blamed == [culprit]
    assert losses <= 16
    assert on_engine == set(range(count)) - {culprit}
