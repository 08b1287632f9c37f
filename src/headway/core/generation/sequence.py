"""A sequence: its caller's request, its progress, and how it ended."""

import math
from enum import StrEnum
from typing import NamedTuple

from headway.core.items import Priority


class Sequence(NamedTuple):
    """A caller's request. `n` answers to one prompt are `n` sequences with the same tokens."""

    id: int
    arrived_at: float
    prompt: tuple[int, ...]
    max_tokens: int
    min_tokens: int = 0  # a stop id before this many tokens does not end it
    stop_ids: frozenset[int] = frozenset()
    priority: Priority = Priority.NORMAL
    tenant: str = ""
    deadline: float = math.inf  # the caller's own; the answer is useless afterwards
    adapter: str = ""  # its weights are added to the model's; sequences share blocks within one
    salt: str = ""  # sequences share cached blocks only within one salt


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"  # it produced a stop id
    LENGTH = "length"  # it has the requested number of tokens
    CANCELLED = "cancelled"  # its caller left, or has seen enough
    DEADLINE = "deadline_exceeded"


class Finished(NamedTuple):
    """A sequence ended. The fields explain its latency."""

    sequence: int
    reason: FinishReason
    tokens: int  # generated
    cached_tokens: int  # of the prompt, taken from the prefix cache at its first admission
    chunks: int  # steps that computed part of its prompt
    preemptions: int
    admitted_at: float | None  # first; None: it never ran
    preempted_s: float = 0.0  # how long it waited to be computed again, because blocks were short
    awaited_tokens: int = 0  # the part of `cached_tokens` that it waited for: others computed it


class Progress:
    """How far one sequence has come. Owned and changed by the scheduler alone.

    `tokens` are known. `pending` more were sampled by steps whose results have not come back.
    `computed` counts the positions whose keys and values are in the cache once every issued step
    has run.
    """

    __slots__ = (
        "account",
        "adapter_slot",
        "admitted_at",
        "awaited_tokens",
        "blocks",
        "cached_tokens",
        "charged",
        "chunks",
        "computed",
        "found",
        "is_decoding",
        "is_new",
        "keys",
        "new_blocks",
        "passed",
        "pending",
        "preempted_at",
        "preempted_s",
        "preemptions",
        "registered",
        "root",
        "seniority",
        "sequence",
        "slot",
        "tokens",
        "waiting_since",
        "wanted",
    )

    def __init__(self, sequence: Sequence, root: bytes) -> None:
        self.sequence = sequence
        tenant, adapter = sequence.tenant, sequence.adapter
        self.account = f"{tenant}\0{adapter}" if adapter else tenant  # is charged for its tokens
        self.seniority = (sequence.priority, sequence.arrived_at, sequence.id)
        self.tokens: list[int] = list(sequence.prompt)
        self.pending = 0
        self.computed = 0
        self.is_decoding = False  # all known tokens are computed: each step adds one
        self.blocks: list[int] = []  # its table; empty unless it is running
        self.new_blocks: list[int] = []  # of the table, not yet named by a step
        self.slot = -1
        self.adapter_slot = -1
        self.is_new = False  # no step has named its slot yet
        self.root = root  # the key that its first block's key is chained to
        self.keys: list[bytes] = []  # of its full blocks, as far as they were needed so far
        self.wanted = 0  # keys of blocks that are evicted last while it waits
        self.passed = 0  # how often others started before it
        self.found = -1  # its cached blocks when it began to wait for others to compute more
        self.registered = 0  # the first blocks of the table that were offered to the prefix cache
        self.waiting_since = sequence.arrived_at  # or since it was preempted
        self.admitted_at: float | None = None
        self.cached_tokens = self.awaited_tokens = 0
        self.charged = 0  # positions that its account has paid for; computed again, they are free
        self.chunks = 0
        self.preemptions = 0
        self.preempted_at: float | None = None  # for want of blocks; None: it is not
        self.preempted_s = 0.0

    @property
    def length(self) -> int:
        """The number of tokens, known or pending."""
        return len(self.tokens) + self.pending

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.sequence.prompt)

    @property
    def has_all(self) -> bool:
        """Is no further token to be sampled? (Results may still be pending.)"""
        return self.length - len(self.sequence.prompt) >= self.sequence.max_tokens

    def begin(self, now: float, block_size: int) -> None:
        """It runs, for the first time or again."""
        if self.admitted_at is None:
            self.admitted_at = now
            self.cached_tokens = min(self.computed, len(self.sequence.prompt))
            if self.found >= 0:
                self.awaited_tokens = max(0, self.cached_tokens - self.found * block_size)
        elif self.preempted_at is not None:
            self.preempted_s += now - self.preempted_at
            self.preempted_at = None

    def end(self, reason: FinishReason) -> Finished:
        return Finished(
            sequence=self.sequence.id,
            reason=reason,
            tokens=self.generated,
            cached_tokens=self.cached_tokens,
            chunks=self.chunks,
            preemptions=self.preemptions,
            admitted_at=self.admitted_at,
            preempted_s=self.preempted_s,
            awaited_tokens=self.awaited_tokens,
        )
