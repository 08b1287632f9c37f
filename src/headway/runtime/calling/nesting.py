"""Which batches are under way here, one within another: a model that calls itself, directly or
through others, would wait for its own end.

A context variable holds the chain; tasks and calls of the model inherit it. A task that outlives
the batch that it was made in is no longer within it.
"""

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, TypeAlias

from headway.errors import ModelFailed


class EnclosingBatch:
    __slots__ = ("is_over", "name", "owner")

    def __init__(self, owner: object, name: str) -> None:
        self.owner = owner
        self.name = name
        self.is_over = False


Chain: TypeAlias = tuple[EnclosingBatch, ...]  # the outermost first
_chain: ContextVar[Chain] = ContextVar("headway_chain", default=())
chain_here = _chain.get


def enter(chain: Chain, owner: object, name: str) -> EnclosingBatch:
    """A batch begins in this context, for callers within `chain`. The caller must `leave` it."""
    run = EnclosingBatch(owner, name)
    _chain.set((*chain, run))
    return run


def leave(run: EnclosingBatch) -> None:
    run.is_over = True
    _chain.set(())


def check_not_within(owner: object, name: str) -> Chain:
    """The unfinished batches around this call. Raises ModelFailed if one of them is `owner`'s."""
    chain = tuple(run for run in _chain.get() if not run.is_over)
    if any(run.owner is owner for run in chain):
        path = " -> ".join([*(run.name for run in chain), name])
        raise ModelFailed(f"{name} would wait for itself: {path}")
    return chain


def chain_of(calls: Iterable[Any]) -> Chain:
    """The chains of all callers of a batch, merged: each of them waits for it."""
    found: dict[int, EnclosingBatch] = {}
    for call in calls:
        for run in getattr(call, "chain", ()):
            found[id(run)] = run
    return tuple(found.values())
