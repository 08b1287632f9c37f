"""The fairness workloads of VTC (OSDI 2024, arXiv 2401.00588) under the production scheduler.

The paper proves a bound that no machine changes: over every interval in which two tenants both have
requests waiting, the service they get differs by at most 2 · max(wp · input, wq · pool), where an
input token counts wp = 1 and an output token wq = 2. Rates, lengths and the pool of 10,000 tokens
are the paper's; where it names no lengths, ours are in the table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.report import Bar, Benchmark, Report
from headway.core.generation.limits import EngineLimits
from headway.lab.generation import Conversations, GenerationOutcome, StepCost, simulate_continuous
from headway.lab.workload import Times, poisson

_POOL_TOKENS, _BLOCK = 10_000, 16
_COST = StepCost(25e-3, 0.23e-3)  # about Llama-2-7B on an A10G
_INPUT_WEIGHT, _OUTPUT_WEIGHT = 1.0, 2.0
_SECONDS = 360.0

Arrivals = Callable[[np.random.Generator, float], Times]


@dataclass(frozen=True, slots=True)
class Sender:
    """A tenant of a workload."""

    arrivals: Arrivals
    prompt: int = 256
    output: int = 256


def at(rate: float) -> Arrivals:
    def draw(rng: np.random.Generator, seconds: float) -> Times:
        times = poisson(int(rate * seconds * 2) + 50, rate, rng)
        return times[times < seconds]

    return draw


def on_off(rate: float, pause_s: float = 60.0) -> Arrivals:
    """On for as long as it is off."""

    def draw(rng: np.random.Generator, seconds: float) -> Times:
        times = at(rate)(rng, seconds)
        return times[(times // pause_s) % 2 == 0]

    return draw


def rising(most: float) -> Arrivals:
    """From nothing to `most`, evenly."""

    def draw(rng: np.random.Generator, seconds: float) -> Times:
        times = at(most)(rng, seconds)
        return times[rng.random(len(times)) < times / seconds]

    return draw


def shifting(*rates: float) -> Arrivals:
    """One rate after the other, each for as long."""

    def draw(rng: np.random.Generator, seconds: float) -> Times:
        part = seconds / len(rates)
        return np.concatenate([at(r)(rng, part) + i * part for i, r in enumerate(rates)])

    return draw


WORKLOADS: dict[str, Mapping[str, Sender]] = {
    "overload: 1.5, 3/s": {"a": Sender(at(1.5)), "b": Sender(at(3))},
    "overload-multi: 3 × 0.4, 5 × 0.6/s": {
        **{f"a{n}": Sender(at(0.4)) for n in range(3)},
        **{f"b{n}": Sender(at(0.6)) for n in range(5)},
    },
    "proportional: 0.25, 0.5, 1.5/s": {
        "a": Sender(at(0.25)),
        "b": Sender(at(0.5)),
        "c": Sender(at(1.5)),
    },
    "short-long: 8/s 64+64, 1.5/s 256+256": {
        "short": Sender(at(8), 64, 64),
        "long": Sender(at(1.5)),
    },
    "on-off: 2/s with pauses, 3/s": {"a": Sender(on_off(2)), "b": Sender(at(3))},
    "increase: 1/s, 0 to 4/s": {"a": Sender(at(1)), "b": Sender(rising(4))},
    "shift: 0.5, 3, 1/s and 2/s": {"a": Sender(shifting(0.5, 3, 1)), "b": Sender(at(2))},
}


def conversations_of(senders: Mapping[str, Sender], seconds: float, seed: int) -> Conversations:
    parts = []
    for number, (name, sender) in enumerate(senders.items()):
        times = sender.arrivals(np.random.default_rng([seed, number]), seconds)
        parts += [(float(each), sender.prompt, sender.output, name) for each in times]
    parts.sort()
    times, prompts, outputs, names = zip(*parts, strict=True)
    return Conversations(np.array(times), np.array(prompts), np.array(outputs), list(names))


def limits() -> EngineLimits:
    return EngineLimits(
        blocks=_POOL_TOKENS // _BLOCK,
        max_context=2048,
        max_sequences=256,
        step_tokens=512,
        max_queue=1_000_000,
    )


def largest_difference(given: Conversations, outcome: GenerationOutcome) -> tuple[float, float]:
    """The largest difference of service between two tenants over an interval in which both had
    requests waiting, and how long all such times are together."""
    served = outcome.served
    assert served is not None
    assert given.tenants is not None
    ends = np.array(served.ended_at)
    owners = np.array(given.tenants)
    service, waits = {}, {}
    for name in served.begun:
        own = given.arrivals[owners == name]
        service[name] = np.cumsum(
            _INPUT_WEIGHT * np.array(served.prompt_tokens[name])
            + _OUTPUT_WEIGHT * np.array(served.output_tokens[name])
        )
        waits[name] = np.searchsorted(own, ends, side="right") > np.cumsum(served.begun[name])
    largest = together = 0.0
    names = sorted(service)
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            both = waits[a] & waits[b]
            gap = service[a] - service[b]
            for part in _runs(both):
                largest = max(largest, float(gap[part].max() - gap[part].min()))
                together += float(ends[part][-1] - ends[part][0])
    return largest, together


def _runs(flags: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> Sequence[slice]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], flags, [False]]).astype(int)))
    return [slice(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True)]


def fairness(quick: bool) -> Report:
    seconds, seeds = (60.0, 1) if quick else (_SECONDS, 3)
    rows, worst_share, worst_rate = [], 0.0, 1.0
    for name, senders in WORKLOADS.items():
        longest = max(each.prompt for each in senders.values())
        bound = 2 * max(_INPUT_WEIGHT * longest, _OUTPUT_WEIGHT * _POOL_TOKENS)
        gaps, together, rates, alone = [], 0.0, [], []
        for seed in range(seeds):
            given = conversations_of(senders, seconds, seed)
            fair = simulate_continuous(given, limits(), _COST)
            gap, both_s = largest_difference(given, fair)
            one = Conversations(given.arrivals, given.prompts, given.outputs)
            first_come = simulate_continuous(one, limits(), _COST)
            gaps.append(gap)
            together += both_s
            rates.append(fair.tokens / fair.lasted_s)
            alone.append(first_come.tokens / first_come.lasted_s)
        share = max(gaps) / bound
        ratio = min(mine / theirs for mine, theirs in zip(rates, alone, strict=True))
        worst_share, worst_rate = max(worst_share, share), min(worst_rate, ratio)
        rows.append(
            [
                name,
                f"{together / seeds:.0f} s",
                f"{max(gaps):,.0f}",
                f"{bound:,.0f}",
                f"{share:.1%}",
                f"{np.mean(rates):.0f}",
                f"{np.mean(alone):.0f}",
                f"{ratio:.4f}",
            ]
        )
    return Report(
        "VTC's fairness workloads, in virtual time",
        ["workload", "both wait", "largest difference", "bound", "of it", "tokens/s", "FCFS", "÷"],
        rows,
        [
            Bar("difference within the bound, always", f"{worst_share:.1%}", worst_share <= 1),
            Bar("throughput ≥ 0.99 × FCFS", f"{worst_rate:.4f}", worst_rate >= 0.99),
        ],
        [f"{seconds:g} s of arrivals, {seeds} seeds; a pool of {_POOL_TOKENS:,} tokens"],
    )


BENCHMARKS: dict[str, Benchmark] = {"vtc": fairness}
