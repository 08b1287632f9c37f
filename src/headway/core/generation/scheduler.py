"""Decide each step: which sequences decode, how far prompts are computed, which sequences wait.

Pure: no clock, no tensors. Decodes come first; the remaining token budget of the step computes
prompts, in chunks. Admission is optimistic: a prompt enters when its own blocks are there. When a
running sequence finds no block for its next token, the one that came last gives up its blocks and
is computed again later; since none is let in that could not run alone, the first always gets on.

`next_step` may be called again before `complete` has brought the last step's tokens: sequences then
count the tokens that are on their way. Steps run in the order in which they were made.
"""

import math
from bisect import insort
from collections import Counter
from collections.abc import Sequence as Tokens

from headway.core.generation.adapters import AdapterSlots
from headway.core.generation.blocks import BlockTables
from headway.core.generation.limits import EngineLimits
from headway.core.generation.pace import ChunkPace, IdleStart
from headway.core.generation.prefix_order import PrefixOrder
from headway.core.generation.sequence import Finished, FinishReason, Progress, Sequence
from headway.core.generation.step import Decode, Prefill, Step
from headway.core.generation.waiting import Waiting
from headway.core.items import Priority, Wait
from headway.core.queueing.deadlines import Deadlines
from headway.errors import DeadlineExceeded, InputTooLarge, InvalidInput, QueueFull

# Where blocks are short, a tenant is preempted that is above its share by this part of all.
_EXCESS = 0.2


