"""Adapters, logits and 8-bit weights on one GPU: stages of `benchmarks.lab.generation_gpu`.

`logits`: both shapes against transformers in float32. `adapters-right`: a small model, float32:
mixed and alone, merged weights, graphs on and off. `adapters`: what 8 of rank 16 on all layers cost
the 8B. `adapters-swap`: 64 registered, 8 resident. `fp8`: the 8B's layers in 8-bit floats.
"""

import dataclasses
import random
from typing import Any

import torch

from benchmarks.lab.generation_gpu_texts import gap_of, texts_of
from benchmarks.lab.generation_gpu_tuning import graph_us
from benchmarks.report import Bar, Report
from headway.core.generation.limits import EngineLimits
from headway.core.generation.sampling import Sampling
from headway.core.generation.scheduler import GenerationScheduler
from headway.core.generation.sequence import Sequence
from headway.core.generation.step import Step
from headway.engine.adapters.peft import LowRank
from headway.engine.architecture import LlamaSpec
from headway.engine.gpu.kernels.eight_bit import (
    RowScaled,
    multiply_few,
    quantise_rows,
    quantised,
)
from headway.engine.gpu.steps.adapters import DeviceAdapters
from headway.engine.gpu.steps.decoder import GpuDecoder
from headway.engine.gpu.steps.runner import GpuRunner
from headway.engine.gpu.tuning import PRODUCTS, AdapterTiles, Tiles, this_device, tuned_for

RANK, SLOTS, REGISTERED = 16, 8, 64
MOST_COST = 0.15  # of the tokens a second
FP8_TOKENS_S = 7_500


# ---- logits


