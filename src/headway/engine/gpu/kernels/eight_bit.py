"""Matrix products with weights in 8-bit floats, one scale a row; activations stay as they are.

For few rows: there the time is that of reading the weights, which are half as many bytes.
"""

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
