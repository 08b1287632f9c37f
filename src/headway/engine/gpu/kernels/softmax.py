"""A softmax over keys that are seen block by block, and the sum of values that it weights."""

import triton
import triton.language as tl


@triton.jit
def absorb(score, value, top, total, sums):
    """Add one block: scores in powers of two, the largest so far, their total, the values' sum."""
    new_top = tl.maximum(top, tl.max(score, axis=1))
    share = tl.exp2(score - new_top[:, None])
    fade = tl.exp2(top - new_top)
    total = total * fade + tl.sum(share, axis=1)
    sums = sums * fade[:, None] + tl.dot(share.to(value.dtype), value, input_precision="ieee")
    return new_top, total, sums