def logits(name: str, config: dict[str, Any]) -> Report:
    """Our logits of a prompt and of decode steps, in float32 and in bf16, against theirs."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    with torch.device("cuda"):
        theirs = LlamaForCausalLM(LlamaConfig(**config, max_position_embeddings=256)).eval()
    rng = random.Random(0)
    prompts = [[rng.randrange(10, 128_000) for _ in range(length)] for length in (5, 40, 100)]
    with torch.inference_mode():
        rows, bars = [], []
        for dtype, most in ((torch.float32, 1e-3), (torch.bfloat16, None)):
            found, texts = _our_logits(theirs, prompts, dtype)
            wanted = _their_logits(theirs, prompts, texts)
            ours = _error(found, wanted)
            rows.append([str(dtype).removeprefix("torch."), "Headway", f"{ours:.1e}"])
            if most is not None:
                asked = f"{name}: logits in float32 within {most:.0e} of transformers'"
                bars.append(Bar(asked, f"{ours:.1e}", ours <= most))
            else:
                own = _error(_their_logits(theirs.bfloat16(), prompts, texts), wanted)
                rows.append(["bfloat16", "transformers", f"{own:.1e}"])
                asked = f"{name}: in bf16 no further off than 1.25× transformers' own bf16"
                bars.append(Bar(asked, f"{ours / own:.2f}×", ours <= 1.25 * own))
    return Report(
        f"Generation on a GPU: logits, {name} shape, against transformers in float32",
        ["dtype", "whose", "error"],
        rows,
        bars,
        ["error: of all logits of 3 prompts and 7 decodes each, norm of the difference ÷ norm"],
    )


def _our_logits(
    theirs: Any, prompts: list[list[int]], dtype: torch.dtype
) -> tuple[list[torch.Tensor], list[list[int]]]:
    decoder = GpuDecoder(
        LlamaSpec.of(theirs.config.to_dict()),
        iter(theirs.state_dict().items()),
        dtype=dtype,
        device="cuda",
        max_context=256,
    )
    limits = EngineLimits(
        blocks=64, block_size=32, max_context=256, max_sequences=4, step_tokens=256
    )
    runner = GpuRunner(decoder, limits)
    runner.warm_up()
    scheduler = GenerationScheduler(limits)
    found: list[list[torch.Tensor]] = [[] for _ in prompts]
    texts: list[list[int]] = [[] for _ in prompts]
    for number, prompt in enumerate(prompts):
        scheduler.submit(Sequence(number, 0.0, tuple(prompt), 8))
        runner.add(number, tuple(prompt), Sampling(temperature=0.0))
    while isinstance(step := scheduler.next_step(0.0), Step):
        if not step.has_work:
            continue
        running = runner.start(step)
        tokens = running.result().tokens
        for row, (sequence, token) in enumerate(zip(step.sampled, tokens, strict=True)):
            found[sequence].append(runner._logits[row].float().clone())
            texts[sequence].append(token)
        scheduler.complete(step, tokens)
    return [torch.stack(each) for each in found], texts


def _their_logits(
    model: Any, prompts: list[list[int]], texts: list[list[int]]
) -> list[torch.Tensor]:
    found = []
    for prompt, text in zip(prompts, texts, strict=True):
        given = torch.tensor([prompt + text], device="cuda")
        found.append(model(given).logits[0, len(prompt) - 1 : -1].float())
    return found


def _error(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    a, b = torch.cat(found), torch.cat(wanted)
    return float((a - b).norm() / b.norm())


# ---- right


SMALL: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
}


def adapters_right() -> Report:
    """Greedy text in float32: mixed, alone, graphs on and off, and along it merged weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**SMALL, max_position_embeddings=1024, initializer_range=0.3)
    theirs = LlamaForCausalLM(config).float().cuda().eval()
    weights = {f"a{rank}": _weights(rank, seed=rank) for rank in (2, 4, 8, 16)}
    limits = EngineLimits(
        blocks=400, block_size=16, max_context=600, max_sequences=16, step_tokens=128
    )
    rng = random.Random(5)
    names = ["", *weights]
    asked = [
        (names[number % 5], [rng.randrange(1, 1000) for _ in range(rng.choice((3, 40, 150)))])
        for number in range(30)
    ]
    mixed = _adapted_texts(theirs, limits, weights, asked)
    without = _adapted_texts(theirs, limits, weights, asked, has_graphs=False)
    scarce = dataclasses.replace(limits, adapter_slots=2)
    swapped = _adapted_texts(theirs, scarce, weights, asked)
    alone = [_adapted_texts(theirs, limits, weights, [each])[0] for each in asked[:10]]
    gap = 0.0
    for name in names:
        merged = _merged(theirs, weights.get(name, {}))
        for (own, prompt), text in zip(asked, mixed, strict=True):
            if own == name:
                gap = max(gap, gap_of(merged, prompt, text))
    bars = [
        Bar("mixed = alone, text exact", f"{mixed[:10] == alone}", mixed[:10] == alone),
        Bar("graphs on = off, text exact", f"{mixed == without}", mixed == without),
        Bar("8 slots = 2 slots, text exact", f"{mixed == swapped}", mixed == swapped),
        Bar("merged weights' argmax or within 1e-3", f"{gap:.1e}", gap <= 1e-3),
    ]
    differ = len({tuple(text) for text in mixed})
    return Report(
        "Adapters on a GPU: right (two layers, float32)",
        ["sequences", "adapters", "ranks", "different texts"],
        [[len(asked), len(weights), "2, 4, 8, 16", differ]],
        bars,
        ["chunked prompts beside decodes; every fifth sequence has no adapter"],
    )


def _weights(rank: int, *, seed: int) -> dict[str, LowRank]:
    generator = torch.Generator().manual_seed(seed)
    return {
        module: LowRank(
            torch.randn(rank, inner, generator=generator) * 0.1,
            torch.randn(out, rank, generator=generator) * 0.1,
        )
        for module, (inner, out) in LlamaSpec.of(SMALL).modules().items()
    }


def _merged(model: Any, weights: dict[str, LowRank]) -> Any:
    import copy

    made = copy.deepcopy(model)
    with torch.no_grad():
        for module, each in weights.items():
            made.get_submodule(module).weight += (each.up @ each.down).cuda()
    return made


def _adapted_texts(
    theirs: Any,
    limits: EngineLimits,
    weights: dict[str, dict[str, LowRank]],
    asked: list[tuple[str, list[int]]],
    *,
    has_graphs: bool = True,
) -> list[list[int]]:
    decoder = GpuDecoder(
        LlamaSpec.of(theirs.config.to_dict()),
        iter(theirs.state_dict().items()),
        dtype=torch.float32,
        device="cuda",
        max_context=600,
    )
    adapters = _device_adapters(SMALL, limits, torch.float32)
    for name, each in weights.items():
        adapters.add(name, adapters.packed(each))
    runner = GpuRunner(decoder, limits, adapters, has_graphs=has_graphs)
    runner.warm_up((1, 4, 16))
    sequences = [
        Sequence(number, 0.0, tuple(prompt), 24, adapter=name)
        for number, (name, prompt) in enumerate(asked)
    ]
    return texts_of(runner, limits, sequences)


