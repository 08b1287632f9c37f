"""Low-rank adapters of many sequences in one batch: x·Aᵀ·Bᵀ with each row's own A and B.

Rows are grouped by adapter on the device, and each adapter's rows are cut into tiles. `shrink`
multiplies a tile with its A, in parts of the inner dimension; `expand` adds up the parts, always in
the same order, and multiplies with B. So a row's result does not depend on its company. Several
projections of one input (q, k and v; gate and up) are one launch each. Adapters of a lower rank are
filled up with zeros. The number of tiles is bounded by the number of rows, so that a CUDA graph can
hold it all.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl


class Groups(NamedTuple):
    """The rows of a step, by adapter."""

    order: torch.Tensor  # rows; those of one adapter after those of another
    tiles: torch.Tensor  # 3 × tiles: adapter, where its rows begin in `order`, how many (0: none)
    tile: int  # rows in a tile


class Matrices(NamedTuple):
    """The matrices of one layer's product, for the adapters in all slots."""

    down: torch.Tensor  # slots × pieces · rank × inner; there may be gaps between slots
    up: torch.Tensor  # slots × width × rank
    ends: tuple[int, ...]  # of the pieces, in columns: each has its own ranks


@triton.jit(do_not_specialize=["rows", "max_tiles"])
def _group(
    adapters,
    order,
    tiles,
    rows,
    max_tiles,
    SLOTS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    TILES_BLOCK: tl.constexpr,
):
    row = tl.arange(0, BLOCK)
    number = tl.arange(0, TILES_BLOCK)
    mine = tl.load(adapters + row, mask=row < rows, other=-1)
    first = 0
    before = 0
    for adapter in range(SLOTS):
        is_its = (mine == adapter).to(tl.int32)
        count = tl.sum(is_its, axis=0)
        place = first + tl.cumsum(is_its, axis=0) - 1
        tl.store(order + place, row, mask=is_its == 1)
        its_tiles = (count + TILE - 1) // TILE
        index = number - before
        is_tile = (index >= 0) & (index < its_tiles)
        tl.store(tiles + number, adapter + number * 0, mask=is_tile)
        tl.store(tiles + max_tiles + number, first + index * TILE, mask=is_tile)
        left = tl.minimum(count - index * TILE, TILE)
        tl.store(tiles + 2 * max_tiles + number, left, mask=is_tile)
        first += count
        before += its_tiles
    is_unused = (number >= before) & (number < max_tiles)
    tl.store(tiles + 2 * max_tiles + number, number * 0, mask=is_unused)


def group_rows(adapters: torch.Tensor, slots: int) -> Groups:
    """Group rows by the slot of each row's adapter; negative: it has none."""
    rows = adapters.shape[0]
    tile = 16 if rows <= 512 else 64
    max_tiles = min(rows, triton.cdiv(rows, tile) + slots)
    order = torch.empty(rows, dtype=torch.int32, device=adapters.device)
    tiles = torch.empty((3, max_tiles), dtype=torch.int32, device=adapters.device)
    _group[(1,)](
        adapters,
        order,
        tiles,
        rows,
        max_tiles,
        SLOTS=slots,
        TILE=tile,
        BLOCK=max(16, triton.next_power_of_2(rows)),
        TILES_BLOCK=max(16, triton.next_power_of_2(max_tiles)),
        num_warps=4,
    )
    return Groups(order, tiles, tile)


