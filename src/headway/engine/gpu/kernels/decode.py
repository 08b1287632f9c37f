"""Attention of one new token a sequence over its pages of keys and values.

The query heads that share a key head form one tile, so that a page is read once for all of them.
A long context is split over several programs, whose parts a second kernel joins (flash decoding).
The number of splits is fixed for a batch size, so that a CUDA graph can hold the launch.
"""

import torch
import triton
import triton.language as tl

from headway.engine.gpu.kernels.softmax import absorb
from headway.engine.gpu.tuning import DecodeTiles, decode_tiles, this_device

_LOG2E = 1.4426950408889634


@triton.jit
def _attend_one(
    queries,
    keys,
    values,
    tables,
    slots,
    lengths,
    out,
    parts,
    weights,
    scale,
    page_stride,
    head_stride,
    token_stride,
    table_stride,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
):
    row, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + row)
    table = tables + tl.load(slots + row).to(tl.int64) * table_stride
    span = tl.cdiv(tl.cdiv(length, SPLITS), BLOCK) * BLOCK
    start = split * span
    stop = tl.minimum(start + span, length)
    member, dim, place = tl.arange(0, GROUP_BLOCK), tl.arange(0, DIM), tl.arange(0, BLOCK)
    query_head = head * GROUP + member
    query_at = (row * HEADS * GROUP + query_head)[:, None] * DIM + dim[None, :]
    query = tl.load(queries + query_at, mask=(member < GROUP)[:, None], other=0.0)
    top = tl.full([GROUP_BLOCK], -1e30, tl.float32)
    total = tl.zeros([GROUP_BLOCK], tl.float32)
    sums = tl.zeros([GROUP_BLOCK, DIM], tl.float32)
    for first in tl.range(start, stop, BLOCK, num_stages=STAGES):
        token = first + place
        is_here = token < stop
        page = tl.load(table + token // PAGE, mask=is_here, other=0)
        at = page.to(tl.int64) * page_stride + head * head_stride + token % PAGE * token_stride
        key = tl.load(keys + at[None, :] + dim[:, None], mask=is_here[None, :], other=0.0)
        score = tl.dot(query, key, input_precision="ieee") * scale
        value = tl.load(values + at[:, None] + dim[None, :], mask=is_here[:, None], other=0.0)
        score = tl.where(is_here[None, :], score, -1e30)
        top, total, sums = absorb(score, value, top, total, sums)
    is_empty = total == 0.0
    sums = sums / tl.where(is_empty, 1.0, total)[:, None]
    mask = (member < GROUP)[:, None]
    if SPLITS == 1:
        tl.store(out + query_at, sums.to(out.dtype.element_ty), mask=mask)
    else:
        part = (row * HEADS * GROUP + query_head) * SPLITS + split
        tl.store(parts + part[:, None] * DIM + dim[None, :], sums, mask=mask)
        weight = tl.where(is_empty, -1e30, top + tl.log2(tl.where(is_empty, 1.0, total)))
        tl.store(weights + part, weight, mask=member < GROUP)


@triton.jit
def _join(parts, weights, out, DIM: tl.constexpr, SPLITS: tl.constexpr, SPLITS_BLOCK: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS_BLOCK)
    dim = tl.arange(0, DIM)
    is_here = split < SPLITS
    weight = tl.load(weights + head * SPLITS + split, mask=is_here, other=-1e30)
    share = tl.exp2(weight - tl.max(weight, axis=0))
    share = tl.where(is_here, share, 0.0)
    part = tl.load(
        parts + (head * SPLITS + split)[:, None] * DIM + dim[None, :],
        mask=is_here[:, None],
        other=0.0,
    )
    joined = tl.sum(part * share[:, None], axis=0) / tl.sum(share, axis=0)
    tl.store(out + head * DIM + dim, joined.to(out.dtype.element_ty))


def splits_for(rows: int, heads: int, multiprocessors: int, longest: int, block: int = 64) -> int:
    """Enough programs to fill the device a few times over, but never more than there are blocks."""
    wanted = max(1, (3 * multiprocessors) // max(1, rows * heads))
    return max(1, min(wanted, 64, -(-longest // block)))


def _parts(
    heads: int, splits: int, dim: int, out: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for the splits' results, which another kernel joins."""
    if splits == 1:
        return out, out
    wide = {"dtype": torch.float32, "device": out.device}
    return torch.empty((heads, splits, dim), **wide), torch.empty((heads, splits), **wide)


def decode_attention(
    queries: torch.Tensor,  # rows × query heads × dim
    keys: torch.Tensor,  # pages × key heads × page × dim
    values: torch.Tensor,
    tables: torch.Tensor,  # slots × pages, int32
    slots: torch.Tensor,  # rows, int32: whose table each row has
    lengths: torch.Tensor,  # rows, int32: tokens to attend to, the new one with them
    scale: float,
    *,
    splits: int = 1,
    out: torch.Tensor | None = None,
    tiles: DecodeTiles | None = None,
) -> torch.Tensor:
    rows, query_heads, dim = queries.shape
    _, heads, page, _ = keys.shape
    group = query_heads // heads
    out = torch.empty_like(queries) if out is None else out
    parts, weights = _parts(rows * query_heads, splits, dim, out)
    tiles = tiles or decode_tiles(dim, queries.element_size(), this_device())
    _attend_one[(rows, heads, splits)](
        queries,
        keys,
        values,
        tables,
        slots,
        lengths,
        out,
        parts,
        weights,
        scale * _LOG2E,
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        tables.stride(0),
        HEADS=heads,
        GROUP=group,
        GROUP_BLOCK=max(16, triton.next_power_of_2(group)),
        DIM=dim,
        PAGE=page,
        BLOCK=tiles.block,
        SPLITS=splits,
        STAGES=tiles.stages,
        num_warps=tiles.warps,
    )
    if splits > 1:
        _join[(rows * query_heads,)](
            parts,
            weights,
            out,
            DIM=dim,
            SPLITS=splits,
            SPLITS_BLOCK=triton.next_power_of_2(splits),
            num_warps=2,
        )
    return out
