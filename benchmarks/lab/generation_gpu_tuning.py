"""Which tiles the attention kernels are fastest with: `python -m benchmarks.lab.generation_gpu
attention-tune`. What it prints belongs into `headway/engine/gpu/tuning.py`.

Every choice is checked against the one in the table before it is timed.
"""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.report import Report
from headway.engine.gpu.kernels.decode import decode_attention, splits_for
from headway.engine.gpu.kernels.prefill import prefill_attention
from headway.engine.gpu.tuning import DecodeTiles, PromptTiles, this_device

PAGE = 32
LAYERS = 16  # calls in a graph, each on pages of its own
MOST_ERROR = 2e-2  # of bf16, in another order of sums

Run = Callable[[Any], torch.Tensor]


def decode_choices() -> list[DecodeTiles]:
    return [
        DecodeTiles(block, warps, stages)
        for block in (32, 64, 128)
        for warps in (2, 4)
        for stages in (2, 3, 4)
    ]


def prompt_choices(group: int) -> list[PromptTiles]:
    """A tile has at least one token, with all heads of its group."""
    return [
        PromptTiles(rows, block, warps, stages)
        for rows in (64, 128)
        for block in (32, 64, 128)
        for warps in (4, 8)
        for stages in (2, 3)
        if rows >= group
    ]


def attention_tune(name: str, config: dict[str, Any]) -> Report:
    heads, size = config["num_key_value_heads"], config["head_dim"]
    group = config["num_attention_heads"] // heads
    lines: list[list[object]] = []
    for rows, context in ((1, 512), (32, 512), (128, 512), (256, 512), (32, 2048)):
        run = _decodes(rows, context, heads, group, size)
        lines.append([f"{rows} decodes, context {context}", *_best(run, decode_choices())])
        print(lines[-1], flush=True)
    for prompts, tokens in ((1, 256), (1, 2048), (16, 512)):
        run = _prompts(prompts, tokens, heads, group, size)
        lines.append([f"{prompts} prompts of {tokens}", *_best(run, prompt_choices(group))])
        print(lines[-1], flush=True)
    return Report(
        f"Generation on a GPU: tiles of attention, {name} shape, bf16",
        ["work", "fastest", "µs a layer", "with the table's"],
        lines,
        [],
        ["decodes: keys at a time, warps, stages; prompts: rows of queries before them"],
    )


def _best(run: Run, choices: list[Any]) -> tuple[str, str, str]:
    wanted = run(None)
    timed = []
    for tiles in choices:
        try:
            found = run(tiles)
            error = float((found - wanted).float().norm() / wanted.float().norm())
            assert error <= MOST_ERROR, f"{tiles} computes something else: {error:.1e}"
            timed.append((graph_us(lambda tiles=tiles: run(tiles)) / LAYERS, tuple(tiles)))
        except Exception as error:  # noqa: BLE001  more shared memory than there is
            print(f"{tiles}: {type(error).__name__}: {error}")
    best_us, best = min(timed)
    table_us = graph_us(lambda: run(None)) / LAYERS
    return str(best), f"{best_us:.1f}", f"{table_us:.1f}"


def _cache(pages: int, heads: int, size: int) -> list[torch.Tensor]:
    """Keys and values of all layers: more than the GPU's cache holds."""
    shape = (2, LAYERS, pages, heads, PAGE, size)
    return list(torch.randn(shape, device="cuda", dtype=torch.bfloat16))


def _decodes(rows: int, context: int, heads: int, group: int, size: int) -> Run:
    columns = -(-context // PAGE)
    keys, values = _cache(rows * columns, heads, size)
    tables = torch.randperm(rows * columns, device="cuda").int().view(rows, columns)
    slots = torch.arange(rows, device="cuda", dtype=torch.int32)
    lengths = torch.full_like(slots, context)
    queries = torch.randn(rows, heads * group, size, device="cuda", dtype=torch.bfloat16)
    splits = splits_for(rows, heads, this_device().processors, 8192)

    def run(tiles: DecodeTiles | None) -> torch.Tensor:
        given = (tables, slots, lengths, size**-0.5)
        return torch.stack(
            [
                decode_attention(queries, *layer, *given, splits=splits, tiles=tiles)
                for layer in zip(keys, values, strict=True)
            ]
        )

    return run


def _prompts(prompts: int, tokens: int, heads: int, group: int, size: int) -> Run:
    columns = -(-tokens // PAGE)
    keys, values = _cache(prompts * columns, heads, size)
    tables = torch.randperm(prompts * columns, device="cuda").int().view(prompts, columns)
    slots = torch.arange(prompts, device="cuda", dtype=torch.int32)
    starts = torch.arange(prompts + 1, device="cuda", dtype=torch.int32) * tokens
    lengths = torch.full_like(slots, tokens)
    shape = (prompts * tokens, heads * group, size)
    queries = torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    def run(tiles: PromptTiles | None) -> torch.Tensor:
        given = (tables, slots, starts, lengths, size**-0.5)
        return torch.stack(
            [
                prefill_attention(queries, *layer, *given, tiles=tiles)
                for layer in zip(keys, values, strict=True)
            ]
        )

    return run


def graph_us(once: Callable[[], object]) -> float:
    """Of what is launched, as a graph; the best of five."""
    once()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()
    times = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return min(times) * 1e3
