"""How the kernels share their work: measured on one GPU, and made to fit on every other.

The table has what `python -m benchmarks.lab.generation_gpu attention-tune fp8-tune adapters` found
on an H200. Another GPU takes the same, as long as its processors have the memory; else fewer
stages, then smaller blocks. A table of its own is a line in `TUNED`.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch

from headway.errors import ConfigError

PRODUCTS = ("qkv", "out", "gate_up", "down")
_SPARE_BYTES = 4096  # of a processor's shared memory, for what kernels exchange
_LEAST = 16  # of a tile's side: less is nothing for tensor cores


class Device(NamedTuple):
    name: str
    processors: int
    shared_bytes: int  # that one program may have
    capability: tuple[int, int]


H200 = Device("NVIDIA H200", 132, 232_448, (9, 0))


@functools.cache
def this_device() -> Device:
    """The one that this process computes on; without one, Triton's interpreter does not mind."""
    if not torch.cuda.is_available():
        return H200._replace(processors=8)
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Device(
        found.name,
        found.multi_processor_count,
        found.shared_memory_per_block_optin,
        (found.major, found.minor),
    )


def check_device(dtype: torch.dtype, quantization: str, on: Device) -> None:
    """Refuse what the device's tensor cores cannot multiply, before anything is loaded."""
    which = f"{on.name} has compute capability {on.capability[0]}.{on.capability[1]}"
    if dtype is torch.bfloat16 and on.capability < (8, 0):
        raise ConfigError(f'bfloat16 needs 8.0, {which}; set dtype = "float32"', field="dtype")
    if quantization == "fp8":
        if dtype is not torch.bfloat16:
            raise ConfigError("fp8 computes in bfloat16", field="dtype")
        if on.capability < (8, 9):
            raise ConfigError(f"fp8 needs 8.9, {which}", field="quantization")


class Tiles(NamedTuple):
    """Tile sizes for a product of few rows with 8-bit weights."""

    columns: int = 64
    block: int = 256
    splits: int = 1  # of the inner axis, for products too narrow to occupy all of the GPU
    warps: int = 4
    stages: int = 4


class DecodeTiles(NamedTuple):
    block: int = 64  # keys at a time
    warps: int = 2
    stages: int = 3


class PromptTiles(NamedTuple):
    rows: int = 128  # queries: tokens × heads of a group
    block: int = 64
    warps: int = 8
    stages: int = 2


AnyTiles = TypeVar("AnyTiles", Tiles, DecodeTiles, PromptTiles)


@dataclass(frozen=True, slots=True)
class AdapterTiles:
    splits: int = 8  # of the inner dimension, for few rows
    block: int = 128  # columns of a program that expands
    beside: frozenset[str] = frozenset(PRODUCTS)  # shrunk while the model's own product runs


@dataclass(frozen=True, slots=True)
class Tuned:
    """The tuning for one GPU. The defaults are those of an H200."""

    decode: dict[int, DecodeTiles] = field(default_factory=dict)  # by the heads' size
    prompts: dict[int, PromptTiles] = field(default_factory=dict)
    products: dict[tuple[int, int], Tiles] = field(default_factory=dict)  # outputs, inputs
    adapters: AdapterTiles = AdapterTiles()


TUNED: dict[str, Tuned] = {
    H200.name: Tuned(
        decode={64: DecodeTiles(64, 2, 3), 128: DecodeTiles(64, 2, 3)},
        prompts={64: PromptTiles(128, 64, 8, 2), 128: PromptTiles(128, 64, 8, 2)},
        products={  # the 8B shape's, at 32 rows
            (6144, 4096): Tiles(64, 128, 2, 4, 6),
            (4096, 4096): Tiles(64, 256, 2, 4, 4),
            (28672, 4096): Tiles(64, 256, 1, 4, 4),
            (4096, 14336): Tiles(64, 256, 2, 4, 4),
        },
        adapters=AdapterTiles(splits=8, block=128),
    )
}
_SHORTEST = 1024  # inputs of one split


def tuned_for(name: str) -> Tuned:
    return TUNED.get(name, TUNED[H200.name])


def decode_tiles(size: int, item_bytes: int, on: Device) -> DecodeTiles:
    """`size`: the width of a head."""

    def taken(tiles: DecodeTiles) -> int:
        return _LEAST * size * item_bytes + _keys_bytes(tiles, size, item_bytes)

    tiles = tuned_for(on.name).decode.get(size, DecodeTiles())
    return _fitted(tiles, taken, {"stages": 1, "block": _LEAST}, on)


def prompt_tiles(size: int, item_bytes: int, on: Device) -> PromptTiles:
    def taken(tiles: PromptTiles) -> int:
        return tiles.rows * size * item_bytes + _keys_bytes(tiles, size, item_bytes)

    tiles = tuned_for(on.name).prompts.get(size, PromptTiles())
    return _fitted(tiles, taken, {"stages": 1, "block": _LEAST, "rows": _LEAST}, on)


def product_tiles(width: int, inner: int, rows: int, on: Device) -> Tiles:
    """The measured ones, or enough programs for each processor to have two."""
    tiles = tuned_for(on.name).products.get((width, inner))
    if tiles is None:
        programs = -(-width // Tiles().columns)
        splits = max(1, min(2 * on.processors // programs, inner // _SHORTEST))
        tiles = Tiles(splits=1 << (splits.bit_length() - 1))

    def taken(tiles: Tiles) -> int:
        return tiles.stages * tiles.block * (tiles.columns + rows)

    return _fitted(tiles, taken, {"stages": 2, "block": 64}, on)


def _fitted(
    tiles: AnyTiles, taken: Callable[[AnyTiles], int], least: Mapping[str, int], on: Device
) -> AnyTiles:
    """The tiles, made smaller one size after the other, until the processor's memory can hold
    them."""
    for name, bound in least.items():
        while taken(tiles) > on.shared_bytes - _SPARE_BYTES and getattr(tiles, name) > bound:
            value = getattr(tiles, name)
            tiles = tiles._replace(**{name: value - 1 if name == "stages" else value // 2})
    return tiles


def _keys_bytes(tiles: DecodeTiles | PromptTiles, size: int, item_bytes: int) -> int:
    """The bytes of a tile's keys, and of as many values."""
    return 2 * tiles.stages * tiles.block * size * item_bytes
