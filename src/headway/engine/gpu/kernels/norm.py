"""RMS norm, with the residual's addition in the same pass."""

import torch
import triton
import triton.language as tl


@triton.jit
def _rms_norm(x, residual, weight, out, columns, epsilon, ADDS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, BLOCK)
    mask = column < columns
    value = tl.load(x + row + column, mask=mask, other=0.0)
    if ADDS:
        # Rounded as the model's own dtype rounds it: what is kept is what is normalised.
        value = (value.to(tl.float32) + tl.load(residual + row + column, mask=mask, other=0.0)).to(
            value.dtype
        )
        tl.store(residual + row + column, value, mask=mask)
    dtype = value.dtype
    value = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / columns + epsilon)
    scaled = (value * scale).to(dtype) * tl.load(weight + column, mask=mask, other=0.0)
    tl.store(out + row + column, scaled, mask=mask)


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """The norm of each row; of `residual + x` where there is one, which then holds that sum."""
    rows, columns = x.shape
    out = torch.empty_like(x)
    block = triton.next_power_of_2(columns)
    _rms_norm[(rows,)](
        x,
        x if residual is None else residual,
        weight,
        out,
        columns,
        epsilon,
        ADDS=residual is not None,
        BLOCK=block,
        num_warps=8 if block >= 2048 else 4,
    )
    return out