def _device_adapters(
    config: dict[str, Any], limits: EngineLimits, dtype: torch.dtype = torch.bfloat16
) -> DeviceAdapters:
    return DeviceAdapters(
        LlamaSpec.of(config),
        slots=limits.adapter_slots,
        sequences=limits.max_sequences,
        max_rank=RANK,
        dtype=dtype,
        device="cuda",
    )


# ---- cost


def adapters(
    decoder: GpuDecoder, config: dict[str, Any], limits: EngineLimits, step_s: Any
) -> Report:
    """Decode steps with 8 adapters, mixed, and without; the kernels tuned on the way."""
    placed = _device_adapters(config, limits)
    placed._memory.normal_(0.0, 0.02)
    runner = GpuRunner(decoder, limits, placed)
    rows, bars, notes = [], [], []
    for count in (32, 128):
        _give(placed, count, has_adapters=True)
        tried = {}
        for tuning in _tunings():
            placed.tuning = tuning
            runner.warm_up((count,))
            tried[tuning] = step_s(runner, count, rounds=1)
        best = min(tried, key=lambda each: tried[each])
        notes.append(f"{count} sequences, ms: " + "; ".join(map(_tried, tried.items())))
        placed.tuning = best
        runner.warm_up((count,))
        adapted_s = step_s(runner, count)
        _give(placed, count, has_adapters=False)
        plain_s = step_s(runner, count)
        cost = 1 - plain_s / adapted_s
        rows.append([count, f"{count / plain_s:,.0f}", f"{count / adapted_s:,.0f}", f"{cost:.1%}"])
        asked = f"8 adapters of rank {RANK}, {count} sequences: ≤ {MOST_COST:.0%} fewer tok/s"
        bars.append(Bar(asked, f"{cost:.1%}", cost <= MOST_COST))
        notes.append(f"{count} sequences: best with {_spelled(best)}")
    return Report(
        "Adapters on a GPU: 8 of rank 16 on all linear layers, mixed, 8B shape, bf16",
        ["sequences", "tok/s without", "tok/s with", "cost"],
        rows,
        bars,
        notes,
    )


def _give(adapters: DeviceAdapters, count: int, *, has_adapters: bool) -> None:
    slots = [slot % SLOTS if has_adapters else -1 for slot in range(count)]
    adapters._of_sequence[:count] = slots
    adapters._on_device[:count] = torch.tensor(slots, dtype=torch.int32).cuda()


def _tunings() -> list[AdapterTiles]:
    none, mlp = frozenset[str](), frozenset(["gate_up", "down"])
    return [
        *(
            AdapterTiles(splits=splits, block=128, beside=beside)
            for splits in (4, 8, 16)
            for beside in (none, mlp, frozenset(PRODUCTS))
        ),
        AdapterTiles(splits=8, block=64),
        AdapterTiles(splits=8, block=256),
        AdapterTiles(splits=8, block=256, beside=none),
    ]


def _spelled(tuning: AdapterTiles) -> str:
    beside = "+".join(each for each in PRODUCTS if each in tuning.beside) or "nothing"
    return f"{tuning.splits} splits, blocks of {tuning.block}, beside: {beside}"


def _tried(item: tuple[AdapterTiles, float]) -> str:
    return f"{_spelled(item[0])} {item[1] * 1e3:.3f}"


# ---- 8-bit weights


