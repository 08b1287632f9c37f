"""Matrix products with weights in 8-bit floats, one scale a row.

`RowScaled` has activations in 8 bits, too, one scale for each token, and the vendor's library
multiply them: half the bytes to read, and twice the arithmetic. `EightBit` leaves activations as
they are; it is for few rows, where the time is that of reading the weights.
"""

from typing import Protocol

import torch
import triton
import triton.language as tl
from torch.nn import functional

FLOAT8 = torch.float8_e4m3fn
_LARGEST = 448.0


def quantised(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight in 8 bits, and what each of its rows is to be multiplied with."""
    wide = weight.float()
    scale = wide.abs().amax(1).clamp(min=1e-12) / _LARGEST
    return (wide / scale[:, None]).to(FLOAT8), scale


@triton.jit(do_not_specialize=["rows"])
def _multiply(
    x,
    weight,
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
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    split = tl.program_id(2)
    place = tl.arange(0, BLOCK)
    is_row, is_column = row < rows, column < width
    span = tl.cdiv(tl.cdiv(inner, SPLITS), BLOCK) * BLOCK
    sums = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in tl.range(
        split * span, tl.minimum((split + 1) * span, inner), BLOCK, num_stages=STAGES
    ):
        at = first + place
        is_inside = at < inner
        a = tl.load(
            x + row.to(tl.int64)[:, None] * inner + at[None, :],
            mask=is_row[:, None] & is_inside[None, :],
            other=0.0,
        )
        b = tl.load(
            weight + column.to(tl.int64)[None, :] * inner + at[:, None],
            mask=is_column[None, :] & is_inside[:, None],
            other=0.0,
        )
        sums += tl.dot(a, b.to(a.dtype))
    sums = sums * tl.load(scales + column, mask=is_column, other=0.0)[None, :]
    where = (split * rows + row).to(tl.int64)[:, None] * width + column[None, :]
    tl.store(out + where, sums.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


def multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    *,
    columns: int = 64,
    block: int = 128,
    splits: int = 1,
    warps: int = 4,
    stages: int = 4,
) -> torch.Tensor:
    rows, inner = x.shape
    width = weight.shape[0]
    tile = min(64, max(16, triton.next_power_of_2(rows)))
    shape = (rows, width) if splits == 1 else (splits, rows, width)
    dtype = x.dtype if splits == 1 else torch.float32
    out = torch.empty(shape, dtype=dtype, device=x.device)
    _multiply[(triton.cdiv(width, columns), triton.cdiv(rows, tile), splits)](
        x,
        weight,
        scales,
        out,
        rows,
        width,
        inner,
        ROWS=tile,
        COLUMNS=columns,
        BLOCK=block,
        SPLITS=splits,
        STAGES=stages,
        num_warps=warps,
    )
    return out if splits == 1 else out.sum(0).to(x.dtype)


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
    """Each row in 8 bits, and what it is to be multiplied with: rows × 1."""
    rows, columns = x.shape
    out = torch.empty((rows, columns), dtype=FLOAT8, device=x.device)
    scales = torch.empty((rows, 1), dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(columns)
    warps = 8 if block >= 4096 else 4
    _quantise_rows[(rows,)](x, out, scales, columns, LARGEST=_LARGEST, BLOCK=block, num_warps=warps)
    return out, scales


class Projection(Protocol):
    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class RowScaled:
    """A projection in 8 bits on both sides, by the vendor's library (sums are float32)."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight, scales = quantised(weight)
        self.scales = scales[None, :].contiguous()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        small, scales = quantise_rows(x)
        product: torch.Tensor = torch._scaled_mm(
            small,
            self.weight.t(),
            scale_a=scales,
            scale_b=self.scales,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )
        return product


class EightBit:
    """A projection whose weight is in 8 bits. For many rows it is unpacked: then arithmetic, not
    memory, is what takes the time."""

    most_rows = 48

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight, self.scales = quantised(weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] <= self.most_rows:
            return multiply(x, self.weight, self.scales)
        return functional.linear(x, self.weight.to(x.dtype)) * self.scales.to(x.dtype)
