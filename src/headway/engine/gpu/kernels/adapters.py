"""Low-rank adapters of many sequences in one batch: x·Aᵀ·Bᵀ with each row's own A and B.

Rows are grouped by adapter on the device. `shrink` multiplies a group with its A, in parts of the
inner dimension; `expand` adds up the parts, always in the same order, and multiplies with B. So a
row's result does not depend on its company. Adapters of a lower rank are filled up with zeros.
"""

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def _group(adapters, order, starts, rows, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.arange(0, BLOCK)
    mine = tl.load(adapters + row, mask=row < rows, other=-1)
    first = 0
    for adapter in range(COUNT):
        is_its = (mine == adapter).to(tl.int32)
        tl.store(starts + adapter, first)
        place = first + tl.cumsum(is_its, axis=0) - 1
        tl.store(order + place, row, mask=is_its == 1)
        first += tl.sum(is_its, axis=0)
    tl.store(starts + COUNT, first)


def group_rows(adapters: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows sorted by adapter, and where each adapter's begin. Negative: no adapter."""
    rows = adapters.shape[0]
    order = torch.empty(rows, dtype=torch.int32, device=adapters.device)
    starts = torch.empty(count + 1, dtype=torch.int32, device=adapters.device)
    _group[(1,)](
        adapters,
        order,
        starts,
        rows,
        COUNT=count,
        BLOCK=triton.next_power_of_2(rows),
        num_warps=4,
    )
    return order, starts


@triton.jit(do_not_specialize=["rows"])
def _shrink(
    x,
    downs,
    order,
    starts,
    parts,
    rows,
    inner,
    RANKS: tl.constexpr,
    RANKS_BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    adapter = tl.program_id(0)
    split = tl.program_id(1)
    start = tl.load(starts + adapter)
    count = tl.load(starts + adapter + 1) - start
    tile = tl.program_id(2) * TILE
    if tile >= count:
        return
    member = tile + tl.arange(0, TILE)
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
            downs + (adapter * RANKS + rank).to(tl.int64)[None, :] * inner + column[:, None],
            mask=is_inside[:, None] & is_rank[None, :],
            other=0.0,
        )
        sums += tl.dot(a, b, input_precision="ieee")
    at = (split * rows + row)[:, None] * RANKS + rank[None, :]
    tl.store(parts + at, sums, mask=is_here[:, None] & is_rank[None, :])


@triton.jit(do_not_specialize=["rows"])
def _expand(
    parts,
    ups,
    order,
    starts,
    out,
    rows,
    width,
    SLICE_ENDS_0: tl.constexpr,
    SLICE_ENDS_1: tl.constexpr,
    RANK: tl.constexpr,
    RANKS: tl.constexpr,
    SPLITS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    adapter = tl.program_id(0)
    start = tl.load(starts + adapter)
    count = tl.load(starts + adapter + 1) - start
    tile = tl.program_id(2) * TILE
    if tile >= count:
        return
    member = tile + tl.arange(0, TILE)
    is_here = member < count
    row = tl.load(order + start + member, mask=is_here, other=0).to(tl.int64)
    first = tl.program_id(1) * BLOCK
    # Which of the packed projections this block of columns belongs to: it has its own ranks.
    piece = (first >= SLICE_ENDS_0).to(tl.int32) + (first >= SLICE_ENDS_1).to(tl.int32)
    column = first + tl.arange(0, BLOCK)
    is_inside = column < width
    rank = tl.arange(0, RANK)
    small = tl.zeros([TILE, RANK], tl.float32)
    for split in range(SPLITS):
        at = (split * rows + row)[:, None] * RANKS + (piece * RANK + rank)[None, :]
        small += tl.load(parts + at, mask=is_here[:, None], other=0.0)
    up = tl.load(
        ups + (adapter * width + column).to(tl.int64)[None, :] * RANK + rank[:, None],
        mask=is_inside[None, :],
        other=0.0,
    )
    place = out + row[:, None] * width + column[None, :]
    mask = is_here[:, None] & is_inside[None, :]
    before = tl.load(place, mask=mask, other=0.0)
    added = tl.dot(small.to(up.dtype), up, input_precision="ieee")
    tl.store(place, (before.to(tl.float32) + added).to(before.dtype), mask=mask)


def add_adapters(
    x: torch.Tensor,  # rows × inner
    out: torch.Tensor,  # rows × width: added to
    downs: torch.Tensor,  # adapters × pieces · rank × inner
    ups: torch.Tensor,  # adapters × width × rank
    ends: tuple[int, ...],  # of the packed projections, in columns
    order: torch.Tensor,
    starts: torch.Tensor,
    *,
    splits: int = 16,
    block: int = 128,
) -> None:
    rows, inner = x.shape
    width = out.shape[1]
    count, ranks, _ = downs.shape
    rank = ups.shape[2]
    tile = 16
    tiles = triton.cdiv(rows, tile)
    parts = torch.empty((splits, rows, ranks), dtype=torch.float32, device=x.device)
    _shrink[(count, splits, tiles)](
        x,
        downs,
        order,
        starts,
        parts,
        rows,
        inner,
        RANKS=ranks,
        RANKS_BLOCK=max(16, triton.next_power_of_2(ranks)),
        SPLITS=splits,
        TILE=tile,
        BLOCK=128,
        num_warps=4,
    )
    two = (*ends[:-1], width, width)[:2]
    _expand[(count, triton.cdiv(width, block), tiles)](
        parts,
        ups,
        order,
        starts,
        out,
        rows,
        width,
        SLICE_ENDS_0=two[0],
        SLICE_ENDS_1=two[1],
        RANK=rank,
        RANKS=ranks,
        SPLITS=splits,
        TILE=tile,
        BLOCK=block,
        num_warps=4,
    )
