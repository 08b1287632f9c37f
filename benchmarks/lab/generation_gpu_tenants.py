"""Adapters on a GPU while they come and go: what a swap costs the step that it comes before, and
what one tenant's burst costs the others. Stages `adapters-swap` and `adapters-burst`."""

import dataclasses
import itertools
import random
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy
import torch

from benchmarks.lab.generation_gpu_adapters import RANK
from benchmarks.lab.generation_gpu_profile import PACED_HEAD, Paced, paced_row, poisson, run_paced
from benchmarks.report import Bar, Report
from headway.core.generation.limits import EngineLimits
from headway.core.generation.sampling import Sampling
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Sequence
from headway.core.generation.step import Step
from headway.engine.architecture import LlamaSpec
from headway.engine.gpu.steps.adapters import DeviceAdapters
from headway.engine.gpu.steps.decoder import GpuDecoder
from headway.engine.gpu.steps.graphs import MixedGraphSizes
from headway.engine.gpu.steps.inputs import sizes_of
from headway.engine.gpu.steps.runner import DeviceStep, GpuRunner

SLOTS, REGISTERED, HOT = 8, 64, 5
RUNNING = 32
REQUESTS = 600
MOST_STALL = 2.0  # steps
MOST_SLOWER = 1.5
BURST, BURSTS, EVERY_S = 64, 4, 2.5
_SERVED: dict[str, Any] = {
    "block_size": 32,
    "max_context": 2048,
    "adapter_slots": SLOTS,
    "max_stretch": 4.5,
    "late_stretch": 5.5,
    "late_after": 2.6,
    "burst_stretch": 2.0,
    "has_rests": True,
    "tile": 128,
}


def _runner(
    decoder: GpuDecoder, config: dict[str, Any], limits: EngineLimits, count: int
) -> GpuRunner:
    """With `count` adapters registered, as they come from a folder: in pinned memory."""
    placed = DeviceAdapters(
        LlamaSpec.of(config),
        slots=SLOTS,
        sequences=limits.max_sequences,
        max_rank=RANK,
        dtype=torch.bfloat16,
        device="cuda",
    )
    for number in range(count):
        weights = torch.randn(placed._size, dtype=torch.bfloat16, device="cuda") * 0.02
        placed.add(f"a{number}", weights.cpu().pin_memory())
    runner = GpuRunner(decoder, limits, placed)
    runner.warm_up()
    return runner


# ---- swaps


@dataclasses.dataclass(frozen=True, slots=True)
class _Timed:
    step: Step
    device_s: float
    gap_s: float  # from the last step's tokens to its own


def swap(decoder: GpuDecoder, config: dict[str, Any]) -> Report:
    """In one run: steps with a prompt whose adapter comes into a slot, beside steps with a prompt
    whose adapter is there."""
    limits = EngineLimits(
        blocks=4000, max_sequences=RUNNING, step_tokens=1024, ageing_s=0.05, **_SERVED
    )
    runner = _runner(decoder, config, limits, REGISTERED)
    _closed_loop(runner, limits, 100)
    times = _closed_loop(runner, limits, REQUESTS)[20:]
    decode_s = statistics.median(each.device_s for each in times if not each.step.prefill)
    sizes = MixedGraphSizes(limits.step_tokens, limits.max_sequences)
    alike: dict[Any, list[_Timed]] = {}
    for each in times:
        if each.step.prefill and not each.step.placed:
            alike.setdefault(sizes.fitting(sizes_of(each.step)), []).append(each)
    rows: list[list[object]] = []
    stalls: dict[str, list[float]] = {}
    for name in ("device_s", "gap_s"):
        for each in times:
            others = alike.get(sizes.fitting(sizes_of(each.step)), [])
            if each.step.placed and len(others) >= 5:
                usual = statistics.median(getattr(other, name) for other in others)
                stalls.setdefault(name, []).append((getattr(each, name) - usual) / decode_s)
        found = stalls[name]
        prompts = [getattr(t, name) * 1e3 for t in times if t.step.prefill and not t.step.placed]
        swaps = [getattr(t, name) * 1e3 for t in times if t.step.placed]
        rows.append(
            [
                {"device_s": "on the device", "gap_s": "from tokens to tokens"}[name],
                f"{decode_s * 1e3:.2f}",
                f"{statistics.median(prompts):.2f}",
                f"{statistics.median(swaps):.2f}",
                f"{statistics.median(found):.2f}",
                f"{numpy.percentile(found, 99):.2f}",
                f"{max(found):.2f}",
            ]
        )
    worst = max(max(found) for found in stalls.values())
    count = sum(len(each.step.placed) for each in times)
    return Report(
        f"Adapters on a GPU: {REGISTERED} registered, {SLOTS} resident, {RUNNING} sequences, 8B",
        [
            *("ms", "decode step", "step with a prompt", "with a swap"),
            *("stall in steps, p50", "p99", "worst"),
        ],
        rows,
        [Bar(f"a swap stalls no more than {MOST_STALL:g} steps", f"{worst:.2f}", worst <= 2.0)],
        [
            f"an adapter is {runner.adapters._size * 2 / 2**20:.0f} MiB; {count} swaps in "
            f"{len(times)} steps of one run; every fourth request has one of {REGISTERED - HOT} "
            f"adapters, the others one of {HOT}",
            "stall: a step with a swap, less the median of steps with prompts of the same graph "
            "and without one, in decode steps",
        ],
    )


