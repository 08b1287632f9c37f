"""Products with weights, each in the form that this machine multiplies fastest without changing it.

On a CPU a step of few tokens waits for its weights to come from memory. So weights that are exactly
fp16 (most published models' are, and GGUF's here) stay fp16, packed once for the kernel, and are
widened to fp32 as they are multiplied: half the traffic, the same numbers.
"""

from typing import Any, Protocol

import torch


class Linear(Protocol):
    def __call__(self, hidden: torch.Tensor) -> torch.Tensor: ...


def linear(weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Linear:
    """A product with `[out, in]` weights on rows of this dtype."""
    if dtype == torch.float32 and HalfLinear.runs() and _is_half(weight):
        return HalfLinear(weight, bias)
    return PlainLinear(weight, bias, dtype)


class PlainLinear:
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> None:
        self._weight = weight.to(dtype).t().contiguous()
        self._bias = None if bias is None else bias.to(dtype)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._bias is None:
            return torch.mm(hidden, self._weight)
        return torch.addmm(self._bias, hidden, self._weight)


class HalfLinear:
    """fp16 weights, fp32 rows, fp32 sums: FBGEMM's kernel."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._multiply: Any = torch.ops.quantized.linear_dynamic_fp16
        bias = None if bias is None else bias.float()
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.float().contiguous(), bias)

    @staticmethod
    def runs() -> bool:
        return "fbgemm" in torch.backends.quantized.supported_engines

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self._multiply(hidden, self._packed)
        return product


def _is_half(weight: torch.Tensor) -> bool:
    """Is every weight an fp16 number?"""
    if weight.dtype == torch.float16:
        return True
    return bool(torch.equal(weight.half().float(), weight.float()))
