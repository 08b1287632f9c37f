"""Attention by this CPU's kernels: rows read their sequences' pages where they lie.

A chunk's rows are a run, of which some at a time share each page while it is in the cache; a decode
is a run of one row.
"""

import torch

from headway.engine.attention.base import Attention, StepLayout
from headway.engine.cache import KvCache, Tables
from headway.engine.cpu.kernels import Kernels
from headway.engine.inputs import Inputs


class PagedAttention(Attention):
    """Attention over pages. Holds the step's runs."""

    def __init__(self, cache: KvCache, inputs: Inputs, tables: Tables, kernels: Kernels) -> None:
        super().__init__(cache, inputs, dtype=torch.float32)
        self._tables = tables
        self._kernels = kernels
        begins = [*range(inputs.decodes), *(chunk.start for chunk in inputs.chunks)]
        self._runs = torch.tensor([*begins, len(inputs.ids)])

    def layout(self) -> StepLayout:
        return StepLayout(
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
        return out

    def _write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        pages = self._cache.keys[layer], self._cache.values[layer]
        self._kernels.write(keys, values, *pages, self._inputs.places)
