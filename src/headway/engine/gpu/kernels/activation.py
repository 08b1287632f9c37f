"""SwiGLU: silu(gate) · up, from the packed projection of both."""

import torch
import triton
import triton.language as tl


@triton.jit
def _silu_and_multiply(gate_up, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < columns
    gate = tl.load(gate_up + row * 2 * columns + column, mask=mask, other=0.0)
    up = tl.load(gate_up + row * 2 * columns + columns + column, mask=mask, other=0.0)
    wide = gate.to(tl.float32)
    active = (wide * tl.sigmoid(wide)).to(gate.dtype)
    tl.store(out + row * columns + column, active * up, mask=mask)


def silu_and_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    rows, both = gate_up.shape
    columns = both // 2
    out = torch.empty((rows, columns), dtype=gate_up.dtype, device=gate_up.device)
    block = 1024
    _silu_and_multiply[(rows, triton.cdiv(columns, block))](
        gate_up, out, columns, BLOCK=block, num_warps=4
    )
    return out
