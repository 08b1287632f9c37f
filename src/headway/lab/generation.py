"""Token-level batching in virtual time: the production scheduler, with a formula for the model.

A step takes `base_s + token_s × tokens`. It compares continuous batching, the same without chunks,
and static batches: padded prompts, and no new sequence until the longest answer is done.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headway.core.generation.limits import EngineLimits
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Sequence
from headway.core.generation.step import Step
from headway.core.items import Wait
from headway.lab.report import new_figure, save
from headway.lab.traces import read_outputs, read_sizes, read_tenants, read_trace
from headway.lab.workload import Sizes, Times

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True, eq=False)
class Conversations:
    """By sequence: its arrival, the lengths of its prompt and its answer, and its tenant."""

    arrivals: Times
    prompts: Sizes
    outputs: Sizes
    tenants: list[str] | None = None  # None: all of one


@dataclass(frozen=True, slots=True)
class StepCost:
    base_s: float
    token_s: float

    def __call__(self, tokens: int) -> float:
        return self.base_s + self.token_s * tokens


@dataclass(frozen=True, slots=True, eq=False)
class GenerationOutcome:
    name: str
    first_token_s: Times  # from arrival
    between_tokens_s: Times
    tokens: int
    lasted_s: float
    steps: int
    preemptions: int = 0
    served: "ServiceRecord | None" = None  # None: all sequences are of one tenant

    def to_json(self) -> dict[str, object]:
        first, between = self.first_token_s * 1e3, self.between_tokens_s * 1e3
        return {
            "policy": self.name,
            "tokens_per_s": self.tokens / self.lasted_s if self.lasted_s else 0.0,
            "first_token_p50_ms": _percentile(first, 50),
            "first_token_p99_ms": _percentile(first, 99),
            "between_tokens_p50_ms": _percentile(between, 50),
            "between_tokens_p99_ms": _percentile(between, 99),
            "steps": self.steps,
            "preemptions": self.preemptions,
            **({} if self.served is None else {"tenants": self.served.by_tenant()}),
        }


def _percentile(values: Times, share: float) -> float:
    return float(np.percentile(values, share)) if len(values) else 0.0


class ServiceRecord:
    """What each tenant got: tokens computed for it, step by step, and its first tokens. Tokens that
    are computed again after a preemption are no service."""

    def __init__(self, owners: list[str]) -> None:
        self._owners = owners
        self._computed = [0] * len(owners)  # by sequence: tokens, at most
        self.begun: dict[str, list[int]] = {name: [] for name in sorted(set(owners))}
        self.ended_at: list[float] = []  # by step
        self.prompt_tokens: dict[str, list[int]] = {name: [] for name in sorted(set(owners))}
        self.output_tokens: dict[str, list[int]] = {name: [] for name in self.prompt_tokens}
        self.first_token_s: dict[str, list[float]] = {name: [] for name in self.prompt_tokens}

    def step(self, step: Step, now: float) -> None:
        self.ended_at.append(now)
        for counts in (self.prompt_tokens, self.output_tokens, self.begun):
            for each in counts.values():
                each.append(0)
        for prefill in step.prefill:
            owner, known = self._owners[prefill.sequence], self._computed[prefill.sequence]
            end = prefill.position + len(prefill.tokens)
            self.begun[owner][-1] += not known
            self.prompt_tokens[owner][-1] += max(0, end - known)
            self._computed[prefill.sequence] = max(known, end)
        for decode in step.decode:
            self._computed[decode.sequence] = decode.position + 1
        for sequence in step.sampled:
            self.output_tokens[self._owners[sequence]][-1] += 1

    def first(self, sequence: int, after_s: float) -> None:
        self.first_token_s[self._owners[sequence]].append(after_s)

    def by_tenant(self) -> dict[str, dict[str, float]]:
        return {
            name: {
                "prompt_tokens": sum(prompts),
                "output_tokens": sum(self.output_tokens[name]),
                "first_token_p50_ms": _percentile(np.array(self.first_token_s[name]) * 1e3, 50),
                "first_token_p99_ms": _percentile(np.array(self.first_token_s[name]) * 1e3, 99),
            }
            for name, prompts in self.prompt_tokens.items()
        }


class _Record:
    """When each sequence got its tokens."""

    def __init__(self, conversations: Conversations) -> None:
        self._arrivals = conversations.arrivals
        owners = conversations.tenants
        self.served = None if owners is None else ServiceRecord(owners)
        self._last: dict[int, float] = {}
        self.first: list[float] = []
        self.between: list[float] = []

    def token(self, sequence: int, now: float) -> None:
        last = self._last.get(sequence)
        if last is None:
            self.first.append(now - float(self._arrivals[sequence]))
            if self.served is not None:
                self.served.first(sequence, self.first[-1])
        else:
            self.between.append(now - last)
        self._last[sequence] = now

    def outcome(self, name: str, now: float, steps: int, preemptions: int = 0) -> GenerationOutcome:
        began = float(self._arrivals[0]) if len(self._arrivals) else 0.0
        tokens = len(self.first) + len(self.between)
        return GenerationOutcome(
            name,
            np.array(self.first),
            np.array(self.between),
            tokens,
            now - began,
            steps,
            preemptions,
            self.served if self.served is not None and self.served.ended_at else None,
        )


def simulate_continuous(
    conversations: Conversations,
    limits: EngineLimits,
    cost: Callable[[int], float],
    *,
    name: str = "continuous",
) -> GenerationOutcome:
    """Play the conversations through the production scheduler: a step takes as long as `cost` says
    of its tokens, and sequences that arrive meanwhile join the next one."""
    scheduler = GenerationScheduler(limits)
    record = _Record(conversations)
    arrivals = conversations.arrivals
    now, ended_at, coming, steps = 0.0, 0.0, 0, 0
    while True:
        while coming < len(arrivals) and arrivals[coming] <= now:
            scheduler.submit(_sequence(conversations, coming, limits))
            coming += 1
        step = scheduler.next_step(now)
        if isinstance(step, Wait):
            now = min(step.until, float(arrivals[coming]) if coming < len(arrivals) else math.inf)
            if now == math.inf:
                return record.outcome(name, ended_at, steps, scheduler.preemptions)
            continue
        seconds = cost(step.tokens)
        now = ended_at = now + seconds
        steps += 1
        scheduler.complete(step, [0] * len(step.sampled), seconds)
        if record.served is not None:
            record.served.step(step, now)
        for sequence in step.sampled:
            record.token(sequence, now)


def _sequence(conversations: Conversations, index: int, limits: EngineLimits) -> Sequence:
    """A sequence with tokens that no other prompt has, so that it shares no blocks."""
    room = limits.max_context
    prompt = min(int(conversations.prompts[index]), room - 1)
    first = index << 24
    return Sequence(
        id=index,
        arrived_at=float(conversations.arrivals[index]),
        prompt=tuple(range(first, first + prompt)),
        max_tokens=min(int(conversations.outputs[index]), room - prompt),
        tenant="" if conversations.tenants is None else conversations.tenants[index],
    )


def simulate_static(
    conversations: Conversations, limits: EngineLimits, cost: Callable[[int], float]
) -> GenerationOutcome:
    """Static batches: up to `max_sequences` waiting sequences run until the last is done."""
    record = _Record(conversations)
    arrivals, outputs = conversations.arrivals, conversations.outputs
    now, done, steps = 0.0, 0, 0
    while done < len(arrivals):
        now = max(now, float(arrivals[done]))
        waiting = int(np.searchsorted(arrivals, now, side="right")) - done
        batch = range(done, done + min(waiting, limits.max_sequences))
        longest = int(conversations.prompts[batch.start : batch.stop].max())
        now += cost(len(batch) * longest)
        for produced in range(1, int(outputs[batch.start : batch.stop].max()) + 1):
            if produced > 1:
                now += cost(len(batch))
            steps += 1
            for sequence in batch:
                if produced <= outputs[sequence]:
                    record.token(sequence, now)
        done = batch.stop
    return record.outcome("static", now, steps)


def compare(
    conversations: Conversations, limits: EngineLimits, cost: Callable[[int], float]
) -> list[GenerationOutcome]:
    whole = {name: getattr(limits, name) for name in EngineLimits.__slots__} | {"chunking": False}
    return [
        simulate_continuous(conversations, limits, cost),
        simulate_continuous(conversations, EngineLimits(**whole), cost, name="whole prompts"),
        simulate_static(conversations, limits, cost),
    ]


# ---- traces


def read_conversations(path: Path) -> Conversations:
    """Azure's CSV (TIMESTAMP, ContextTokens, GeneratedTokens) or Mooncake's JSON lines (timestamp
    in ms, input_length, output_length). Raises ConfigError."""
    return Conversations(read_trace(path), read_sizes(path), read_outputs(path), read_tenants(path))


# ---- reports


def to_table(outcomes: list[GenerationOutcome]) -> str:
    lines = [
        f"{'policy':<14} {'tok/s':>9} {'first token, ms':>19} {'between tokens, ms':>21} "
        f"{'preempted':>10}",
        f"{'':<14} {'':>9} {'p50':>9} {'p99':>9} {'p50':>10} {'p99':>10}",
    ]
    for outcome in outcomes:
        each = outcome.to_json()
        lines.append(
            f"{outcome.name:<14} {each['tokens_per_s']:>9.1f} {each['first_token_p50_ms']:>9.1f} "
            f"{each['first_token_p99_ms']:>9.1f} {each['between_tokens_p50_ms']:>10.1f} "
            f"{each['between_tokens_p99_ms']:>10.1f} {outcome.preemptions:>10}"
        )
    for outcome in outcomes:
        for name, own in (outcome.served.by_tenant() if outcome.served else {}).items():
            lines.append(
                f"{outcome.name}, tenant {name}: {own['prompt_tokens']:.0f} tokens of prompts, "
                f"{own['output_tokens']:.0f} of answers; first token p50 "
                f"{own['first_token_p50_ms']:.1f} ms, p99 {own['first_token_p99_ms']:.1f} ms"
            )
    return "\n".join(lines)


def plot(outcomes: list[GenerationOutcome], path: Path, *, title: str) -> None:
    """Plot the distributions of the first tokens' latencies and of the gaps between tokens."""
    figure = new_figure(10, 4)
    first, between = figure.subplots(1, 2)
    for outcome in outcomes:
        _draw(first, outcome.first_token_s, outcome.name)
        _draw(between, outcome.between_tokens_s, outcome.name)
    first.set_xlabel("time to first token, ms")
    between.set_xlabel("time between tokens, ms")
    first.set_ylabel("share of all")
    first.legend(frameon=False)
    save(figure, path, title)


def _draw(axes: "Axes", values: Times, name: str) -> None:
    if len(values):
        ordered = np.maximum(np.sort(values) * 1e3, 1e-3)
        axes.plot(ordered, np.arange(1, len(ordered) + 1) / len(ordered), label=name)
        axes.set_xscale("log")
