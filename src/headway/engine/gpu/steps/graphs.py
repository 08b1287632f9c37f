"""Which steps have a CUDA graph, and how one is captured.

A graph's launches have fixed shapes. A step takes the smallest graph that it fits into; the rows
that it does not fill are computed and dropped. Steps of decodes differ in their rows. Steps with
prompts differ in their tokens, and in how many decodes they have: few decodes share the device in
another way than many do.
"""

from collections.abc import Callable
from typing import Any

import torch

from headway.engine.gpu.steps.inputs import MixedSizes

MOST_PROMPTS = 16  # in a step with a graph; in one of many tokens launches cost nothing
MOST_TOKENS = 2048


def batch_sizes(most: int) -> list[int]:
    """The batch sizes of decodes that get a graph of their own: few rows are wasted at any size."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, most, 32)]
    return [size for size in sizes if size < most] + [most]


class MixedGraphSizes:
    """The sizes of the graphs for steps with prompts."""

    def __init__(self, step_tokens: int, max_sequences: int) -> None:
        sizes = [16, 32, 64, 96, *range(128, 1024, 64), *range(1024, MOST_TOKENS + 1, 128)]
        self._tokens = [size for size in sizes if size <= step_tokens]
        self._decodes = [*(few for few in (8, 64) if few < max_sequences), max_sequences]
        self._prompts = min(MOST_PROMPTS, max_sequences)

    def all(self) -> list[MixedSizes]:
        """The largest first: the memory that it takes serves the others."""
        found = {
            MixedSizes(tokens, min(decodes, tokens), self._prompts)
            for tokens in self._tokens
            for decodes in self._decodes
        }
        return sorted(found, reverse=True)

    def fitting(self, step: MixedSizes) -> MixedSizes:
        """The graph for such a step; its own sizes, where there is none."""
        if step.prompts > self._prompts:
            return step
        tokens = next((each for each in self._tokens if each >= step.tokens), None)
        if tokens is None:
            return step
        decodes = next(each for each in self._decodes if each >= step.decodes)
        return MixedSizes(tokens, min(decodes, tokens), self._prompts)


class Capture:
    """Captures launches one after the other; they share memory."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, launch: Callable[[], Any]) -> torch.cuda.CUDAGraph:
        """Launch once to compile and to tune, and once into a graph."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            launch()
            graph = torch.cuda.CUDAGraph()
            # Not `torch.cuda.graph`: that collects garbage each time, which takes longer than this.
            torch.cuda.synchronize()
            graph.capture_begin(pool=self._pool)
            try:
                launch()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        return graph
