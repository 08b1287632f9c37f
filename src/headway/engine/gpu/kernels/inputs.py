"""Computes the layers' inputs on the device, from a few numbers of the step. So the host need not
know the token that the last step sampled, and a CUDA graph can contain it all."""

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def _decode_inputs(
    step,  # 3 × rows: slot, position, block that joins the table (negative: none)
    last,
    tables,
    tokens,
    places,
    lengths,
    rows,
    table_stride,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_here = row < rows
    slot = tl.load(step + row, mask=is_here, other=0).to(tl.int64)
    position = tl.load(step + rows + row, mask=is_here, other=-1)
    added = tl.load(step + 2 * rows + row, mask=is_here, other=-1)
    is_used = is_here & (position >= 0)  # else the row only fills the graph's batch
    entry = tables + slot * table_stride + position // PAGE
    block = tl.load(entry, mask=is_used & (added < 0), other=0)
    block = tl.where(added >= 0, added, block)
    tl.store(entry, added, mask=is_used & (added >= 0))
    tl.store(tokens + row, tl.load(last + slot, mask=is_used, other=0), mask=is_here)
    place = tl.where(is_used, block * PAGE + position % PAGE, -1)
    tl.store(places + row, place, mask=is_here)
    tl.store(lengths + row, position + 1, mask=is_here)


def decode_inputs(
    step: torch.Tensor,
    last: torch.Tensor,
    tables: torch.Tensor,
    page: int,
    tokens: torch.Tensor,
    places: torch.Tensor,
    lengths: torch.Tensor,
) -> None:
    rows = step.shape[1]
    block = 128
    _decode_inputs[(triton.cdiv(rows, block),)](
        step,
        last,
        tables,
        tokens,
        places,
        lengths,
        rows,
        tables.stride(0),
        PAGE=page,
        BLOCK=block,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["count"])
def _mixed_inputs(
    given,  # tokens: id, or negative: the slot's last sampled one
    slots,
    positions,
    last,
    tables,
    tokens,
    places,
    count,
    table_stride,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_here = row < count
    slot = tl.load(slots + row, mask=is_here, other=0).to(tl.int64)
    position = tl.load(positions + row, mask=is_here, other=-1)
    token = tl.load(given + row, mask=is_here, other=0).to(tl.int64)
    is_used = is_here & (position >= 0)
    sampled = tl.load(last + slot, mask=is_used & (token < 0), other=0)
    tl.store(tokens + row, tl.where(token < 0, sampled, token), mask=is_here)
    block = tl.load(tables + slot * table_stride + position // PAGE, mask=is_used, other=0)
    tl.store(places + row, tl.where(is_used, block * PAGE + position % PAGE, -1), mask=is_here)


def mixed_inputs(
    given: torch.Tensor,
    slots: torch.Tensor,
    positions: torch.Tensor,
    last: torch.Tensor,
    tables: torch.Tensor,
    page: int,
    tokens: torch.Tensor,
    places: torch.Tensor,
) -> None:
    count = given.shape[0]
    block = 256
    _mixed_inputs[(triton.cdiv(count, block),)](
        given,
        slots,
        positions,
        last,
        tables,
        tokens,
        places,
        count,
        tables.stride(0),
        PAGE=page,
        BLOCK=block,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["count"])
def _join_tables(entries, tables, count, table_stride, BLOCK: tl.constexpr):
    number = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_here = number < count
    slot = tl.load(entries + number, mask=is_here, other=0).to(tl.int64)
    column = tl.load(entries + count + number, mask=is_here, other=0)
    block = tl.load(entries + 2 * count + number, mask=is_here, other=0)
    tl.store(tables + slot * table_stride + column, block, mask=is_here)


def join_tables(entries: torch.Tensor, tables: torch.Tensor) -> None:
    """Join blocks to tables. `entries`, 3 × count, int32: the table, the column and the block of
    each."""
    count, block = entries.shape[1], 256
    _join_tables[(triton.cdiv(count, block),)](
        entries, tables, count, tables.stride(0), BLOCK=block, num_warps=4
    )