def fp8(decoder: GpuDecoder, limits: EngineLimits, step_s: Any) -> Report:
    """Decode steps at 32 sequences; the state that a step leaves beside bf16's."""
    rows, bars = [], []
    plain = {
        layer: {each: getattr(layer_, each) for each in PRODUCTS}
        for layer, layer_ in enumerate(decoder._layers)
    }
    ids = torch.randint(10, 1000, (32,), device="cuda")
    wanted = _states(decoder, ids)
    for name, kind in (("bf16", None), ("fp8", RowScaled)):
        for layer, products in plain.items():
            for each, weight in products.items():
                setattr(decoder._layers[layer], each, weight if kind is None else kind(weight))
        runner = GpuRunner(decoder, limits)
        line: list[object] = [name]
        for count in (32, 128, 1):
            runner.warm_up((count,))
            rate = count / step_s(runner, count)
            line.append(f"{rate:,.0f}")
            if kind is RowScaled and count == 32:
                asked = f"8B with fp8 weights, 32 sequences: ≥ {FP8_TOKENS_S:,} tok/s"
                bars.append(Bar(asked, f"{rate:,.0f}", rate >= FP8_TOKENS_S))
        found = _states(decoder, ids)
        line.append(f"{float((found - wanted).norm() / wanted.norm()):.1e}")
        rows.append(line)
        del runner
        torch.cuda.empty_cache()
    return Report(
        "Generation on a GPU: 8-bit weights, 8B shape, context 512",
        ["layers' weights", "tok/s, 32", "tok/s, 128", "tok/s, 1", "change of the last state"],
        rows,
        bars,
        ["the head stays in bf16; random weights, so the change is no measure of quality"],
    )


def fp8_tune(config: dict[str, Any], rows: int = 32) -> Report:
    """Each product of a layer in each way; the fastest are what `fp8` in the same run uses."""
    size = config["head_dim"]
    qkv = (config["num_attention_heads"] + 2 * config["num_key_value_heads"]) * size
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    shapes = [(qkv, hidden), (hidden, hidden), (2 * wide, hidden), (hidden, wide)]
    lines: list[list[object]] = []
    for width, inner in shapes:
        # Several, so that none of them is still in the cache of the GPU when its turn comes.
        weights = [
            quantised(torch.randn(width, inner, device="cuda"))
            for _ in range(max(2, 400_000_000 // (width * inner)))
        ]
        x, scales = quantise_rows(torch.randn(rows, inner, device="cuda", dtype=torch.bfloat16))
        timed = []
        for tiles in _tile_choices(width, inner):
            try:
                timed.append((_product_us(x, scales, weights, tiles), tiles))
            except Exception as error:  # noqa: BLE001  more shared memory than there is
                print(f"{tiles}: {type(error).__name__}")
        best_us, best = min(timed)
        tuned_for(this_device().name).products[width, inner] = best
        rate = width * inner / best_us / 1e6
        lines.append(
            [f"{width} × {inner}", str(tuple(best)), f"{best_us:.1f} µs", f"{rate:.2f} TB/s"]
        )
        print(f"    ({width}, {inner}): Tiles{tuple(best)},", flush=True)
        del weights
    return Report(
        f"Generation on a GPU: 8-bit products of {rows} rows, 8B shape",
        ["weight", "columns, block, splits, warps, stages", "time", "read"],
        lines,
        [],
    )


def _tile_choices(width: int, inner: int) -> list[Tiles]:
    """Few enough to be compiled in a minute."""
    return [
        Tiles(columns, block, splits, 4, stages)
        for columns in (64, 128)
        for block, stages in ((128, 6), (256, 4))
        for splits in (1, 2, 4, 8)
        if inner // splits >= 4 * block and 120 <= -(-width // columns) * splits <= 600
    ]


def _product_us(x: Any, scales: Any, weights: list[Any], tiles: Tiles) -> float:
    def once() -> None:
        for weight, weight_scales in weights:
            multiply_few(x, scales, weight, weight_scales, torch.bfloat16, tiles)

    return graph_us(once) / len(weights)


def _states(decoder: GpuDecoder, ids: torch.Tensor) -> torch.Tensor:
    """After all layers, of single tokens: attention is left out."""
    shape = decoder.shape
    size = (1, shape.kv_heads, 32, shape.head_size)
    cache = [torch.zeros(size, dtype=decoder.dtype, device="cuda") for _ in range(shape.layers)]
    places = torch.arange(32, dtype=torch.int32, device="cuda")
    with torch.inference_mode():
        return decoder.hidden(ids, places, places, (cache, cache), lambda q, k, v: q).float()
