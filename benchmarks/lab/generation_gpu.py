"""Generation on one GPU, random weights, bf16: `python -m benchmarks.lab.generation_gpu [stage …]`.

Stages: `right` (small model in float32 against transformers), `decode` (one step through the paged
engine, context 512), `jobs` (256 requests at once); `logits`, `adapters-right`, `adapters`,
`fp8-tune` and `fp8` are in `generation_gpu_adapters.py`, `adapters-swap` and `adapters-burst` in
`generation_gpu_tenants.py`, `profile` (where the time of a step goes) in
`generation_gpu_profile.py`, `attention-tune` in `generation_gpu_tuning.py`, `crash` (an error of
the device) in `generation_gpu_faults.py`. Each builds, checks and times; a few minutes.
"""

import argparse
import asyncio
import dataclasses
import random
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from benchmarks.lab import generation_gpu_adapters as more
from benchmarks.lab import generation_gpu_faults as faults
from benchmarks.lab import generation_gpu_profile as profiling
from benchmarks.lab import generation_gpu_tenants as tenants
from benchmarks.lab import generation_gpu_tuning as tuning
from benchmarks.lab.generation_gpu_texts import gap_of, texts_of
from benchmarks.lab.llama_shapes import SHAPES as ALL_SHAPES
from benchmarks.lab.trained import BEGINNING, decoded, encoded, greedy, trained
from benchmarks.report import Bar, Report, machine
from headway.core.generation.limits import EngineLimits
from headway.core.generation.sampling import Sampling
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Sequence
from headway.core.generation.step import Decode, Step
from headway.engine.architecture import LlamaSpec
from headway.engine.gpu.steps.decoder import GpuDecoder
from headway.engine.gpu.steps.runner import DeviceStep, GpuRunner
from headway.engine.gpu.steps.warming import warm_mixed
from headway.engine.weights import random_tensors

SHAPES = {name: ALL_SHAPES[name] for name in ("1B", "8B")}
ASKED = {"1B": {"mixed": 25_000, "long": 36_000}, "8B": {"mixed": 6_900, "long": 10_000}}
COPY_BYTES_S, FLOPS = 4.3e12, 790e12  # measured on an H200
CONTEXT = 512
STEPS = 128  # so the context is 576 tokens on average
BLOCK = 32
LIMITS = {"max_context": 2304, "max_sequences": 256, "step_tokens": 8192, "max_stretch": 1000.0}


def decoder_of(name: str) -> GpuDecoder:
    spec = LlamaSpec.of(SHAPES[name])
    tensors = random_tensors(spec, dtype=torch.bfloat16, device="cuda")
    return GpuDecoder(spec, tensors, dtype=torch.bfloat16, device="cuda", max_context=2304)


# ---- one step of decodes


def decode(name: str) -> Report:
    decoder = decoder_of(name)
    rows = []
    limits = EngineLimits(blocks=256 * 24, block_size=BLOCK, **LIMITS)
    runner = GpuRunner(decoder, limits)
    runner.warm_up()
    for count in (1, 32, 128, 256):
        seconds = _step_s(runner, count)
        share = _floor_s(name, count) / seconds
        rows.append([count, f"{seconds * 1e3:.3f} ms", f"{count / seconds:,.0f}", f"{share:.0%}"])
    return Report(
        f"Generation on a GPU: decode steps, {name} shape, bf16, context {CONTEXT}",
        ["sequences", "step", "tok/s", "of the roofline"],
        rows,
        [],
        ["steps through the runner: graphs, paged attention, sampling and tables on the device"],
    )


