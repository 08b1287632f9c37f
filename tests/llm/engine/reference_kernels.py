"""The same functions in plain torch: slow, for any device; kernels are held against them."""

import torch
from torch.nn import functional


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float, residual: torch.Tensor | None = None
) -> torch.Tensor:
    if residual is not None:
        residual.add_(x)
        x = residual
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return wide.to(x.dtype) * weight


def rotate_and_store(
    qkv: torch.Tensor,
    cosines: torch.Tensor,
    sines: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    query_heads: int,
    norms: tuple[torch.Tensor, torch.Tensor] | None = None,
    epsilon: float = 0.0,
) -> torch.Tensor:
    _, heads, page, dim = keys.shape
    widths = [query_heads * dim, heads * dim, heads * dim]
    query, key, value = (part.unflatten(-1, (-1, dim)) for part in qkv.split(widths, -1))
    if norms is not None:
        query, key = (
            rms_norm(each, norm, epsilon) for each, norm in zip((query, key), norms, strict=True)
        )
    cosine, sine = cosines[positions.long()][:, None], sines[positions.long()][:, None]
    query, key = _rotated(query, cosine, sine), _rotated(key, cosine, sine)
    stored = slots >= 0
    where = slots[stored].long()
    keys[where // page, :, where % page] = key[stored]
    values[where // page, :, where % page] = value[stored]
    return query


def _rotated(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.float().chunk(2, -1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
    return turned.to(x.dtype)


def silu_and_multiply(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return functional.silu(gate) * up


def attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    tables: torch.Tensor,
    slots: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attention for prompts and single tokens alike, one sequence at a time."""
    page = keys.shape[2]
    out = torch.zeros_like(queries)
    for number, (start, stop) in enumerate(zip(starts.tolist(), starts.tolist()[1:], strict=False)):
        length = int(lengths[number])
        if stop == start or not length:
            continue
        pages = tables[int(slots[number]), : -(-length // page)].long()
        key = keys[pages].transpose(0, 1).flatten(1, 2)[:, :length]
        value = values[pages].transpose(0, 1).flatten(1, 2)[:, :length]
        seen = torch.ones(stop - start, length, dtype=torch.bool, device=queries.device)
        seen = seen.tril(length - (stop - start))
        found = functional.scaled_dot_product_attention(
            queries[start:stop].transpose(0, 1)[None],
            key[None],
            value[None],
            attn_mask=seen,
            scale=scale,
            enable_gqa=True,
        )
        out[start:stop] = found[0].transpose(0, 1)
    return out
