"""Token-level batching in virtual time: the production scheduler, with a formula for the model.

A step takes `base_s + token_s × tokens`. It compares continuous batching, the same without chunks,
and static batches: padded prompts, and no new sequence until the longest answer is done.
"""

import csv
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headway.core.generation.limits import EngineLimits
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Sequence
from headway.core.items import Wait
from headway.errors import ConfigError
from headway.lab.workload import Sizes, Times, read_sizes, read_trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OUTPUT_COLUMNS = ("generatedtokens", "output", "output_tokens")


@dataclass(frozen=True, slots=True, eq=False)
class Conversations:
    """By sequence: its arrival, and the lengths of its prompt and its answer."""

    arrivals: Times
    prompts: Sizes
    outputs: Sizes


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
        }


def _percentile(values: Times, share: float) -> float:
    return float(np.percentile(values, share)) if len(values) else 0.0


class _Record:
    """When each sequence got its tokens."""

    def __init__(self, conversations: Conversations) -> None:
        self._arrivals = conversations.arrivals
        self._last: dict[int, float] = {}
        self.first: list[float] = []
        self.between: list[float] = []

    def token(self, sequence: int, now: float) -> None:
        last = self._last.get(sequence)
        if last is None:
            self.first.append(now - float(self._arrivals[sequence]))
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
        )


def simulate_continuous(
    conversations: Conversations,
    limits: EngineLimits,
    cost: Callable[[int], float],
    *,
    name: str = "continuous",
) -> GenerationOutcome:
    """Continuous batching by the production scheduler, after every step and every arrival."""
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
    if path.suffix in {".jsonl", ".ndjson"}:
        return _read_json_lines(path)
    return Conversations(read_trace(path), read_sizes(path), _read_outputs(path))


def _read_json_lines(path: Path) -> Conversations:
    try:
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
        columns = [
            [float(line[name]) for line in lines]
            for name in ("timestamp", "input_length", "output_length")
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"the trace {path} cannot be read: {error!r}") from error
    if len(lines) < 2:
        raise ConfigError(f"the trace {path} needs two lines at least")
    times, prompts, outputs = (np.array(each) for each in columns)
    order = np.argsort(times, kind="stable")
    whole = [np.maximum(1, np.rint(each[order])).astype(np.int64) for each in (prompts, outputs)]
    return Conversations((times[order] - times.min()) / 1e3, *whole)


def _read_outputs(path: Path) -> Sizes:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = [row for row in csv.reader(file) if row]
    names = [cell.strip().lower() for cell in rows[0]]
    found = [names.index(name) for name in _OUTPUT_COLUMNS if name in names]
    if not found:
        raise ConfigError(f"the trace {path} has no column named {', '.join(_OUTPUT_COLUMNS)}")
    try:
        values = np.array([float(row[found[0]]) for row in rows[1:]])
    except (IndexError, ValueError) as error:
        raise ConfigError(f"the trace {path} has a bad length: {error}") from error
    whole: Sizes = np.maximum(1, np.rint(values)).astype(np.int64)
    return whole


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
    return "\n".join(lines)


def plot(outcomes: list[GenerationOutcome], path: Path, *, title: str) -> None:
    """Plot the distributions of the first tokens' latencies and of the gaps between tokens."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("plots need matplotlib: pip install 'headway[plots]'") from error
    figure = Figure(figsize=(10, 4), layout="constrained", dpi=130)
    FigureCanvasAgg(figure)
    first, between = figure.subplots(1, 2)
    for outcome in outcomes:
        _draw(first, outcome.first_token_s, outcome.name)
        _draw(between, outcome.between_tokens_s, outcome.name)
    first.set_xlabel("time to first token, ms")
    between.set_xlabel("time between tokens, ms")
    first.set_ylabel("share of all")
    first.legend(frameon=False)
    figure.suptitle(title, fontsize="medium")
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error}") from error


def _draw(axes: "Axes", values: Times, name: str) -> None:
    if len(values):
        ordered = np.maximum(np.sort(values) * 1e3, 1e-3)
        axes.plot(ordered, np.arange(1, len(ordered) + 1) / len(ordered), label=name)
        axes.set_xscale("log")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#dddddd", linewidth=0.6)
