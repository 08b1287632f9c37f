"""Adapters' products on the CPU: each adapter's rows by themselves, two small products for each of
the model's own."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from headway.engine.adapters.peft import Weights


class Product(NamedTuple):
    """The matrices of x·down·up, for one module, or for several that are one product of the
    model."""

    down: torch.Tensor  # in × ranks
    up: torch.Tensor  # ranks × out


Products = Mapping[str, Product]  # by the decoder's own name of its product


def packed(
    weights: Weights, modules: Sequence[tuple[str, int]], dtype: torch.dtype
) -> Product | None:
    """These modules, each with its width, side by side; None: the adapter changes none of them."""
    downs, ups = [], []
    width, start = sum(each for _, each in modules), 0
    for module, columns in modules:
        found = weights.get(module)
        if found is not None:
            up = torch.zeros(found.down.shape[0], width, dtype=found.up.dtype)
            up[:, start : start + columns] = found.up.t()
            downs.append(found.down)
            ups.append(up)
        start += columns
    if not downs:
        return None
    down = torch.cat(downs).to(dtype).t().contiguous()
    return Product(down, torch.cat(ups).to(dtype).contiguous())


class Adapting:
    """The rows of one step that have adapters."""

    def __init__(self, groups: Sequence[tuple[Sequence[int], Products]]) -> None:
        self._groups = [(_compact(rows), products) for rows, products in groups]

    def add(self, name: str, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Add each row's adapter to `out`, in place. Returns `out`."""
        for rows, products in self._groups:
            product = products.get(name)
            if product is None:
                continue
            if isinstance(rows, slice):
                out[rows].addmm_(x[rows] @ product.down, product.up)
            else:
                out.index_add_(0, rows, (x[rows] @ product.down) @ product.up)
        return out


def _compact(rows: Sequence[int]) -> slice | torch.Tensor:
    """The rows' index; consecutive rows become a slice, which needs no gathering."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, dtype=torch.int64)
