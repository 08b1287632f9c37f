"""Adapters on a GPU: kept packed in the host's memory, copied into slots on the device when a step
names them, and added to each row's products by the grouped kernels.

All of one adapter is one stretch of memory, so that a swap is one copy. It is queued in the
device's own order, between the step that last used the slot and the one that needs it now.
"""

from pathlib import Path
from typing import NamedTuple

import torch

from headway.core.generation.step import Step
from headway.engine.adapters.peft import Sizes, Weights, read_adapter
from headway.engine.architecture import LlamaSpec
from headway.engine.gpu.kernels.adapters import (
    Groups,
    Matrices,
    block_for,
    expand,
    group_rows,
    parts_for,
    shrink,
)
from headway.engine.gpu.tuning import AdapterTiles, this_device, tuned_for
from headway.errors import ConfigError


class _Place(NamedTuple):
    """The place of one product's matrices in an adapter's memory."""

    down: slice
    down_shape: tuple[int, int]
    up: slice
    up_shape: tuple[int, int]
    ends: tuple[int, ...]


class DeviceAdapters:
    def __init__(
        self,
        spec: LlamaSpec,
        *,
        slots: int,
        sequences: int,
        max_rank: int,
        dtype: torch.dtype,
        device: str,
        tuning: AdapterTiles | None = None,
    ) -> None:
        self._spec = spec
        self._modules = [spec.products(each) for each in range(spec.layers)]
        self._max_rank = max_rank
        self._rank = max(16, 1 << (max_rank - 1).bit_length())
        self._dtype = dtype
        self.tuning = tuning or tuned_for(this_device().name).adapters
        self._places, self._size = _layout(self._modules, self._rank)
        self._memory = torch.zeros((slots, self._size), dtype=dtype, device=device)
        self._matrices = [
            {name: self._matrices_at(place) for name, place in layer.items()}
            for layer in self._places
        ]
        self._slots = slots
        self._known: dict[str, torch.Tensor] = {}
        self._of_sequence = [-1] * sequences  # the adapter's slot, by the sequence's
        # The same on the device; one more, for rows that only fill a graph's batch.
        self._on_device = torch.full((sequences + 1,), -1, dtype=torch.int32, device=device)
        self._beside = torch.cuda.Stream() if device == "cuda" else None

    def _matrices_at(self, place: _Place) -> Matrices:
        down = self._memory[:, place.down].unflatten(1, place.down_shape)
        up = self._memory[:, place.up].unflatten(1, place.up_shape)
        return Matrices(down, up, place.ends)

    # ---- those there are

    @property
    def adaptable(self) -> Sizes:
        return self._spec.modules()

    def read(self, folder: Path) -> torch.Tensor:
        """Read an adapter's folder. May be called from any thread. Raises ConfigError."""
        return self.packed(read_adapter(folder, self.adaptable, max_rank=self._max_rank))

    def packed(self, weights: Weights) -> torch.Tensor:
        """An adapter in the layout of a slot, in memory that the device reads directly."""
        flat = torch.zeros(self._size, dtype=self._dtype)
        for layer, places in zip(self._modules, self._places, strict=True):
            for product, place in places.items():
                down = flat[place.down].view(place.down_shape)
                up = flat[place.up].view(place.up_shape)
                column = 0
                for piece, (module, (_, width)) in enumerate(layer[product].items()):
                    found = weights.get(module)
                    if found is not None:
                        rank = found.down.shape[0]
                        first = piece * self._rank
                        down[first : first + rank] = found.down
                        up[column : column + width, :rank] = found.up
                    column += width
        return flat.pin_memory() if torch.cuda.is_available() else flat

    def add(self, adapter: str, weights: torch.Tensor) -> None:
        self._known[adapter] = weights

    def drop(self, adapter: str) -> None:
        """Drop an adapter that no sequence uses any more."""
        self._known.pop(adapter, None)

    # ---- steps

    def begin(self, step: Step) -> bool:
        """Place the step's adapters. Returns whether any of its rows has one."""
        for slot, adapter in step.placed:
            self._memory[slot].copy_(self._known[adapter], non_blocking=True)
        mine = self._of_sequence
        for part in step.prefill:
            if part.is_first and mine[part.slot] != part.adapter:
                mine[part.slot] = part.adapter
                self._on_device[part.slot].fill_(part.adapter)
        return any(mine[each.slot] >= 0 for each in step.decode) or any(
            mine[each.slot] >= 0 for each in step.prefill
        )

    def warm_up(self, most_rows: int) -> None:
        """Compile what no graph contains: the kernels for steps with prompts, up to `most_rows`."""
        for rows in {1 << power for power in range(4, most_rows.bit_length())} | {most_rows}:
            slots = torch.zeros(rows, dtype=torch.int32, device=self._memory.device)
            adapted = self.for_rows(slots)
            if rows not in (16, most_rows):
                continue  # the others differ in nothing but how rows are grouped
            for product, matrices in self._matrices[0].items():
                size = (rows, matrices.down.shape[2])
                x = torch.zeros(size, dtype=self._dtype, device=slots.device)
                out = x.new_zeros(rows, matrices.up.shape[1])
                adapted.finish(0, product, adapted.start(0, product, x), out)

    def for_rows(self, slots: torch.Tensor) -> "AdaptedRows":
        """The adapters for rows whose sequences are in these slots."""
        groups = group_rows(self._on_device[slots.long()], self._slots)
        return AdaptedRows(self._matrices, groups, self.tuning, self._beside)


class AdaptedRows:
    """Adds the products of the adapters of one step's rows to the layers' products."""

    def __init__(
        self,
        matrices: list[dict[str, Matrices]],
        groups: Groups,
        tuning: AdapterTiles,
        beside: "torch.cuda.Stream | None",
    ) -> None:
        self._matrices = matrices
        self._groups = groups
        self._tuning = tuning
        self._beside = beside

    def start(self, layer: int, product: str, x: torch.Tensor) -> torch.Tensor:
        """Begin the adapters' part, which runs beside the model's own product of `x`."""
        matrices = self._matrices[layer][product]
        splits = self._tuning.splits if x.shape[0] <= 512 else 1
        parts = parts_for(x, matrices, splits)
        if self._beside is None or product not in self._tuning.beside:
            shrink(x, matrices, self._groups, parts)
            return parts
        self._beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._beside):
            shrink(x, matrices, self._groups, parts)
        return parts

    def finish(self, layer: int, product: str, parts: torch.Tensor, out: torch.Tensor) -> None:
        """Add the adapters' part to `out`, after the model's own product."""
        if self._beside is not None and product in self._tuning.beside:
            torch.cuda.current_stream().wait_stream(self._beside)
        expand(parts, self._matrices[layer][product], self._groups, out, block=self._tuning.block)


def _layout(
    modules: list[dict[str, dict[str, tuple[int, int]]]], rank: int
) -> tuple[list[dict[str, _Place]], int]:
    places, at = [], 0
    for layer in modules:
        own = {}
        for product, pieces in layer.items():
            inner = next(iter(pieces.values()))[0]
            ends, width = [], 0
            for _, out in pieces.values():
                width += out
                ends.append(width)
            if block_for(tuple(ends)) < 16:
                raise ConfigError(
                    f"adapters on a GPU need layers whose widths are multiples of 16, not {ends}",
                    field="adapters",
                )
            down, up = len(pieces) * rank * inner, width * rank
            own[product] = _Place(
                slice(at, at + down),
                (len(pieces) * rank, inner),
                slice(at + down, at + down + up),
                (width, rank),
                tuple(ends),
            )
            at += down + up
        places.append(own)
    return places, at
