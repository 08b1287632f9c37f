"""The next step of the engine, in named parts.

A step names changes only (blocks added to a table, tokens to compute), never whole tables: their
engine-side copies stay where they are, on the device too. A decode names no token: the engine has
sampled it, perhaps in a step whose result has not come back yet.
"""

from typing import NamedTuple

from headway.core.generation.sequence import Finished


class Decode(NamedTuple):
    """Compute the last sampled token of a sequence, and sample the next."""

    sequence: int
    slot: int  # its row in the engine's state
    position: int  # of the token that is computed
    blocks: tuple[int, ...]  # appended to its table


class Placed(NamedTuple):
    """Put an adapter into a slot; it replaces the one there."""

    slot: int
    adapter: str


class Prefill(NamedTuple):
    """Compute known tokens of a sequence: a chunk of its prompt, or tokens lost by preemption."""

    sequence: int
    slot: int
    position: int  # of the first token
    tokens: tuple[int, ...]
    blocks: tuple[int, ...]
    is_first: bool  # the slot is this sequence's from now on; its table starts with `blocks`
    is_last: bool  # a token is sampled after it
    adapter: int = -1  # the slot of its adapter while it runs; negative: it has none


class Step(NamedTuple):
    id: int
    decode: tuple[Decode, ...]
    prefill: tuple[Prefill, ...]
    preempted: tuple[int, ...]  # their blocks are free; they come back as a prefill
    finished: tuple[Finished, ...]  # cancelled or late since the last step
    placed: tuple[Placed, ...] = ()  # adapters to put into slots before the step computes

    @property
    def has_work(self) -> bool:
        return bool(self.decode or self.prefill)

    @property
    def tokens(self) -> int:
        """The number of tokens that the step computes."""
        return len(self.decode) + sum(len(each.tokens) for each in self.prefill)

    @property
    def sampled(self) -> tuple[int, ...]:
        """The sequences that get a token from the step, in the order that `complete` expects."""
        return tuple(each.sequence for each in self.decode) + tuple(
            each.sequence for each in self.prefill if each.is_last
        )
