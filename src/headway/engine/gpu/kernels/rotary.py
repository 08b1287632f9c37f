"""Norms (Qwen3's) and rotary embedding of queries and keys, and the write of keys and values into
their pages: one pass over the packed projection."""

import torch
import triton
import triton.language as tl


@triton.jit
def _normed(first, second, norm, epsilon, DIM: tl.constexpr):
    """Both halves of each head, divided by the root of their mean square."""
    half = tl.arange(0, DIM // 2)
    dtype = first.dtype
    a, b = first.to(tl.float32), second.to(tl.float32)
    scale = tl.rsqrt((tl.sum(a * a, axis=1) + tl.sum(b * b, axis=1)) / DIM + epsilon)
    a = (a * scale[:, None]).to(dtype) * tl.load(norm + half)[None, :]
    b = (b * scale[:, None]).to(dtype) * tl.load(norm + DIM // 2 + half)[None, :]
    return a.to(tl.float32), b.to(tl.float32)


@triton.jit
def _rotate_and_store(
    qkv,
    cosines,
    sines,
    positions,
    slots,
    queries,
    keys,
    values,
    query_norm,
    key_norm,
    epsilon,
    qkv_stride,
    page_stride,
    head_stride,
    token_stride,
    QUERY_GROUPS: tl.constexpr,
    HEADS: tl.constexpr,  # of keys: a group has as many
    HEADS_BLOCK: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    NORMS: tl.constexpr,
):
    token = tl.program_id(0)
    group = tl.program_id(1)  # of query heads, then the keys, then the values
    half = tl.arange(0, DIM // 2)
    head = tl.arange(0, HEADS_BLOCK)
    mask = (head < HEADS)[:, None] & (half >= 0)[None, :]
    source = qkv + token.to(tl.int64) * qkv_stride + group * HEADS * DIM
    source += head[:, None] * DIM + half[None, :]
    first = tl.load(source, mask=mask, other=0.0)
    second = tl.load(source + DIM // 2, mask=mask, other=0.0)
    dtype = first.dtype
    if group <= QUERY_GROUPS:
        position = tl.load(positions + token).to(tl.int64)
        cosine = tl.load(cosines + position * (DIM // 2) + half)[None, :]
        sine = tl.load(sines + position * (DIM // 2) + half)[None, :]
        a, b = first.to(tl.float32), second.to(tl.float32)
        if NORMS:
            norm = query_norm if group < QUERY_GROUPS else key_norm
            a, b = _normed(first, second, norm, epsilon, DIM)
        first = (a * cosine - b * sine).to(dtype)
        second = (b * cosine + a * sine).to(dtype)
    if group < QUERY_GROUPS:
        target = queries + token.to(tl.int64) * (QUERY_GROUPS * HEADS * DIM) + group * HEADS * DIM
        target += head[:, None] * DIM + half[None, :]
        tl.store(target, first, mask=mask)
        tl.store(target + DIM // 2, second, mask=mask)
    else:
        slot = tl.load(slots + token).to(tl.int64)
        stored = mask & (slot >= 0)
        place = slot // PAGE * page_stride + slot % PAGE * token_stride
        place += head[:, None] * head_stride + half[None, :]
        if group == QUERY_GROUPS:
            tl.store(keys + place, first, mask=stored)
            tl.store(keys + place + DIM // 2, second, mask=stored)
        else:
            tl.store(values + place, first, mask=stored)
            tl.store(values + place + DIM // 2, second, mask=stored)


def rotate_and_store(
    qkv: torch.Tensor,  # tokens × (query heads + 2 × key heads) · dim
    cosines: torch.Tensor,  # positions × dim/2, float32
    sines: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,  # page · page size + place in it; negative: nothing is stored
    keys: torch.Tensor,  # pages × key heads × page × dim
    values: torch.Tensor,
    query_heads: int,
    norms: tuple[torch.Tensor, torch.Tensor] | None = None,  # of queries and keys
    epsilon: float = 0.0,
) -> torch.Tensor:
    """The rotated queries, tokens × query heads × dim. Keys and values are in their pages."""
    tokens = qkv.shape[0]
    _, heads, page, dim = keys.shape
    queries = torch.empty((tokens, query_heads, dim), dtype=qkv.dtype, device=qkv.device)
    groups = query_heads // heads
    _rotate_and_store[(tokens, groups + 2)](
        qkv,
        cosines,
        sines,
        positions,
        slots,
        queries,
        keys,
        values,
        *(norms or (qkv, qkv)),
        epsilon,
        qkv.stride(0),
        keys.stride(0),
        keys.stride(1),
        keys.stride(2),
        QUERY_GROUPS=groups,
        HEADS=heads,
        HEADS_BLOCK=triton.next_power_of_2(heads),
        DIM=dim,
        PAGE=page,
        NORMS=norms is not None,
        num_warps=2,
    )
    return queries
