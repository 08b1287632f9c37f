"""Where the time of a step with prompts goes, and of the way to the first token. On a GPU:
`python -m benchmarks.lab.generation_gpu profile`.

`steps`: the host's time to hand a step over and the device's to compute it, launched kernel by
kernel and as a graph. `kernels`: the device's time by kind of kernel. `products`: the vendor's
matrix products alone. `paced`: Poisson arrivals into the engine's own loop, without processes and
HTTP; a first token's time is split at the moment when its first step was decided.
"""

import dataclasses
import math
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

from benchmarks.report import Report
from headway.core.generation.limits import EngineLimits
from headway.core.generation.sampling import Sampling
from headway.core.generation.sequence import Sequence
from headway.core.generation.step import Decode, Prefill, Step
from headway.engine.gpu.steps.runner import GpuRunner
from headway.runtime.generation.loop import Command, EngineLoop, SubmitSequence
from headway.runtime.generation.loop import Report as Told

FLOPS = 790e12
KINDS = {
    "matrix products": ("gemm", "nvjet", "cutlass", "splitk", "cublas"),
    "attention of prompts": ("_attend_many",),
    "attention of decodes": ("_attend_one", "_join"),
    "rotary embedding, cache": ("_rotate",),
    "norms": ("_rms_norm",),
    "activation": ("_silu",),
    "sampling": ("_best_of",),
}


# ---- single steps


def step_of(limits: EngineLimits, decodes: int, tokens: int, context: int = 512) -> Step:
    """Prompts of 270 tokens and what is left, beside decodes; blocks lie anywhere."""
    rng = random.Random(decodes * 10_000 + tokens)
    free = list(range(limits.blocks))
    rng.shuffle(free)
    rows, prompts = [], []
    for slot in range(decodes):
        rows.append(Decode(slot, slot, context, ()))
    slot = decodes
    while tokens:
        count = min(tokens, 270 if tokens >= 302 else tokens)
        blocks = tuple(free.pop() for _ in range(limits.blocks_for(count)))
        ids = tuple(rng.randrange(10, 1000) for _ in range(count))
        prompts.append(Prefill(slot, slot, 0, ids, blocks, is_first=True, is_last=True))
        tokens -= count
        slot += 1
    return Step(1, tuple(rows), tuple(prompts), (), ())


def seat_decodes(runner: GpuRunner, decodes: int, context: int = 512) -> None:
    """As if their prompts had been computed."""
    columns = runner.limits.blocks_for(context + 1)
    blocks = torch.randint(0, runner.limits.blocks, (decodes, columns), dtype=torch.int32)
    runner._tables[:decodes, :columns] = blocks.cuda()


def timed(runner: GpuRunner, step: Step, rounds: int = 7) -> tuple[float, float]:
    """Seconds: of the host to hand it over, and of the device. Medians."""
    host, device = [], []
    for _ in range(rounds):
        torch.cuda.synchronize()
        before = time.perf_counter()
        running = runner.start(step)
        host.append(time.perf_counter() - before)
        running.result()
        device.append(running.seconds or 0.0)
    return float(numpy.median(host)), float(numpy.median(device))


def steps(runner: GpuRunner, name: str, weights: int) -> Report:
    """Each as a graph, and launched kernel by kernel."""
    sizes = [(0, 270), (12, 64), (12, 128), (12, 270), (12, 512), (32, 270), (80, 0), (80, 64)]
    sizes += [(80, 128), (80, 270), (80, 512), (80, 800), (80, 1200), (80, 1900), (128, 4000)]
    sizes += [(0, 8192)]
    rows: list[list[object]] = []
    for decodes, tokens in sizes:
        step = step_of(runner.limits, decodes, tokens)
        seat_decodes(runner, decodes)
        graphed = timed(runner, step)
        with without_graphs(runner):
            eager = timed(runner, step)
        floor = 2 * weights * (decodes + tokens) / FLOPS
        times = [f"{each * 1e3:.2f}" for each in (*eager, *graphed, floor)]
        rows.append([decodes, tokens, *times])
        print(rows[-1], flush=True)
    head = ["decodes", "tokens of prompts", "host, kernel by kernel", "device"]
    return Report(
        f"Profile: a step with prompts, {name} shape, bf16 (ms)",
        [*head, "host, graph", "device, graph", "products at 790 TFLOP/s"],
        rows,
        [],
        ["decodes with 512 tokens of context; a step of more than 2,048 tokens has no graph"],
    )