class GenerationScheduler:
    def __init__(self, limits: EngineLimits, *, model: str = "") -> None:
        self.limits = limits
        self._tables = BlockTables(limits, model)
        self._blocks = self._tables.blocks
        self._order = PrefixOrder(self._tables)
        self._waiting = Waiting(limits.tenant_weights, limits.ageing_s)
        self._running: list[tuple[tuple[int, float, int], Progress]] = []  # most senior first
        self._all: dict[int, Progress] = {}
        self._slots = list(range(limits.max_sequences - 1, -1, -1))
        self._adapters = AdapterSlots(limits.adapter_slots)
        self._begun: dict[int, Progress] = {}  # running; their prompts are not yet computed
        self._deadlines = Deadlines(self._all)
        self._ended: list[Finished] = []  # for the next step to name
        self._in_flight: dict[int, tuple[int, ...]] = {}  # the sequences that get a token, by step
        self._steps = 0
        self._pace = ChunkPace(
            limits.max_stretch, limits.late_stretch, limits.tile, limits.late_after
        )
        self._idle_start = IdleStart(limits.step_tokens, self._pace)
        self._is_rest_due = False
        self.preemptions = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def blocks_used(self) -> int:
        """Blocks that a running sequence refers to."""
        return self._blocks.count - self._blocks.free

    @property
    def blocks_free(self) -> int:
        """Blocks that hold only a cached prefix count as free: they are given up when needed."""
        return self._blocks.free

    def blocks_in_tables(self) -> set[int]:
        """`blocks_used`, counted one by one from all tables: for tests and reports."""
        return {block for _, progress in self._running for block in progress.blocks}

    # ---- sequences arrive and leave

    def submit(self, sequence: Sequence, resumed: Tokens[int] | None = None) -> None:
        """Queue a sequence. `resumed`: its tokens from a lost engine, which are computed again. The
        queue's limit does not apply to a resumed sequence, because it was admitted before."""
        self._check(sequence)
        if resumed is None and len(self._waiting) >= self.limits.max_queue:
            limit = self.limits.max_queue
            raise QueueFull(f"the queue is full ({limit} sequences)", limit=limit)
        root = self._tables.prefixes.root(sequence.adapter, sequence.salt)
        progress = self._all[sequence.id] = Progress(sequence, root)
        progress.tokens += resumed or ()
        self._waiting.enter(progress)
        self._order.enter(progress)
        self._idle_start.add(sequence.arrived_at, len(progress.tokens))
        if sequence.deadline < math.inf:
            self._deadlines.add(sequence.deadline, sequence.id)

    def _check(self, sequence: Sequence) -> None:
        assert sequence.id not in self._all, f"sequence {sequence.id} is here; an id is used once"
        if not sequence.prompt:
            raise InvalidInput("the prompt has no tokens")
        if sequence.max_tokens < 1:
            raise InvalidInput(f"max_tokens must be at least 1, not {sequence.max_tokens}")
        if sequence.adapter and not self.limits.adapter_slots:
            raise InvalidInput("adapter: this engine was started without adapters")
        if sequence.deadline <= sequence.arrived_at:
            raise DeadlineExceeded("the deadline had passed before the sequence was queued")
        asked = len(sequence.prompt) + sequence.max_tokens
        room = min(self.limits.max_context, self.limits.blocks * self.limits.block_size)
        if asked > room:
            raise InputTooLarge(
                f"{len(sequence.prompt)} tokens of prompt and {sequence.max_tokens} to generate; "
                f"there is room for {room}",
                limit=room,
            )

    def cancel(self, sequence_id: int) -> None:
        """Cancel a sequence: its blocks are free for the next step. Harmless once it ended."""
        progress = self._all.get(sequence_id)
        if progress is not None:
            self._ended.append(self._end(progress, FinishReason.CANCELLED))

    def complete(self, step: Step, tokens: Tokens[int], seconds: float = 0.0) -> list[Finished]:
        """Enter the tokens of a step, in the order of `step.sampled`. Returns ended sequences."""
        sampled = self._in_flight.pop(step.id, ())
        if seconds > 0.0:
            self._pace.observe(step.tokens, seconds, has_prompts=bool(step.prefill))
        ended = []
        for sequence_id, token in zip(sampled, tokens, strict=bool(sampled)):
            progress = self._all.get(sequence_id)
            if progress is None:
                continue  # it ended while the step ran
            progress.pending -= 1
            known = progress.tokens
            known.append(token)
            sequence = progress.sequence
            generated = len(known) - len(sequence.prompt)
            if token in sequence.stop_ids and generated > sequence.min_tokens:
                ended.append(self._end(progress, FinishReason.STOP))
            elif generated >= sequence.max_tokens:
                ended.append(self._end(progress, FinishReason.LENGTH))
            elif progress.computed // self.limits.block_size > progress.registered:
                self._tables.register(progress)
        return ended

    def expected_s(self, step: Step) -> float:
        """The expected time of a step, rather too short than too long."""
        return self._pace.expected_s(step.tokens, has_prompts=bool(step.prefill))

    def forget_adapter(self, adapter: str) -> None:
        """The adapter was unloaded. Its sequences have ended, or end soon."""
        self._adapters.forget(adapter)

    def reset(self) -> None:
        """The engine and the content of all blocks are lost: compute all known tokens again."""
        self._in_flight.clear()
        for _, progress in reversed(self._running[:]):
            self._preempt(progress)
        for progress in self._all.values():
            progress.pending = 0
        self._tables.prefixes.forget()
        self._adapters.lose()

    # ---- one step

    def next_step(self, now: float) -> Step | Wait:
        self._expire(now)
        begins_at = self._idle_start.begins_at()
        if begins_at > now and not (self._running or self._ended):
            return Wait(min(begins_at, self._deadlines.next_at()))
        plan = _Plan(now)
        self._decode(plan)
        if self._waiting.adapters:
            self._claim_slots(now)
        if self._begun or len(self._waiting):
            self._order.note()
            plan.bursts = self._waiting.bursts()
            plan.left = self._budget(plan, now)
            self._prefill(now, plan)
        finished, self._ended = tuple(self._ended), []
        if not (plan.decode or plan.prompts or plan.preempted or finished):
            return Wait(self._deadlines.next_at())
        self._steps += 1
        step = Step(
            self._steps,
            decode=tuple(plan.decode.values()),
            prefill=tuple(_prefill_of(*each) for each in plan.prompts.values()),
            preempted=tuple(plan.preempted),
            finished=finished,
            placed=self._adapters.placed(),
        )
        if step.has_work:
            self._in_flight[step.id] = step.sampled
            self._is_rest_due = self.limits.has_rests and bool(step.prefill)
        if step.has_work or not len(self._waiting):
            self._idle_start.reset()
        return step

    def _budget(self, plan: "_Plan", now: float) -> int:
        decodes = len(plan.decode)
        left = self.limits.step_tokens - decodes
        if not self.limits.chunking or not decodes:
            return left
        prompts = list(self._begun.values())
        head = self._head(now)
        if head is not None:
            prompts.append(head[0])
        lateness = max(
            (self._pace.lateness(len(each.tokens), now - each.waiting_since) for each in prompts),
            default=0.0,
        )
        is_urgent = lateness >= 1.0 or (head is not None and head[1] is Priority.HIGH)
        if self._is_rest_due and not is_urgent:
            return 0
        # If more sequences wait than decode, a longer step delays few and serves many.
        entering = len(self._begun) + min(len(self._waiting), len(self._slots))
        haste = max(lateness, entering / decodes)
        budget = self._pace.chunk(decodes, left, haste)
        if plan.bursts:
            at_most = self.limits.burst_stretch
            plan.reserve = budget - self._pace.chunk(decodes, left, haste, at_most)
        return budget

    def _decode(self, plan: "_Plan") -> None:
        """One token for every running sequence whose prompt is computed, the most senior first.

        So a sequence that is preempted is junior to all that are already in the step.
        """
        size = self.limits.block_size
        charge = self._waiting.charge
        decode, running, index = plan.decode, self._running, 0
        while index < len(running):
            progress = running[index][1]
            index += 1
            if not progress.is_decoding or progress.has_all:
                continue
            position = progress.computed
            if position == len(progress.blocks) * size:
                if not self._free_a_block(progress, plan):
                    break
                self._tables.grow(progress)
            progress.computed += 1
            progress.pending += 1
            sequence = progress.sequence
            charge(progress, 1)
            added = _new_blocks(progress) if progress.new_blocks else ()
            decode[sequence.id] = Decode(sequence.id, progress.slot, position, added)

    def _free_a_block(self, progress: Progress, plan: "_Plan") -> bool:
        """Preempt from the end until a block is free. False: that was the sequence itself."""
        while not self._blocks.free:
            victim = self._running[-1][1]
            self._preempt(victim, plan)
            if victim is progress:
                return False
        return True

    # ---- prompts

    def _prefill(self, now: float, plan: "_Plan") -> None:
        """Share the remaining budget among prompts: by class, first begun prompts, then new ones.

        A prompt in progress leaves half of the budget to prompts that are shorter than what it
        still needs; what they do not take is its own again. One of a burst leaves all of it to
        prompts of other accounts.
        """
        is_short = bool(plan.preempted)  # blocks are short: newcomers would be preempted next
        for kind in Priority:
            may_admit = len(self._waiting) and (kind is Priority.HIGH or not is_short)
            begun = sorted(
                (each for each in self._begun.values() if each.seniority[0] == kind),
                key=lambda each: each.seniority,
            )
            first = [each for each in begun if each.account not in plan.bursts]
            shortest = min((each.length - each.computed for each in first), default=math.inf)
            self._grant(first, plan, keep=plan.left // 2 if first and may_admit else 0)
            if may_admit:
                behind = plan.bursts if len(first) < len(begun) else frozenset[str]()
                self._admit(now, kind, plan, shortest, behind)
            self._grant(begun, plan)
            if may_admit and begun and all(each.is_decoding for each in begun):
                self._admit(now, kind, plan, math.inf)

    def _grant(self, prompts: list[Progress], plan: "_Plan", *, keep: int = 0) -> None:
        for progress in prompts:
            left = progress.length - progress.computed
            room = plan.left_for(progress) - keep
            count = min(room, left) if self.limits.chunking else left
            if progress.sequence.id not in self._begun or count <= 0:
                continue  # it decodes by now, or was preempted for one that was admitted since
            plan.prompts.setdefault(progress.sequence.id, (progress, progress.computed))
            plan.left -= count
            progress.computed += count
            self._waiting.charge(progress, count)
            self._tables.register(progress)
            if count == left:
                progress.pending += 1
                progress.is_decoding = True
                del self._begun[progress.sequence.id]

    def _admit(
        self,
        now: float,
        kind: Priority,
        plan: "_Plan",
        shortest: float,
        behind: frozenset[str] = frozenset(),
    ) -> None:
        """Admit waiting sequences while the budget, the slots and the blocks last; none of the
        accounts in `behind`."""
        while plan.left > 0:
            head = self._head(now)
            if head is None or head[1] is not kind or head[0].pending or head[0].account in behind:
                return
            progress = head[0]
            if plan.left_for(progress) <= 0:
                return
            cached = self._tables.cached(progress)
            left = len(progress.tokens) - len(cached) * self.limits.block_size
            if left > shortest or not self._may_begin(left, plan):
                return
            if progress.sequence.id in plan.preempted:
                return
            if not self._has_room(progress, cached):
                if not self._make_room(progress, cached, plan):
                    return
                cached = self._tables.cached(progress)
            self._start(progress, kind, cached, now)
            self._grant([progress], plan)

    def _head(self, now: float) -> tuple[Progress, Priority] | None:
        """The next sequence with an adapter that has a slot or can get one."""
        may_start = self._adapters.can_take if self._waiting.adapters else None
        return self._waiting.head(now, self._order.choose, may_start)

    def _claim_slots(self, now: float) -> None:
        def is_aged(adapter: str) -> bool:
            return now - self._waiting.oldest(adapter) > self.limits.ageing_s

        self._adapters.claim(self._waiting.adapters, is_aged)

    def _may_begin(self, tokens: int, plan: "_Plan") -> bool:
        """May the prompt join? Without chunks it needs room for all of it, or a step of its own."""
        return self.limits.chunking or tokens <= plan.left or not plan.prompts

    def _start(self, progress: Progress, kind: Priority, cached: list[int], now: float) -> None:
        sequence = progress.sequence
        self._waiting.admitted(progress)
        self._order.leave(progress)
        self._tables.open(progress, cached)
        progress.begin(now, self.limits.block_size)
        progress.slot = self._slots.pop()
        progress.adapter_slot = self._adapters.take(sequence.adapter)
        progress.is_new = True
        progress.seniority = (kind, sequence.arrived_at, sequence.id)
        insort(self._running, (progress.seniority, progress), key=lambda entry: entry[0])
        self._begun[sequence.id] = progress

    # ---- room

    def _has_room(self, progress: Progress, cached: list[int]) -> bool:
        needed = self._tables.needed(progress, cached)
        if self._running:  # a block for the next token of each: else they would be preempted soon
            needed += max(len(self._running), self.limits.blocks // 100)
        return bool(self._slots) and needed <= self._blocks.free

    def _make_room(self, progress: Progress, cached: list[int], plan: "_Plan") -> bool:
        """Preempt lower classes, or tenants above their share; none if that is not enough."""
        victims = [each for each in self._victims(progress) if each.sequence.id not in plan.prompts]
        needed = self._tables.needed(progress, cached)
        if needed > self._blocks.free + sum(len(each.blocks) for each in victims):
            return False
        for victim in victims:
            self._preempt(victim, plan)
            if self._has_room(progress, self._tables.cached(progress)):
                return True
        return False

    def _victims(self, progress: Progress) -> list[Progress]:
        """The sequences that may be preempted for this one, the newest first."""
        kind = progress.sequence.priority
        lower = [each for (rank, _, _), each in reversed(self._running) if rank > kind]
        if lower or len(self._waiting.tenants) < 2:
            return lower
        running = (each for _, each in self._running)
        excess = _excess(Counter(each.sequence.tenant for each in running), self._waiting, progress)
        victims = []
        # Where blocks are short, sequences grow and shares change all the time, and what a victim
        # has computed is computed again: a moment's excess is not enough.
        enough = max(1.0, _EXCESS * len(self._running)) if self._slots else 1.0
        for (rank, _, _), each in reversed(self._running):
            tenant = each.sequence.tenant
            if rank == kind and excess.get(tenant, 0) >= enough:
                excess[tenant] -= 1
                victims.append(each)
        return victims

    # ---- leaving

    def _preempt(self, progress: Progress, plan: "_Plan | None" = None) -> None:
        """Take the sequence's blocks; it waits at its old place. The plan drops its work."""
        self._stop(progress)
        if plan is not None:
            progress.waiting_since = progress.preempted_at = plan.now
            plan.preempted.append(progress.sequence.id)
            if plan.decode.pop(progress.sequence.id, None):
                progress.pending -= 1
        progress.preemptions += 1
        self.preemptions += 1
        self._waiting.push(progress)
        self._order.enter(progress)

    def _stop(self, progress: Progress) -> None:
        self._running.remove((progress.seniority, progress))
        self._begun.pop(progress.sequence.id, None)
        self._tables.close(progress)
        self._slots.append(progress.slot)
        self._adapters.give(progress.sequence.adapter)
        progress.slot = progress.adapter_slot = -1
        progress.is_decoding = False

    def _end(self, progress: Progress, reason: FinishReason) -> Finished:
        sequence = progress.sequence
        if self._waiting.leave(progress):
            self._order.leave(progress)
        else:
            self._stop(progress)
        del self._all[sequence.id]
        return progress.end(reason)

    def _expire(self, now: float) -> None:
        while self._deadlines.next_at() <= now:
            progress = self._all[self._deadlines.pop()]
            self._ended.append(self._end(progress, FinishReason.DEADLINE))


class _Plan:
    """A step while it is being composed."""

    __slots__ = ("bursts", "decode", "left", "now", "preempted", "prompts", "reserve")

    def __init__(self, now: float) -> None:
        self.now = now
        self.decode: dict[int, Decode] = {}
        self.prompts: dict[int, tuple[Progress, int]] = {}  # with the first position to compute
        self.preempted: list[int] = []
        self.left = 0  # tokens
        self.bursts: frozenset[str] = frozenset()  # accounts
        self.reserve = 0  # the part of the remaining tokens that bursts may not use

    def left_for(self, progress: Progress) -> int:
        return self.left - self.reserve if progress.account in self.bursts else self.left


def _excess(running: Counter[str], waiting: Waiting, candidate: Progress) -> dict[str, float]:
    """Running sequences of each tenant above its share; empty if the candidate has its own."""
    weights = {name: waiting.weight(name) for name in waiting.tenants}
    # 0.0: compiled, a sum that begins with 0 takes the weights for whole numbers, and raises.
    unit = running.total() / sum(weights.values(), 0.0)
    own = candidate.sequence.tenant
    if running[own] + 1 > max(1.0, unit * weights[own]):
        return {}
    return {name: count - max(1.0, unit * weights[name]) for name, count in running.items()}


def _prefill_of(progress: Progress, start: int) -> Prefill:
    progress.chunks += 1
    is_first, progress.is_new = progress.is_new, False
    return Prefill(
        progress.sequence.id,
        progress.slot,
        start,
        tuple(progress.tokens[start : progress.computed]),
        _new_blocks(progress),
        is_first,
        progress.is_decoding,
        progress.adapter_slot,
    )


def _new_blocks(progress: Progress) -> tuple[int, ...]:
    added = tuple(progress.new_blocks)
    progress.new_blocks.clear()
    return added
