"""Attention of many new tokens of many sequences over their pages: prompts, chunks of prompts, and
prompts whose beginning is cached. The new tokens' keys and values are in their pages already."""

import torch
import triton
import triton.language as tl

_LOG2E = 1.4426950408889634


@triton.jit(do_not_specialize=["sequences"])
def _attend(
    queries,
    keys,
    values,
    tables,
    slots,
    starts,
    lengths,
    out,
    scale,
    sequences,
    query_stride,
    page_stride,
    head_stride,
    token_stride,
    table_stride,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,  # of a tile: tokens × heads of a group
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    tile = tl.program_id(0)
    head = tl.program_id(1)
    # Sequence s owns the tiles from starts[s] // TOKENS + s on: find the last that begins here.
    low, high = 0, sequences
    while low < high:
        middle = (low + high) // 2
        if tl.load(starts + middle) // TOKENS + middle <= tile:
            low = middle + 1
        else:
            high = middle
    sequence = low - 1
    first_query = tl.load(starts + sequence)
    count = tl.load(starts + sequence + 1) - first_query
    block = tile - (first_query // TOKENS + sequence)
    if block * TOKENS >= count:
        return
    length = tl.load(lengths + sequence)
    before = length - count  # tokens whose keys and values were there already
    row = tl.arange(0, ROWS)
    dim = tl.arange(0, DIM)
    place = tl.arange(0, BLOCK)
    asker = block * TOKENS + row // GROUP
    query_head = head * GROUP + row % GROUP
    is_asked = (asker < count) & (row < TOKENS * GROUP)
    query_at = (first_query + asker).to(tl.int64)[:, None] * query_stride
    query_at += query_head[:, None] * DIM + dim[None, :]
    query = tl.load(queries + query_at, mask=is_asked[:, None], other=0.0)
    top = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIM], tl.float32)
    last = tl.minimum(length, before + (block + 1) * TOKENS)
    whole = (before + block * TOKENS + 1) // BLOCK * BLOCK  # all rows see all of these
    table = tables + tl.load(slots + sequence).to(tl.int64) * table_stride
    for first in tl.range(0, whole, BLOCK, num_stages=STAGES):
        token = first + place
        page = tl.load(table + token // PAGE)
        at = page.to(tl.int64) * page_stride + head * head_stride + token % PAGE * token_stride
        key = tl.load(keys + at[None, :] + dim[:, None])
        score = tl.dot(query, key, input_precision="ieee") * scale
        new_top = tl.maximum(top, tl.max(score, axis=1))
        share = tl.exp2(score - new_top[:, None])
        fade = tl.exp2(top - new_top)
        total = total * fade + tl.sum(share, axis=1)
        value = tl.load(values + at[:, None] + dim[None, :])
        sums = sums * fade[:, None] + tl.dot(share.to(value.dtype), value, input_precision="ieee")
        top = new_top
    for first in tl.range(whole, last, BLOCK, num_stages=STAGES):
        token = first + place
        is_here = token < last
        page = tl.load(table + token // PAGE, mask=is_here, other=0)
        at = page.to(tl.int64) * page_stride + head * head_stride + token % PAGE * token_stride
        key = tl.load(keys + at[None, :] + dim[:, None], mask=is_here[None, :], other=0.0)
        score = tl.dot(query, key, input_precision="ieee") * scale
        is_seen = token[None, :] <= before + asker[:, None]
        score = tl.where(is_seen & is_here[None, :], score, -1e30)
        new_top = tl.maximum(top, tl.max(score, axis=1))
        share = tl.exp2(score - new_top[:, None])
        fade = tl.exp2(top - new_top)
        total = total * fade + tl.sum(share, axis=1)
        value = tl.load(values + at[:, None] + dim[None, :], mask=is_here[:, None], other=0.0)
        sums = sums * fade[:, None] + tl.dot(share.to(value.dtype), value, input_precision="ieee")
        top = new_top
    sums = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out + query_at, sums.to(out.dtype.element_ty), mask=is_asked[:, None])


def prefill_attention(
    queries: torch.Tensor,  # tokens × query heads × dim, sequence after sequence
    keys: torch.Tensor,  # pages × key heads × page × dim
    values: torch.Tensor,
    tables: torch.Tensor,  # slots × pages, int32
    slots: torch.Tensor,  # sequences, int32: whose table each sequence has
    starts: torch.Tensor,  # sequences + 1, int32: where each sequence's queries begin
    lengths: torch.Tensor,  # sequences, int32: tokens to attend to, the new ones with them
    scale: float,
    *,
    out: torch.Tensor | None = None,
    rows: int = 128,
    block: int = 64,
    warps: int = 8,
    stages: int = 2,
) -> torch.Tensor:
    tokens, query_heads, dim = queries.shape
    _, heads, page, _ = keys.shape
    group = query_heads // heads
    per_tile = rows // group
    sequences = lengths.shape[0]
    out = torch.empty_like(queries) if out is None else out
    _attend[(tokens // per_tile + sequences, heads)](
        queries,
        keys,
        values,
        tables,
        slots,
        starts,
        lengths,
        out,
        scale * _LOG2E,
        sequences,
        queries.stride(0),
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        tables.stride(0),
        GROUP=group,
        DIM=dim,
        PAGE=page,
        ROWS=rows,
        TOKENS=per_tile,
        BLOCK=block,
        STAGES=stages,
        num_warps=warps,
    )
    return out
