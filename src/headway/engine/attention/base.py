"""The interface that a decoder calls for each layer; torch and the kernels implement it."""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch

from headway.engine.cache import KvCache
from headway.engine.inputs import Inputs


class StepLayout(NamedTuple):
    """The places of a step's rows and their pages, for the kernels."""

    keys: list[torch.Tensor]  # of each layer: [page, token, head, feature]
    values: list[torch.Tensor]
    tables: torch.Tensor  # pages, by slot
    slots: torch.Tensor  # of each row
    positions: torch.Tensor  # of each row
    places: torch.Tensor  # where each row's key and value go
    runs: torch.Tensor  # where each begins, and where the last one ends
    decodes: int  # rows, before all others


class Attention(ABC):
    """The attention of one step. A new one is made for every step."""

    def __init__(self, cache: KvCache, inputs: Inputs, *, dtype: torch.dtype) -> None:
        """`dtype`: of the rows that it computes on; other rows are converted."""
        self._cache = cache
        self._inputs = inputs
        self._dtype = dtype

    def __call__(
        self,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        scale: float | None = None,
    ) -> torch.Tensor:
        """Takes queries, keys and values as `[token, head, feature]`; returns the shape of
        queries."""
        given = queries.dtype
        queries, keys, values = (each.to(self._dtype) for each in (queries, keys, values))
        self._write(layer, keys, values)
        if scale is None:
            scale = 1.0 / math.sqrt(queries.shape[-1])
        return self._attend(layer, queries, keys, values, scale).to(given)

    def layout(self) -> StepLayout | None:
        """The step's layout; None: the layers can only be computed one by one."""
        return None

    def _write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write keys and values into the cache, each token's to its place."""
        self._cache.write(layer, self._inputs.places, keys, values)

    @abstractmethod
    def _attend(
        self,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        """The step's keys and values are written; they are given, too."""