@triton.jit(do_not_specialize=["rows", "max_tiles"])
def _shrink(
    x,
    down,
    order,
    tiles,  # 3 × max_tiles: the lines of `Groups.tiles`, one after another
    parts,  # SPLITS × rows (in the order of `order`) × RANKS
    rows,
    inner,
    slot_stride,
    max_tiles,
    RANKS: tl.constexpr,
    RANKS_BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tile = tl.program_id(0)
    split = tl.program_id(1)
    count = tl.load(tiles + 2 * max_tiles + tile)
    if count == 0:
        return
    adapter = tl.load(tiles + tile).to(tl.int64)
    start = tl.load(tiles + max_tiles + tile)
    member = tl.arange(0, TILE)
    is_here = member < count
    row = tl.load(order + start + member, mask=is_here, other=0).to(tl.int64)
    rank = tl.arange(0, RANKS_BLOCK)
    is_rank = rank < RANKS
    span = tl.cdiv(tl.cdiv(inner, SPLITS), BLOCK) * BLOCK
    sums = tl.zeros([TILE, RANKS_BLOCK], tl.float32)
    for first in range(split * span, tl.minimum((split + 1) * span, inner), BLOCK):
        column = first + tl.arange(0, BLOCK)
        is_inside = column < inner
        a = tl.load(
            x + row[:, None] * inner + column[None, :],
            mask=is_here[:, None] & is_inside[None, :],
            other=0.0,
        )
        b = tl.load(
            down + adapter * slot_stride + rank[None, :] * inner + column[:, None],
            mask=is_inside[:, None] & is_rank[None, :],
            other=0.0,
        )
        sums += tl.dot(a, b, input_precision="ieee")
    at = (split * rows + start + member).to(tl.int64)[:, None] * RANKS + rank[None, :]
    tl.store(parts + at, sums, mask=is_here[:, None] & is_rank[None, :])


@triton.jit(do_not_specialize=["rows", "max_tiles"])
def _expand(
    parts,
    up,
    order,
    tiles,
    out,
    rows,
    width,
    slot_stride,
    max_tiles,
    END_0: tl.constexpr,
    END_1: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    SPLITS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tile = tl.program_id(0)
    count = tl.load(tiles + 2 * max_tiles + tile)
    if count == 0:
        return
    adapter = tl.load(tiles + tile).to(tl.int64)
    start = tl.load(tiles + max_tiles + tile)
    member = tl.arange(0, TILE)
    is_here = member < count
    row = tl.load(order + start + member, mask=is_here, other=0).to(tl.int64)
    first = tl.program_id(1) * BLOCK
    # Which of the packed projections this block of columns belongs to: it has its own ranks.
    piece = (first >= END_0).to(tl.int32) + (first >= END_1).to(tl.int32)
    column = first + tl.arange(0, BLOCK)
    is_inside = column < width
    rank = tl.arange(0, RANK)
    b = tl.load(
        up + adapter * slot_stride + column[None, :] * RANK + rank[:, None],
        mask=is_inside[None, :],
        other=0.0,
    )
    small = tl.zeros([TILE, RANK], tl.float32)
    for split in range(SPLITS):
        place = (split * rows + start + member).to(tl.int64)[:, None] * RANKS
        at = place + (piece * RANK + rank)[None, :]
        small += tl.load(parts + at, mask=is_here[:, None], other=0.0)
    where = out + row[:, None] * width + column[None, :]
    mask = is_here[:, None] & is_inside[None, :]
    before = tl.load(where, mask=mask, other=0.0)
    added = tl.dot(small.to(b.dtype), b, input_precision="ieee")
    tl.store(where, (before.to(tl.float32) + added).to(before.dtype), mask=mask)


def parts_for(x: torch.Tensor, matrices: Matrices, splits: int) -> torch.Tensor:
    """Memory for the results of `shrink`, which `expand` reads."""
    ranks = matrices.down.shape[1]
    return torch.empty((splits, x.shape[0], ranks), dtype=torch.float32, device=x.device)


def shrink(x: torch.Tensor, matrices: Matrices, groups: Groups, parts: torch.Tensor) -> None:
    down = matrices.down
    splits, rows, ranks = parts.shape
    _shrink[(groups.tiles.shape[1], splits)](
        x,
        down,
        groups.order,
        groups.tiles,
        parts,
        rows,
        x.shape[1],
        down.stride(0),
        groups.tiles.shape[1],
        RANKS=ranks,
        RANKS_BLOCK=max(16, triton.next_power_of_2(ranks)),
        SPLITS=splits,
        TILE=groups.tile,
        BLOCK=128 if ranks <= 64 else 64,
        num_warps=4,
    )


def expand(
    parts: torch.Tensor, matrices: Matrices, groups: Groups, out: torch.Tensor, *, block: int
) -> None:
    """Adds to `out`, rows × width."""
    up = matrices.up
    splits, rows, ranks = parts.shape
    width, rank = up.shape[1], up.shape[2]
    ends = (*matrices.ends[:-1], width, width)[:2]
    block = min(block, block_for(matrices.ends))
    _expand[(groups.tiles.shape[1], triton.cdiv(width, block))](
        parts,
        up,
        groups.order,
        groups.tiles,
        out,
        rows,
        width,
        up.stride(0),
        groups.tiles.shape[1],
        END_0=ends[0],
        END_1=ends[1],
        RANK=rank,
        RANKS=ranks,
        SPLITS=splits,
        TILE=groups.tile,
        BLOCK=block,
        num_warps=4,
    )


def block_for(ends: tuple[int, ...]) -> int:
    """The largest power of two that divides them all: a block of columns is one piece's."""
    shared = math.gcd(*ends)
    return shared & -shared
