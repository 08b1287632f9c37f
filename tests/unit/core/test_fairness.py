import itertools
from collections.abc import Iterator

import pytest

from headway.core.queueing.fairness import Shares, TenantAccount, Turns


def serve(
    shares: Shares[TenantAccount], waiting: dict[str, list[tuple[float, int]]], count: int
) -> list[str]:
    """Serve by tag; everyone's amount is 1."""
    served = []
    for _ in range(count):
        name = min((entries[0], name) for name, entries in waiting.items() if entries)[1]
        tag, _ = waiting[name].pop(0)
        shares.advance(tag)
        shares.leave(shares.account(name), 1)
        served.append(name)
    return served


def flood(
    shares: Shares[TenantAccount], name: str, count: int, order: Iterator[int]
) -> list[tuple[float, int]]:
    account = shares.account(name)
    return [(shares.enter(account, 1, 1.0), next(order)) for _ in range(count)]


def test_those_who_wait_are_served_in_proportion_to_their_weights() -> None:
    shares, order = Shares({"c": 8.0}, TenantAccount), itertools.count()
    waiting = {name: flood(shares, name, 100, order) for name in "abc"}
    served = serve(shares, waiting, 100)
    assert [served.count(name) for name in "abc"] == [pytest.approx(n, abs=1) for n in (10, 10, 80)]


def test_a_tenant_that_was_away_has_saved_up_nothing() -> None:
    shares, order = Shares({}, TenantAccount), itertools.count()
    waiting = {"a": flood(shares, "a", 100, order)}
    serve(shares, waiting, 50)
    waiting["b"] = flood(shares, "b", 100, order)
    assert serve(shares, waiting, 20).count("b") == pytest.approx(10, abs=1)


def test_what_was_charged_and_not_used_is_given_back() -> None:
    shares = Shares({"a": 2.0}, TenantAccount)
    account = shares.account("a")
    shares.enter(account, 4, 4.0)
    shares.leave(account, 4)
    shares.charge(account, -4.0)
    assert shares.enter(account, 1, 1.0) == 0.0


def test_work_may_be_charged_while_it_runs() -> None:
    """Two tenants whose sequences turn out to be of 1 and of 9 tokens get as many tokens."""
    shares = Shares({}, TenantAccount)
    turns, tokens = Turns(shares), {"short": 0, "long": 0}
    for name in tokens:
        account = shares.account(name)
        for _ in range(1000):
            shares.enter(account, 1, 0.0)
        turns.add(account)
    for _ in range(500):
        account = turns.first()
        assert account is not None
        shares.advance(shares.place(account))
        shares.leave(account, 1)
        for _ in range(9 if account.name == "long" else 1):
            shares.charge(account, 1.0)
            tokens[account.name] += 1
    assert tokens["short"] == pytest.approx(tokens["long"], abs=9)


def test_turns_skip_tenants_with_nothing_waiting() -> None:
    shares = Shares({}, TenantAccount)
    turns = Turns(shares)
    assert turns.first() is None
    account = shares.account("a")
    shares.enter(account, 1, 0.0)
    turns.add(account)
    assert turns.first() is account
    shares.leave(account, 1)
    assert turns.first() is None
    shares.enter(account, 1, 0.0)
    turns.add(account)
    assert turns.first() is account


def test_new_weights_count_from_now_on() -> None:
    shares = Shares({}, TenantAccount)
    account = shares.account("a")
    shares.enter(account, 1, 1.0)
    shares.weigh({"a": 4.0})
    assert shares.active_weight == 4.0
    before = account.finish
    shares.enter(account, 1, 1.0)
    assert account.finish - before == pytest.approx(0.25)


def test_accounts_of_tenants_that_went_away_are_closed() -> None:
    shares = Shares({}, TenantAccount)
    for number in range(10_000):
        account = shares.account(f"t{number}")
        shares.advance(shares.enter(account, 1, 1.0))
        shares.leave(account, 1)
    assert len(shares.accounts) < 300
    shares.forget()
    assert not shares.accounts


def test_of_equal_debts_the_last_by_name_are_remembered() -> None:
    """Where not all of them can be: 64 are."""
    shares: Shares[TenantAccount] = Shares({}, TenantAccount)
    names = [f"t{number:03}" for number in range(130)]
    for name in names:
        account = shares.account(name)
        shares.enter(account, 1, charge=9.0 if name < "t010" else 5.0)
        account.held = 0
    account.held = 1  # it leaves last, and then there are too many
    shares.leave(account, 1)
    larger, tied = names[:10], names[10:]
    assert sorted(shares.accounts) == [*larger, *tied[-54:]]