def _step_s(runner: GpuRunner, count: int, rounds: int = 3) -> float:
    """The best of `rounds` runs of 128 steps, each handed over before the last has ended."""
    per_sequence = -(-(CONTEXT + STEPS) // BLOCK)
    # As if their prompts had been computed; blocks lie anywhere, as in a cache that is in use.
    blocks = torch.randperm(runner.limits.blocks, dtype=torch.int32)[: count * per_sequence]
    runner._tables[:count, :per_sequence] = blocks.view(count, per_sequence).cuda()
    best = float("inf")
    for _ in range(rounds):
        torch.cuda.synchronize()
        started = time.perf_counter()
        running: DeviceStep | None = None
        for number in range(STEPS):
            rows = tuple(Decode(slot, slot, CONTEXT + number, ()) for slot in range(count))
            after = runner.start(Step(number + 1, rows, (), (), ()))
            if running is not None:
                running.result()
            running = after
        assert running is not None
        running.result()
        best = min(best, (time.perf_counter() - started) / STEPS)
    return best


def _weights(name: str) -> int:
    config = SHAPES[name]
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    width = (config["num_attention_heads"] + config["num_key_value_heads"]) * dim
    layer = 2 * hidden * width + 3 * hidden * inner
    return int(config["num_hidden_layers"] * layer + config["vocab_size"] * hidden)


def _floor_s(name: str, count: int) -> float:
    config, weights, dim = SHAPES[name], _weights(name), SHAPES[name]["head_dim"]
    cache = 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * dim
    matrices = max(2 * weights / COPY_BYTES_S, 2 * weights * count / FLOPS)
    return float(matrices + count * (CONTEXT + STEPS / 2) * cache / COPY_BYTES_S)


# ---- whole jobs


def jobs(name: str) -> Report:
    limits = EngineLimits(blocks=20_000 if name == "1B" else 14_000, block_size=BLOCK, **LIMITS)
    runner = GpuRunner(decoder_of(name), limits)
    started = time.perf_counter()
    runner.warm_up()
    warm_s = time.perf_counter() - started
    run_job(runner, limits, *_mixed(9, 64))
    rows, bars = [], []
    for kind, requests in (("mixed", _mixed(0)), ("mixed", _mixed(1)), ("long", _long())):
        job = run_job(runner, limits, *requests)
        rate, asked = job.tokens / job.seconds, ASKED[name][kind]
        rows.append([kind, f"{rate:,.0f}", *job.told()])
        bars.append(Bar(f"{name}, {kind} job: ≥ {asked:,} tok/s", f"{rate:,.0f}", rate >= asked))
    return Report(
        f"Generation on a GPU: 256 requests at once, {name} shape, bf16",
        ["job", "tok/s", *Job.HEAD],
        rows,
        bars,
        [
            "mixed: prompts of 32–512 tokens, 8–128 out; long: in and out 100–1,024",
            f"kernels compiled and graphs captured in {warm_s:.0f} s",
        ],
    )


@dataclasses.dataclass(slots=True)
class Job:
    """What one took, and of that the device's steps with prompts and without, and deciding."""

    HEAD: ClassVar = [
        *("steps", "time", "device, with prompts", "device, without", "of it the scheduler"),
    ]
    tokens: int = 0
    seconds: float = 0.0
    steps: int = 0
    prompts_s: float = 0.0
    decodes_s: float = 0.0
    deciding_s: float = 0.0

    def note(self, running: DeviceStep) -> None:
        if running.step.prefill:
            self.prompts_s += running.seconds or 0.0
        else:
            self.decodes_s += running.seconds or 0.0

    def told(self) -> list[object]:
        seconds = (self.seconds, self.prompts_s, self.decodes_s, self.deciding_s)
        return [self.steps, *(f"{each:.2f} s" for each in seconds)]


def run_job(
    runner: GpuRunner,
    limits: EngineLimits,
    prompts: list[list[int]],
    outputs: list[int],
    sampling: Sampling | None = None,
) -> Job:
    job = Job()
    scheduler = GenerationScheduler(limits)
    started = time.perf_counter()
    for number, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        scheduler.submit(Sequence(number, 0.0, tuple(prompt), output))
        runner.add(number, tuple(prompt), sampling or Sampling(temperature=0.0))
    under_way: list[DeviceStep] = []
    while True:
        before = time.perf_counter()
        action = scheduler.next_step(before)
        job.deciding_s += time.perf_counter() - before
        if isinstance(action, Step) and action.has_work:
            under_way.append(runner.start(action))
            job.steps += 1
            if len(under_way) < runner.depth:
                continue
        if not under_way:
            break
        running = under_way.pop(0)
        sampled = running.result().tokens
        job.note(running)
        job.tokens += len(sampled)
        before = time.perf_counter()
        for ended in scheduler.complete(running.step, sampled):
            runner.drop(ended.sequence)
        job.deciding_s += time.perf_counter() - before
    job.seconds = time.perf_counter() - started
    return job


def _mixed(seed: int, count: int = 256) -> tuple[list[list[int]], list[int]]:
    rng = random.Random(seed)
    prompts = [
        [rng.randrange(10, 128_000) for _ in range(rng.randint(32, 512))] for _ in range(count)
    ]
    return prompts, [rng.randint(8, 128) for _ in range(count)]


def _long() -> tuple[list[list[int]], list[int]]:
    rng = random.Random(0)
    prompts = [[rng.randrange(10_000) for _ in range(rng.randint(100, 1024))] for _ in range(256)]
    return prompts, [rng.randint(100, 1024) for _ in range(256)]


# ---- right


def right() -> Report:
    """Teacher-forced: is each greedy token transformers' own argmax, in any company?"""
    rng = random.Random(3)
    prompts = [[rng.randrange(1, 1000) for _ in range(rng.choice((3, 40, 200)))] for _ in range(24)]
    outputs = [rng.randint(5, 60) for _ in prompts]
    rows: list[list[object]] = []
    worst = 0.0
    for kind, chunk, blocks in (
        *(("Llama", 64, 120), ("Llama", 512, 400), ("Llama", 64, 40)),
        *(("Qwen2", 64, 120), ("Qwen2", 512, 400)),
    ):
        theirs, ours = _small(kind)
        limits = EngineLimits(
            blocks=blocks, block_size=16, max_context=600, max_sequences=16, step_tokens=chunk
        )
        runner = GpuRunner(ours, limits)
        runner.warm_up()
        texts = texts_of(runner, limits, _sequences(prompts, outputs))
        gap = max(gap_of(theirs, prompt, text) for prompt, text in zip(prompts, texts, strict=True))
        worst = max(worst, gap)
        setting = f"{kind}, chunks of {chunk}, {blocks} blocks"
        rows.append([setting, sum(map(len, texts)), f"{gap:.1e}"])
    said, wanted = _said()
    return Report(
        "Generation on a GPU: right (two layers, float32)",
        ["setting", "tokens", "largest gap to transformers' argmax"],
        rows,
        [
            Bar(
                "each greedy token is transformers' argmax or within 1e-4",
                f"{worst:.1e}",
                worst <= 1e-4,
            ),
            Bar("a trained model says exactly what transformers says", said, said == wanted),
        ],
    )


def _said() -> tuple[str, str]:
    """A model that was trained a moment ago, by our engine and by transformers."""
    model = trained("cuda")
    ours = GpuDecoder(
        LlamaSpec.of(model.config.to_dict()),
        iter(model.state_dict().items()),
        dtype=torch.float32,
        device="cuda",
        max_context=256,
    )
    limits = EngineLimits(
        blocks=64, block_size=16, max_context=256, max_sequences=4, step_tokens=64
    )
    runner = GpuRunner(ours, limits)
    runner.warm_up()
    prompts = [encoded(BEGINNING[:size]) for size in (16, 8, 12)]
    texts = texts_of(runner, limits, _sequences(prompts, [80] * 3))
    wanted = [greedy(model, decoded(prompt), 80) for prompt in prompts]
    return " / ".join(map(decoded, texts)), " / ".join(wanted)


def _small(kind: str) -> tuple[Any, GpuDecoder]:
    """Transformers' model and ours of the same weights; Qwen2's have biases."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        vocab_size=1000,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        initializer_range=0.3,
    )
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config).float().cuda().eval()
    for name, each in theirs.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(each, std=0.5)
    ours = GpuDecoder(
        LlamaSpec.of(config.to_dict()),
        iter(theirs.state_dict().items()),
        dtype=torch.float32,
        device="cuda",
        max_context=600,
    )
    return theirs, ours


def _sequences(prompts: list[list[int]], outputs: list[int]) -> list[Sequence]:
    asked = enumerate(zip(prompts, outputs, strict=True))
    return [Sequence(number, 0.0, tuple(prompt), output) for number, (prompt, output) in asked]


# ---- where the time goes


def profile(name: str) -> Iterator[Report]:
    """With the limits of a server on such a machine."""
    served = {
        "max_stretch": 4.5,
        "late_stretch": 5.5,
        "late_after": 2.6,
        "has_rests": True,
        "tile": 128,
    }
    limits = EngineLimits(
        blocks=8000, block_size=BLOCK, **{**LIMITS, "max_context": 4096, **served}
    )
    runner = GpuRunner(decoder_of(name), limits)
    runner.warm_up()
    warm_mixed(runner)
    head = SHAPES[name]["vocab_size"] * SHAPES[name]["hidden_size"]
    yield profiling.steps(runner, name, _weights(name) - head)
    yield profiling.kernels(runner, name)
    yield profiling.products(SHAPES[name])
    rates = {"8B": (25.0, 48.0, 86.0), "1B": (60.0, 125.0, 225.0)}[name]
    yield profiling.paced(runner, name, ((f"{name}", limits, rate, 8.0) for rate in rates))


def reports_of(stage: str, shapes: list[str]) -> Iterator[Report]:  # noqa: C901  a list of stages
    limits = EngineLimits(blocks=128 * 24, block_size=BLOCK, **{**LIMITS, "max_sequences": 128})
    match stage:
        case "right":
            yield right()
        case "decode" | "jobs":
            yield from ({"decode": decode, "jobs": jobs}[stage](name) for name in shapes)
        case "logits":
            yield from (more.logits(name, SHAPES[name]) for name in shapes)
        case "adapters-right":
            yield more.adapters_right()
        case "adapters":
            yield more.adapters(decoder_of("8B"), SHAPES["8B"], limits, _step_s)
        case "adapters-swap":
            yield tenants.swap(decoder_of("8B"), SHAPES["8B"])
        case "adapters-burst":
            yield tenants.burst(decoder_of("8B"), SHAPES["8B"])
        case "crash":
            yield asyncio.run(faults.crash())
        case "attention-tune":
            yield from (tuning.attention_tune(name, SHAPES[name]) for name in shapes)
        case "fp8-tune":
            yield more.fp8_tune(SHAPES["8B"])
        case "fp8":
            yield more.fp8(decoder_of("8B"), limits, _step_s)
        case "profile":
            for name in shapes:
                yield from profile(name)
        case _:
            raise SystemExit(f"there is no stage {stage}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="*", default=["right", "decode", "jobs"])
    parser.add_argument("--shapes", nargs="*", default=list(SHAPES), choices=SHAPES)
    options = parser.parse_args()
    for stage in options.stages:
        for report in reports_of(stage, options.shapes):
            print(report.to_markdown(), flush=True)
            torch.cuda.empty_cache()
    print(f"- {torch.cuda.get_device_name()}, torch {torch.__version__}; {machine()}")


if __name__ == "__main__":
    main()
