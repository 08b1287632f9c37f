"""The paged KV cache, and every sequence's block table beside it, on the device."""

import math
import mmap
from dataclasses import dataclass

import torch

from headway.core.generation.limits import EngineLimits

# Not shared with forks of this process; Windows has no such flag, and no forks.
_PRIVATE = {"flags": mmap.MAP_PRIVATE} if hasattr(mmap, "MAP_PRIVATE") else {}


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The properties of a model that decide how large its cache is."""

    layers: int
    kv_heads: int
    head_size: int

    def block_bytes(self, block_size: int, dtype: torch.dtype) -> int:
        size = 2 * self.layers * block_size * self.kv_heads * self.head_size
        return size * int(dtype.itemsize)


class KvCache:
    """Keys and values of every layer, in blocks: `[block, position, head, feature]`."""

    def __init__(
        self, shape: CacheShape, limits: EngineLimits, *, dtype: torch.dtype, device: str
    ) -> None:
        self.block_size = limits.block_size
        size = (limits.blocks, limits.block_size, shape.kv_heads, shape.head_size)
        self.keys = [_zeros(size, dtype, device) for _ in range(shape.layers)]
        self.values = [_zeros(size, dtype, device) for _ in range(shape.layers)]
        self._flat_keys = [each.flatten(0, 1) for each in self.keys]
        self._flat_values = [each.flatten(0, 1) for each in self.values]
        self.is_finite = True  # all that `write` was given

    def write(
        self, layer: int, places: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Put each token's key and value at its place: block number × block size + position."""
        self.is_finite = self.is_finite and bool((keys.sum() + values.sum()).isfinite())
        self._flat_keys[layer].index_copy_(0, places, keys)
        self._flat_values[layer].index_copy_(0, places, values)


class Tables:
    """Block tables by slot, and the token that each slot sampled last. Fixed size, never copied."""

    def __init__(self, limits: EngineLimits, *, device: str) -> None:
        columns = limits.blocks_for(limits.max_context) + 1
        self.blocks = torch.zeros(limits.max_sequences, columns, dtype=torch.int64, device=device)
        self.last = torch.zeros(limits.max_sequences, dtype=torch.int64, device=device)
        self._lengths = [0] * limits.max_sequences

    def start(self, slot: int) -> None:
        self._lengths[slot] = 0

    def append(self, slot: int, blocks: tuple[int, ...]) -> None:
        if not blocks:
            return
        start = self._lengths[slot]
        self._lengths[slot] = start + len(blocks)
        self.blocks[slot, start : start + len(blocks)] = torch.tensor(blocks)


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Zeros, for what is masked is still multiplied, and must not be NaN.

    On the CPU the system's own, which it gives out page by page as they are written: a block that
    was never used takes no memory. And they begin at a page: rows that lie across the processor's
    lines are read a tenth more slowly.
    """
    if device != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    count = math.prod(size)
    memory = mmap.mmap(-1, count * dtype.itemsize, **_PRIVATE)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(size)
