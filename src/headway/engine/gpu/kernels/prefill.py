"""Attention of many new tokens of many sequences over their pages: prompts, chunks of prompts, and
prompts whose beginning is cached. The new tokens' keys and values are in their pages already."""

import torch
import triton
import triton.language as tl

from headway.engine.gpu.kernels.softmax import absorb
from headway.engine.gpu.tuning import PromptTiles, prompt_tiles, this_device

_LOG2E = 1.4426950408889634


@triton.jit
def _owner(tile, starts, sequences, TOKENS: tl.constexpr):
    """Sequence s owns the tiles from starts[s] // TOKENS + s on: the last that begins here, where
    its queries begin, how many they are, and which of its tiles this is."""
    low, high = 0, sequences
    while low < high:
        middle = (low + high) // 2
        if tl.load(starts + middle) // TOKENS + middle <= tile:
            low = middle + 1
        else:
            high = middle
    sequence = tl.maximum(low - 1, 0)
    first = tl.load(starts + sequence)
    count = tl.load(starts + sequence + 1) - first
    return sequence, first, count, tile - (first // TOKENS + sequence)


@triton.jit
def _place(page, token, page_stride, token_stride, PAGE: tl.constexpr):
    return page.to(tl.int64) * page_stride + token % PAGE * token_stride


@triton.jit
def _query_at(token, head, row, dim, stride, GROUP: tl.constexpr, DIM: tl.constexpr):
    at = token.to(tl.int64)[:, None] * stride
    return at + ((head * GROUP + row % GROUP)[:, None] * DIM + dim[None, :])


@triton.jit(do_not_specialize=["sequences"])
def _attend_many(
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
    tile, head = tl.program_id(0), tl.program_id(1)
    sequence, first_query, count, block = _owner(tile, starts, sequences, TOKENS)
    if (block < 0) | (block * TOKENS >= count):
        return
    length = tl.load(lengths + sequence)
    before = length - count  # tokens with keys and values in the cache
    row, dim, place = tl.arange(0, ROWS), tl.arange(0, DIM), tl.arange(0, BLOCK)
    asker = block * TOKENS + row // GROUP
    is_asked = (asker < count) & (row < TOKENS * GROUP)
    query_at = _query_at(first_query + asker, head, row, dim, query_stride, GROUP, DIM)
    query = tl.load(queries + query_at, mask=is_asked[:, None], other=0.0)
    top, total = tl.full([ROWS], -1e30, tl.float32), tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, DIM], tl.float32)
    last = tl.minimum(length, before + (block + 1) * TOKENS)
    whole = (before + block * TOKENS + 1) // BLOCK * BLOCK  # all rows see all of these
    table = tables + tl.load(slots + sequence).to(tl.int64) * table_stride
    keys, values = keys + head * head_stride, values + head * head_stride
    for first in tl.range(0, whole, BLOCK, num_stages=STAGES):
        token = first + place
        at = _place(tl.load(table + token // PAGE), token, page_stride, token_stride, PAGE)
        key = tl.load(keys + at[None, :] + dim[:, None])
        score = tl.dot(query, key, input_precision="ieee") * scale
        value = tl.load(values + at[:, None] + dim[None, :])
        top, total, sums = absorb(score, value, top, total, sums)
    for first in tl.range(whole, last, BLOCK, num_stages=STAGES):
        token = first + place
        here = token < last
        page = tl.load(table + token // PAGE, mask=here, other=0)
        at = _place(page, token, page_stride, token_stride, PAGE)
        key = tl.load(keys + at[None, :] + dim[:, None], mask=here[None, :], other=0.0)
        score = tl.dot(query, key, input_precision="ieee") * scale
        seen = (token[None, :] <= before + asker[:, None]) & here[None, :]
        value = tl.load(values + at[:, None] + dim[None, :], mask=here[:, None], other=0.0)
        top, total, sums = absorb(tl.where(seen, score, -1e30), value, top, total, sums)
    sums = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out + query_at, sums.to(out.dtype.element_ty), mask=is_asked[:, None])


def prefill_attention(
    queries: torch.Tensor,  # tokens × query heads × dim, sequence after sequence from starts[0] on
    keys: torch.Tensor,  # pages × key heads × page × dim
    values: torch.Tensor,
    tables: torch.Tensor,  # slots × pages, int32
    slots: torch.Tensor,  # sequences, int32: whose table each sequence has
    starts: torch.Tensor,  # sequences + 1, int32: where each sequence's queries begin
    lengths: torch.Tensor,  # sequences, int32: tokens to attend to, the new ones with them
    scale: float,
    *,
    out: torch.Tensor | None = None,  # only the sequences' tokens are written
    tiles: PromptTiles | None = None,
) -> torch.Tensor:
    tokens, query_heads, dim = queries.shape
    _, heads, page, _ = keys.shape
    group = query_heads // heads
    tiles = tiles or prompt_tiles(dim, queries.element_size(), this_device())
    per_tile = tiles.rows // group
    sequences = lengths.shape[0]
    out = torch.empty_like(queries) if out is None else out
    _attend_many[(tokens // per_tile + sequences, heads)](
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
        ROWS=tiles.rows,
        TOKENS=per_tile,
        BLOCK=tiles.block,
        STAGES=tiles.stages,
        num_warps=tiles.warps,
    )
    return out
