"""Rotary position embeddings, as complex numbers: to rotate is one multiplication.

`transformers` pairs feature i with feature i + half. Here pairs are neighbours, which is how
complex numbers lie in memory; the projections' rows are put in that order when they are loaded.
Scores do not change, for queries and keys change alike.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch


def rotations(rope: Mapping[str, Any], features: int, positions: int) -> torch.Tensor:
    """The factor of each pair of features: `[position, features / 2]`, complex."""
    exponents = torch.arange(0, features, 2, dtype=torch.int64).float() / features
    frequencies = 1.0 / (rope["rope_theta"] ** exponents)
    if rope["rope_type"] == "linear":
        frequencies /= rope["factor"]
    elif rope["rope_type"] == "llama3":
        frequencies = _llama3(frequencies, rope)
    angles = torch.outer(torch.arange(positions).float(), frequencies)
    return torch.polar(torch.ones_like(angles), angles)


def pair_neighbours(weight: torch.Tensor, features: int) -> torch.Tensor:
    """Reorder the rows of a projection (or a bias, or a norm) so that pairs are neighbours."""
    heads = weight.view(-1, 2, features // 2, *weight.shape[1:])
    return heads.transpose(1, 2).reshape(weight.shape)


def rotate(heads: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """Rotate `[token, head, feature]` by `[token, 1, feature / 2]`."""
    tokens, count, features = heads.shape
    wide = heads if heads.dtype == torch.float32 else heads.float()
    pairs = torch.view_as_complex(wide.view(tokens, count, features // 2, 2))
    rotated = torch.view_as_real(pairs * by).view(tokens, count, features)
    return rotated if heads.dtype == torch.float32 else rotated.to(heads.dtype)


def _llama3(frequencies: torch.Tensor, rope: Mapping[str, Any]) -> torch.Tensor:
    old = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    lengths = 2 * math.pi / frequencies
    slow = torch.where(lengths > old / low, frequencies / rope["factor"], frequencies)
    smooth = (old / lengths - low) / (high - low)
    between = (1 - smooth) * slow / rope["factor"] + smooth * slow
    is_between = ~(lengths < old / high) * ~(lengths > old / low)
    return torch.where(is_between, between, slow)