def _closed_loop(runner: GpuRunner, limits: EngineLimits, count: int) -> list[_Timed]:
    """So many requests, as many at once as the engine runs."""
    scheduler = GenerationScheduler(limits)
    coming = _requests(count)

    def submit() -> None:
        for asked in itertools.islice(coming, 1):
            scheduler.submit(asked._replace(arrived_at=time.monotonic()))
            runner.add(asked.id, asked.prompt, Sampling(temperature=0.0))

    for _ in range(RUNNING):
        submit()
    times: list[_Timed] = []
    last = time.perf_counter()
    for running in _steps(runner, scheduler):
        sampled = running.result().tokens
        now = time.perf_counter()
        times.append(_Timed(running.step, running.seconds or 0.0, now - last))
        last = now
        for ended in scheduler.complete(running.step, sampled, running.seconds or 0.0):
            runner.drop(ended.sequence)
            submit()
    return times


def _steps(runner: GpuRunner, scheduler: GenerationScheduler) -> Iterator[DeviceStep]:
    """Each when the next has been handed over."""
    under_way: list[DeviceStep] = []
    while True:
        action = scheduler.next_step(time.monotonic())
        if isinstance(action, Step) and action.has_work:
            under_way.append(runner.start(action))
            if len(under_way) < runner.depth:
                continue
        if not under_way:
            return
        yield under_way.pop(0)


def _requests(count: int) -> Iterator[Sequence]:
    rng = random.Random(1)
    for number in range(count):
        prompt = tuple(rng.randrange(10, 128_000) for _ in range(64))
        kind = HOT + number // 4 % (REGISTERED - HOT) if number % 4 == 0 else number % HOT
        yield Sequence(number, 0.0, prompt, 16 + number % 13, adapter=f"a{kind}")


# ---- bursts


def burst(decoder: GpuDecoder, config: dict[str, Any]) -> Report:
    """Four tenants with an adapter each, 24 requests a second in all; a fifth sends 64 at once."""
    limits = EngineLimits(blocks=8000, max_sequences=256, step_tokens=8192, **_SERVED)
    runner = _runner(decoder, config, limits, 5)
    seconds = BURSTS * EVERY_S + 1.0
    steady = [
        (at, each._replace(tenant=f"t{each.id % 4}", adapter=f"a{each.id % 4}"))
        for at, each in poisson(24.0, seconds, seed=5)
    ]
    bursts = []
    for number, (_, each) in enumerate(poisson(500.0, 1.0, seed=6)[: BURST * BURSTS]):
        at = 1.0 + number // BURST * EVERY_S
        bursts.append((at, each._replace(id=10_000 + number, tenant="t4", adapter="a4")))
    run_paced(runner, sorted(steady + bursts, key=lambda each: each[0])[:200])
    calm = run_paced(runner, steady)
    stormy = run_paced(runner, sorted(steady + bursts, key=lambda each: each[0]))
    hit = _while_bursts_wait(steady, bursts, stormy)
    rows, bars = [], []
    for name, kept in (("all", [each.id for _, each in steady]), ("during a burst", hit)):
        before, after = ([run.first[each] for each in kept] for run in (calm, stormy))
        p50s = [float(numpy.percentile(each, 50)) for each in (before, after)]
        p99s = [float(numpy.percentile(each, 99)) for each in (before, after)]
        rows.append(
            [name, len(kept)]
            + [f"{p50:.1f} / {p99:.1f}" for p50, p99 in zip(p50s, p99s, strict=True)]
            + [f"{p50s[1] / p50s[0]:.2f}×"]
        )
        slower = p50s[1] / p50s[0]
        bars.append(
            Bar(
                f"others' first token, {name}: p50 ≤ {MOST_SLOWER}× without the burst",
                f"{slower:.2f}×",
                slower <= MOST_SLOWER,
            )
        )
    own = [each for number, each in stormy.first.items() if number >= 10_000]
    for name, run in (("without", calm), ("with", stormy)):
        print(name, dict(zip(PACED_HEAD, paced_row(run), strict=True)), flush=True)
    return Report(
        f"Adapters on a GPU: one tenant's bursts of {BURST}, 8B shape (ms, p50 / p99)",
        ["others' first token", "requests", "without", "with", "÷"],
        rows,
        bars,
        [
            f"the bursts' own first tokens: {numpy.percentile(own, 50):.0f} / "
            f"{numpy.percentile(own, 99):.0f} ms; the engine's loop without HTTP, the same "
            "arrivals in both runs",
        ],
    )


def _while_bursts_wait(
    steady: list[tuple[float, Sequence]], bursts: list[tuple[float, Sequence]], run: Paced
) -> list[int]:
    """Those who came while a prompt of a burst was not yet computed."""
    spans: dict[float, float] = {}
    for at, each in bursts:
        spans[at] = max(spans.get(at, 0.0), at + run.first[each.id] / 1e3)
    return [each.id for at, each in steady if any(a <= at < b for a, b in spans.items())]
