"""Products with weights, each in the form that this machine multiplies fastest. Nothing is rounded
unless bf16 or 8 bits are asked for.

On a CPU a step of few tokens waits for its weights to come from memory. So weights that are exactly
fp16 or bf16 (most published models' are, and GGUF's here) keep their 16 bits, packed once for the
kernel, and are widened to fp32 as they are multiplied: half the traffic, the same numbers. With 8
bits the traffic is halved again, and weights are rounded. With bf16, on a processor that multiplies
it, rows are rounded, too, and a product takes half the time.
"""

from typing import Any, Protocol

import torch
import torch.nn.functional as F

from headway.engine.cpu.kernels import Kernels


class Linear(Protocol):
    def __call__(self, hidden: torch.Tensor) -> torch.Tensor: ...


def linear(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    kernels: Kernels | None = None,
    *,
    is_rounded: bool = False,
) -> Linear:
    """A product with `[out, in]` weights on rows of this dtype, which is float32 where there are
    kernels; rounded: to 8 bits."""
    if is_rounded:
        weight, scales = rounded(weight)
        if kernels is not None:
            return PanelLinear(kernels, weight, scales, bias)
        weight = weight * scales[:, None]
    elif kernels is not None:
        short = _in_16_bits(weight, kernels.cache_dtype)
        if short is not None:
            return PanelLinear(kernels, short, None, bias)
    if dtype == torch.float32 and HalfLinear.runs() and _is_exact(weight, torch.float16):
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


class PanelLinear:
    """Weights of 16 or 8 bits, fp32 rows (rounded to bf16, perhaps), fp32 sums: our own kernel."""

    def __init__(
        self,
        kernels: Kernels,
        weight: torch.Tensor,
        scales: torch.Tensor | None,
        bias: torch.Tensor | None,
    ) -> None:
        self._multiply = kernels.multiply
        self.panels = kernels.panels(weight)
        self._outputs = len(weight)
        missing = self.panels.outputs - len(weight)
        self.scales = scales if scales is None else F.pad(scales, (0, missing))
        self.bias = None if bias is None else bias.float()

    @property
    def is_filled_up(self) -> bool:
        """Has its kernel more outputs than it?"""
        return self.panels.outputs > self._outputs

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        product = self._multiply(hidden, self.panels, self.scales)[:, : self._outputs]
        return product if self.bias is None else product.add_(self.bias)


def rounded(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """8-bit whole numbers, and the scale of each output: the largest weight is 127."""
    weight = weight.float()
    scales = weight.abs().amax(1).clamp_(min=1e-12) / 127.0
    return (weight / scales[:, None]).round_().to(torch.int8), scales


def _in_16_bits(weight: torch.Tensor, asked: torch.dtype) -> torch.Tensor | None:
    """The weight as bf16 if `asked`; else in 16 bits if that changes no number; else None."""
    if asked == torch.bfloat16:
        return weight.to(asked)
    if weight.dtype in (torch.float16, torch.bfloat16):
        return weight
    for dtype in (torch.float16, torch.bfloat16):
        if _is_exact(weight, dtype):
            return weight.to(dtype)
    return None


def _is_exact(weight: torch.Tensor, dtype: torch.dtype) -> bool:
    """Does every weight keep its value in that dtype?"""
    return bool(torch.equal(weight.to(dtype).float(), weight.float()))
