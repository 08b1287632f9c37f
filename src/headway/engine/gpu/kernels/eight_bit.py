"""Matrix products with weights in 8-bit floats, one scale a row.

Activations are in 8 bits, too, one scale for each token: half the bytes to read, twice the
arithmetic. (With activations as they are, unpacking the weights took longer than reading them.)
"""

import torch
import triton
import triton.language as tl

from headway.engine.gpu.tuning import Tiles, product_tiles, this_device

FLOAT8 = torch.float8_e4m3fn
_LARGEST = 448.0
FEW = 64  # rows


def quantised(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight in 8 bits, and what each of its rows is to be multiplied with."""
    wide = weight.float()
    scale = wide.abs().amax(1).clamp(min=1e-12) / _LARGEST
    return (wide / scale[:, None]).to(FLOAT8), scale


@triton.jit(do_not_specialize=["rows"])
def _multiply(
    x,
    weight,
    x_scales,
    scales,
    out,
    rows,
    width,
    inner,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
):
    # The weight is the left factor: the tensor cores want 64 of it, and rows are fewer.
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.arange(0, ROWS)
    split = tl.program_id(1)
    place = tl.arange(0, BLOCK)
    is_row, is_column = row < rows, column < width
    span = tl.cdiv(tl.cdiv(inner, SPLITS), BLOCK) * BLOCK
    sums = tl.zeros([COLUMNS, ROWS], tl.float32)
    for first in tl.range(
        split * span, tl.minimum((split + 1) * span, inner), BLOCK, num_stages=STAGES
    ):
        at = first + place
        is_inside = at < inner
        w = tl.load(
            weight + column.to(tl.int64)[:, None] * inner + at[None, :],
            mask=is_column[:, None] & is_inside[None, :],
            other=0.0,
        )
        a = tl.load(
            x + row.to(tl.int64)[:, None] * inner + at[None, :],
            mask=is_row[:, None] & is_inside[None, :],
            other=0.0,
        )
        sums = tl.dot(w, tl.trans(a), sums)
    sums = sums * tl.load(scales + column, mask=is_column, other=0.0)[:, None]
    sums = sums * tl.load(x_scales + row, mask=is_row, other=0.0)[None, :]
    where = (split * rows + row).to(tl.int64)[None, :] * width + column[:, None]
    tl.store(out + where, sums.to(out.dtype.element_ty), mask=is_row[None, :] & is_column[:, None])


@triton.jit
def _add_splits(parts, out, count, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    total = tl.zeros([BLOCK], tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(parts + split * count + at, mask=mask, other=0.0)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=mask)


def multiply_few(
    x: torch.Tensor,
    x_scales: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    dtype: torch.dtype,
    tiles: Tiles | None = None,
) -> torch.Tensor:
    """Multiply up to `FEW` rows. Reading the weight takes all the time, so all of the GPU reads
    it."""
    rows, inner = x.shape
    width = weight.shape[0]
    rows_block = max(16, triton.next_power_of_2(rows))
    tiles = tiles or product_tiles(width, inner, rows_block, this_device())
    out = torch.empty((rows, width), dtype=dtype, device=x.device)
    parts = out
    if tiles.splits > 1:
        parts = torch.empty((tiles.splits, rows, width), dtype=torch.float32, device=x.device)
    _multiply[(triton.cdiv(width, tiles.columns), tiles.splits)](
        x,
        weight,
        x_scales,
        scales,
        parts,
        rows,
        width,
        inner,
        ROWS=rows_block,
        COLUMNS=tiles.columns,
        BLOCK=tiles.block,
        SPLITS=tiles.splits,
        STAGES=tiles.stages,
        num_warps=tiles.warps,
    )
    if tiles.splits > 1:
        count, block = rows * width, 1024
        _add_splits[(triton.cdiv(count, block),)](
            parts, out, count, SPLITS=tiles.splits, BLOCK=block
        )
    return out


@triton.jit
def _quantise_rows(x, out, scales, columns, LARGEST: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    value = tl.load(x + row * columns + column, mask=mask, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value), axis=0), 1e-12) / LARGEST
    tl.store(scales + row, scale)
    scaled = tl.minimum(tl.maximum(value / scale, -LARGEST), LARGEST)
    tl.store(out + row * columns + column, scaled.to(out.dtype.element_ty), mask=mask)


def quantise_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row in 8 bits, and its scale: rows × 1."""
    rows, columns = x.shape
    out = torch.empty((rows, columns), dtype=FLOAT8, device=x.device)
    scales = torch.empty((rows, 1), dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(columns)
    warps = 8 if block >= 4096 else 4
    _quantise_rows[(rows,)](x, out, scales, columns, LARGEST=_LARGEST, BLOCK=block, num_warps=warps)
    return out, scales


class RowScaled:
    """A projection in 8 bits on both sides (sums are float32): few rows by our kernel, many by the
    vendor's library."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight, self.scales = quantised(weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        small, scales = quantise_rows(x)
        if x.shape[0] <= FEW:
            return multiply_few(small, scales, self.weight, self.scales, x.dtype)
        product: torch.Tensor = torch._scaled_mm(
            small,
            self.weight.t(),
            scale_a=scales,
            scale_b=self.scales[None, :],
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        return product
