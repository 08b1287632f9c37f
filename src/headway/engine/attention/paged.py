"""Attention by this CPU's kernels: rows read their sequences' pages where they lie.

A chunk's rows are a run, which shares each page while it is in the cache; a decode is a run of one
row. Decodes that share a long beginning are left to torch, which reads it once for all of them.
"""

import torch

from headway.engine.attention.base import Attention, Layout
from headway.engine.attention.plain import PlainAttention
from headway.engine.cache import KvCache, Tables
from headway.engine.cpu.kernels import Kernels
from headway.engine.inputs import Inputs


class PagedAttention(Attention):
    """It holds the step's runs."""

    def __init__(self, cache: KvCache, inputs: Inputs, tables: Tables, kernels: Kernels) -> None:
        super().__init__(cache, inputs)
        self._tables = tables
        self._kernels = kernels
        is_shared = any(len(each.rows) > 1 for each in inputs.segments)
        self._sharing = PlainAttention(cache, inputs) if is_shared else None
        self._runs = torch.tensor(self._begins(decodes=not is_shared))

    def layout(self) -> Layout | None:
        if self._sharing is not None:
            return None
        return Layout(
            self._cache.keys,
            self._cache.values,
            self._tables.blocks,
            self._inputs.row_slots,
            self._inputs.positions,
            self._inputs.places,
            self._runs,
            self._inputs.decodes,
        )

    def _attend(
        self,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        out = torch.empty(queries.shape, dtype=torch.float32)
        self._kernels.attend(
            queries,
            self._cache.keys[layer],
            self._cache.values[layer],
            self._tables.blocks,
            self._inputs.row_slots,
            self._inputs.positions,
            self._runs,
            self._inputs.decodes,
            out,
            scale,
        )
        if self._sharing is not None:
            decodes = slice(self._inputs.decodes)
            out[decodes] = self._sharing.decode(layer, queries[decodes], scale)
        return out

    def _write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        pages = self._cache.keys[layer], self._cache.values[layer]
        self._kernels.write(keys, values, *pages, self._inputs.places)

    def _begins(self, *, decodes: bool) -> list[int]:
        """Where each run begins, and where the last one ends."""
        begins = list(range(self._inputs.decodes)) if decodes else []
        begins += [chunk.start for chunk in self._inputs.chunks]
        return [*begins, len(self._inputs.ids)]


def attention_of(
    cache: KvCache, inputs: Inputs, tables: Tables, kernels: Kernels | None
) -> Attention:
    if kernels is None or not kernels.attends(cache.keys[0]):
        return PlainAttention(cache, inputs)
    return PagedAttention(cache, inputs, tables, kernels)