class without_graphs:
    def __init__(self, runner: GpuRunner) -> None:
        self._runner = runner

    def __enter__(self) -> None:
        self._graphs, self._runner._graphs = self._runner._graphs, {}

    def __exit__(self, *_: object) -> None:
        self._runner._graphs = self._graphs


def kernels(runner: GpuRunner, name: str) -> Report:
    """Of a step, by kind; what the device did nothing in is the rest."""
    from torch.profiler import ProfilerActivity, profile

    sizes = [(12, 270), (80, 270), (80, 800), (0, 8192), (80, 0)]
    found: dict[str, list[str]] = {}
    for decodes, tokens in sizes:
        step = step_of(runner.limits, decodes, tokens)
        seat_decodes(runner, decodes)
        _, device_s = timed(runner, step, 3)
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            runner.start(step).result()
            torch.cuda.synchronize()
        spent: dict[str, float] = dict.fromkeys([*KINDS, "other"], 0.0)
        for event in recorded.key_averages():
            if event.self_device_time_total:
                spent[_kind(event.key)] += event.self_device_time_total / 1e3
        spent["between kernels"] = device_s * 1e3 - sum(spent.values())
        for kind, milliseconds in spent.items():
            found.setdefault(kind, []).append(f"{milliseconds:.2f}")
        found.setdefault("step", []).append(f"{device_s * 1e3:.2f}")
    return Report(
        f"Profile: kernels of a step, {name} shape, bf16 (ms)",
        ["kind", *(f"{decodes} + {tokens}" for decodes, tokens in sizes)],
        [[kind, *each] for kind, each in found.items()],
        [],
        ["columns: decodes + tokens of prompts"],
    )


def _kind(kernel: str) -> str:
    low = kernel.lower()
    return next((kind for kind, parts in KINDS.items() if any(p in low for p in parts)), "other")


def products(config: dict[str, Any]) -> Report:
    """TFLOP/s of each product of a layer, by the library that torch prefers and by the other."""
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"] + 2 * config["num_key_value_heads"]
    shapes = [(heads * config["head_dim"], hidden), (hidden, hidden), (2 * wide, hidden)]
    shapes.append((hidden, wide))
    rows: list[list[object]] = []
    for count in (64, 128, 192, 256, 320, 384, 512, 640, 1024, 2048, 8192):
        line: list[object] = [count]
        for width, inner in shapes:
            weights = [
                torch.randn(width, inner, device="cuda", dtype=torch.bfloat16) for _ in range(4)
            ]
            x = torch.randn(count, inner, device="cuda", dtype=torch.bfloat16)
            rates = []
            for library in ("cublas", "cublaslt"):
                torch.backends.cuda.preferred_blas_library(library)
                seconds = _median_s(lambda w=weights, x=x: [x @ each.t() for each in w]) / 4
                rates.append(f"{2 * count * width * inner / seconds / 1e12:.0f}")
            torch.backends.cuda.preferred_blas_library("default")
            line.append(" / ".join(rates))
            del weights
        rows.append(line)
        print(line, flush=True)
    return Report(
        "Profile: matrix products of a layer (TFLOP/s, cuBLAS / cuBLASLt)",
        ["rows", *(f"{width} × {inner}" for width, inner in shapes)],
        rows,
        [],
    )


def _median_s(run: Callable[[], object]) -> float:
    run()
    times = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return float(numpy.median(times))


# ---- the engine's loop, paced


class PacedInbox:
    """Arrivals at their times; ends when all have."""

    def __init__(self, arrivals: list[tuple[float, Sequence]]) -> None:
        self._coming = iter(arrivals)
        self._next = next(self._coming, None)
        self.left = len(arrivals)
        self.started = time.monotonic() + 0.05

    def post(self, command: Command) -> None:
        raise AssertionError(f"nobody posts: {command}")

    def wait_commands(self, until: float) -> list[Command] | None:
        commands: list[Command] = []
        while True:
            now = time.monotonic()
            while self._next is not None and self.started + self._next[0] <= now:
                at, asked = self._next
                asked = asked._replace(arrived_at=self.started + at)
                commands.append(SubmitSequence(asked, Sampling(temperature=0.0)))
                self._next = next(self._coming, None)
            if not self.left:
                return None
            if commands or until <= now:
                return commands
            coming = math.inf if self._next is None else self.started + self._next[0]
            wait = min(until, coming) - now
            if wait > 0.0005:
                time.sleep(min(wait, 0.1) - 0.0003)


@dataclasses.dataclass(slots=True)
class Paced:
    """What a paced run met, in milliseconds."""

    first: dict[int, float] = dataclasses.field(default_factory=dict)
    decided: dict[int, float] = dataclasses.field(default_factory=dict)
    chunks: dict[int, int] = dataclasses.field(default_factory=dict)
    between: list[float] = dataclasses.field(default_factory=list)
    host: list[float] = dataclasses.field(default_factory=list)
    device: list[tuple[int, int, float]] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0


