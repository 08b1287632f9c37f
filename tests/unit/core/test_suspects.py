"""Whose batch took its worker down? Plain calls: batches out, losses in."""

import itertools

import pytest

from headway.core.faults.fitting import Misfit
from headway.core.faults.suspects import Suspects, Verdict
from headway.core.items import Batch, FireReason, Item

MOST = 16


def batch(items: list[Item], batch_id: int = 0) -> Batch:
    rows = sum(item.rows for item in items)
    size = max(item.size for item in items)
    return Batch(batch_id, tuple(items), rows, size, rows, FireReason.IDLE, 0, 0, rows, 0, None)


def items(count: int, first: int = 1) -> list[Item]:
    return [Item(first + n, arrived_at=0.0) for n in range(count)]


class Trial:
    """Runs a lost batch to its end against a worker that dies of the bad ones."""

    def __init__(self, count: int, bad: set[int], max_losses: int = MOST, **unlucky: int) -> None:
        self.suspects = Suspects()
        self.blamed: list[int] = []
        self.given_up: list[int] = []
        self.groups: list[list[int]] = []
        self.bad = bad
        self.max_losses = max_losses
        self.unlucky = unlucky.get("killed_at", -1)  # the run whose worker somebody kills
        self.fits = unlucky.get("fits", 10_000)
        self.misfit: Misfit | None = None
        self.lose(batch(items(count)), out_of_memory=count > self.fits)
        for number in itertools.count(1):
            if not self.suspects.cases:
                return
            self.run(number)

    def run(self, number: int) -> None:
        first = self.suspects.first()
        assert first is not None
        running = batch(self.suspects.take(first), number)
        self.suspects.started(running)
        self.groups.append([item.id for item in running.items])
        too_many = len(running.items) > self.fits
        if self.bad & set(self.groups[-1]) or number == self.unlucky or too_many:
            self.lose(running, out_of_memory=too_many)
        else:
            self.misfit = self.suspects.cleared(running)

    def lose(self, running: Batch, *, out_of_memory: bool) -> None:
        verdict = self.suspects.lost(
            running, running.items, max_losses=self.max_losses, out_of_memory=out_of_memory
        )
        self.blamed += [item.id for item in verdict.blamed]
        self.given_up += [item.id for item in verdict.given_up]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 15, 16, 63, 64])
def test_one_culprit_is_found_wherever_it_is_with_few_reruns(count: int) -> None:
    for culprit in range(1, count + 1):
        trial = Trial(count, {culprit})
        assert (trial.blamed, trial.given_up) == ([culprit], [])
        assert len(trial.groups) <= 12
        cleared = {item for group in trial.groups if culprit not in group for item in group}
        assert cleared == set(range(1, count + 1)) - {culprit}


def test_a_worker_that_somebody_killed_blames_nobody_and_costs_two_reruns() -> None:
    trial = Trial(64, set())
    assert (trial.blamed, trial.given_up) == ([], [])
    assert sorted(item for group in trial.groups for item in group) == list(range(1, 65))
    assert len(trial.groups) == 2


@pytest.mark.parametrize("count", [2, 3, 8, 64])
def test_a_worker_killed_during_the_search_blames_nobody_else(count: int) -> None:
    for killed_at in range(1, 14):
        trial = Trial(count, {2}, killed_at=killed_at)
        assert (trial.blamed, trial.given_up) == ([2], [])


def test_a_lone_item_is_given_a_second_chance_and_no_third() -> None:
    trial = Trial(1, {1})
    assert (trial.blamed, len(trial.groups)) == ([1], 1)


def test_several_culprits_are_found_and_everyone_else_is_cleared() -> None:
    for pair in itertools.combinations(range(1, 65, 7), 2):
        trial = Trial(64, set(pair))
        assert set(trial.blamed) == set(pair)
        assert trial.given_up == []


def test_no_more_workers_are_lost_than_allowed() -> None:
    for most in (0, 1, 5, 16):
        trial = Trial(64, set(range(1, 65)), max_losses=most)
        assert len(trial.groups) == most
        assert sorted(trial.blamed + trial.given_up) == list(range(1, 65))


def test_a_model_that_must_not_run_twice_does_not() -> None:
    trial = Trial(8, {3}, max_losses=0)
    assert (trial.groups, trial.given_up) == ([], list(range(1, 9)))


def test_out_of_memory_halves_until_it_fits_and_tells_what_did_not() -> None:
    trial = Trial(64, set(), fits=5)
    assert (trial.blamed, trial.given_up) == ([], [])
    assert trial.misfit == Misfit(8, 0)
    assert {len(group) for group in trial.groups[-16:]} == {4}


def test_where_one_item_alone_does_not_fit_nothing_is_learned_about_the_number() -> None:
    trial = Trial(4, {2}, fits=1)
    assert (trial.blamed, trial.misfit) == ([2], None)


# ---- leaving


def lost(suspects: Suspects, running: Batch) -> Verdict:
    return suspects.lost(running, running.items, max_losses=MOST, out_of_memory=False)


def test_who_left_while_running_does_not_run_again() -> None:
    suspects, running = Suspects(), batch(items(4))
    suspects.lost(running, running.items[:1], max_losses=MOST, out_of_memory=False)
    assert len(suspects) == 1
    first = suspects.first()
    assert first is not None
    assert suspects.take(first) == [running.items[0]]


def test_a_batch_whose_callers_are_all_gone_is_forgotten() -> None:
    suspects = Suspects()
    suspects.lost(batch(items(4)), (), max_losses=MOST, out_of_memory=False)
    assert not suspects.cases
    assert suspects.first() is None


def test_who_is_cancelled_or_late_while_waiting_leaves() -> None:
    suspects = Suspects()
    lost(suspects, batch([Item(1, 0.0, deadline=5.0), Item(2, 0.0), Item(3, 0.0)]))
    assert suspects.next_deadline() == 5.0
    assert suspects.remove(2)
    assert not suspects.remove(2)
    assert not suspects.remove(77)
    assert [item.id for item in suspects.pop_expired(5.0)] == [1]
    assert (len(suspects), suspects.rows) == (1, 1)
    suspects.remove(3)
    assert not suspects.cases


def test_the_first_in_place_is_the_oldest_of_the_highest_class() -> None:
    suspects = Suspects()
    lost(suspects, batch([Item(1, 0.0)], 1))
    lost(suspects, batch([Item(2, -1.0)], 2))
    first = suspects.first()
    assert first is not None
    assert first.id == 2


def test_groups_of_one_batch_run_one_at_a_time() -> None:
    suspects = Suspects()
    lost(suspects, batch(items(64)))
    first = suspects.first()
    assert first is not None
    running = batch(suspects.take(first), 1)
    suspects.started(running)
    assert suspects.first() is None
    assert len(suspects) == 32
    suspects.cleared(running)
    assert suspects.first() is not None