def run_paced(runner: GpuRunner, arrivals: list[tuple[float, Sequence]]) -> Paced:
    """Adapters that sequences name are in the runner's memory already."""
    found = Paced()
    inbox = PacedInbox(arrivals)
    due = {each.id: at for at, each in arrivals}
    last: dict[int, float] = {}
    watched = _Watched(runner, found)

    def report(told: Told) -> None:
        now = time.monotonic() - inbox.started
        for output in told.outputs:
            assert output.error is None, output.error
            sequence = output.sequence
            if output.token is not None:
                found.tokens += 1
                if sequence in last:
                    found.between.append((now - last[sequence]) * 1e3)
                else:
                    found.first[sequence] = (now - due[sequence]) * 1e3
                last[sequence] = now
            if output.finished is not None:
                inbox.left -= 1
                found.chunks[sequence] = output.finished.chunks
                admitted = output.finished.admitted_at or 0.0
                found.decided[sequence] = (admitted - inbox.started - due[sequence]) * 1e3

    loop = EngineLoop(watched, inbox, report)  # type: ignore[arg-type]
    loop._adapters._users.update({each.adapter: set() for _, each in arrivals if each.adapter})
    loop.run()
    found.seconds = time.monotonic() - inbox.started
    return found


class _Watched:
    """A runner; how long the host took for each step, and the device."""

    def __init__(self, runner: GpuRunner, found: Paced) -> None:
        self._runner, self._found = runner, found
        self._running: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def start(self, step: Step) -> Any:
        before = time.perf_counter()
        running = self._runner.start(step)
        self._found.host.append((time.perf_counter() - before) * 1e3)
        self._running = [each for each in self._running if not self._note(each)] + [running]
        return running

    def _note(self, running: Any) -> bool:
        if running.seconds is None:
            return False
        step = running.step
        prompts = step.tokens - len(step.decode)
        self._found.device.append((len(step.decode), prompts, running.seconds * 1e3))
        return True


def poisson(rate: float, seconds: float, seed: int = 0) -> list[tuple[float, Sequence]]:
    """As `generation_online` draws them."""
    rng = numpy.random.default_rng(seed)
    times = numpy.sort(rng.uniform(0.0, seconds, rng.poisson(rate * seconds))).tolist()
    arrivals = []
    for number, at in enumerate(times):
        prompt = rng.integers(10, 100_000, int(rng.integers(32, 513))).tolist()
        arrivals.append((at, Sequence(number, 0.0, tuple(prompt), int(rng.integers(8, 129)))))
    return arrivals


def paced_row(found: Paced) -> list[object]:
    def both(values: list[float]) -> str:
        return f"{numpy.percentile(values, 50):.1f} / {numpy.percentile(values, 99):.1f}"

    mixed = [ms for _, prompts, ms in found.device if prompts]
    alone = [ms for _, prompts, ms in found.device if not prompts]
    busy = sum(mixed) + sum(alone)
    return [
        f"{found.tokens / found.seconds:,.0f}",
        both(list(found.first.values())),
        both(list(found.decided.values())),
        both(found.between),
        both(mixed) if mixed else "–",
        both(alone) if alone else "–",
        f"{len(mixed) / max(1, len(mixed) + len(alone)):.0%}",
        f"{numpy.mean(list(found.chunks.values())):.2f}",
        both(found.host),
        f"{busy / found.seconds / 10:.0f} %",
    ]


PACED_HEAD = [
    *("tok/s", "first token", "of it until decided", "between tokens", "step with prompts"),
    *("step without", "steps with prompts", "chunks", "host a step", "device busy"),
]


def paced(
    runner: GpuRunner, name: str, variants: Iterator[tuple[str, EngineLimits, float, float]]
) -> Report:
    rows: list[list[object]] = []
    plain = runner.limits
    for label, limits, rate, seconds in variants:
        runner.limits = runner._limits = limits
        run_paced(runner, poisson(rate, min(2.0, seconds), seed=99))
        found = run_paced(runner, poisson(rate, seconds))
        rows.append([label, f"{rate:g}", *paced_row(found)])
        print(rows[-1], flush=True)
    runner.limits = runner._limits = plain
    return Report(
        f"Profile: the engine's loop alone, {name} shape, Poisson arrivals (ms, p50 / p99)",
        ["setting", "req/s", *PACED_HEAD],
        rows,
        [],
    )
