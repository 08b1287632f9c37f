"""Attention over pages in plain torch: for the CPU, and as the reference for kernels.

Decodes are one batch: their pages are gathered to the longest context among them. All queries that
share a key head are rows of one product, so each key is read once. A prompt's chunk is attended to
by itself: a fresh prompt on the keys just computed, a later chunk on gathered pages.
"""

import math

import torch
import torch.nn.functional as F

from headway.engine.cache import KvCache
from headway.engine.inputs import Chunk, Inputs


class PlainAttention:
    """One step's attention, layer by layer. Made anew for every step: it holds the masks."""

    def __init__(self, cache: KvCache, inputs: Inputs, *, window: int = 0) -> None:
        self._cache = cache
        self._inputs = inputs
        self._window = window
        self._decode_mask = self._mask_decodes() if inputs.decodes else None
        self._chunk_masks = [self._mask_chunk(each) for each in inputs.chunks]

    def __call__(
        self,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        scale: float | None = None,
    ) -> torch.Tensor:
        """Queries, keys and values as `[token, head, feature]`; answers as queries are."""
        inputs = self._inputs
        self._cache.write(layer, inputs.places, keys, values)
        scale = scale if scale is not None else 1.0 / math.sqrt(queries.shape[-1])
        out = torch.empty_like(queries)
        if inputs.decodes:
            out[: inputs.decodes] = self._decode(layer, queries[: inputs.decodes], scale)
        for chunk, mask in zip(inputs.chunks, self._chunk_masks, strict=True):
            rows = slice(chunk.start, chunk.end)
            if mask is None:
                context = keys[rows], values[rows]
            else:
                context = self._gather(layer, chunk.blocks, chunk.context)
            out[rows] = _attend(queries[rows], *context, mask=mask, scale=scale)
        return out

    def _decode(self, layer: int, queries: torch.Tensor, scale: float) -> torch.Tensor:
        blocks = self._inputs.decode_blocks
        count, heads, features = queries.shape
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        kv_heads = keys.shape[2]
        flat = blocks.reshape(-1)
        keys = keys.index_select(0, flat).view(count, -1, kv_heads, features).transpose(1, 2)
        values = values.index_select(0, flat).view(count, -1, kv_heads, features).transpose(1, 2)
        grouped = queries.view(count, kv_heads, heads // kv_heads, features)
        out = F.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=self._decode_mask, scale=scale
        )
        return out.reshape(count, heads, features)

    def _gather(
        self, layer: int, blocks: torch.Tensor, context: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (
            cache[layer].index_select(0, blocks).flatten(0, 1)[:context]
            for cache in (self._cache.keys, self._cache.values)
        )
        return keys, values

    def _mask_decodes(self) -> torch.Tensor:
        """What of the gathered pages each decode may see: `[sequence, 1, 1, position]`."""
        inputs = self._inputs
        positions = torch.arange(inputs.decode_blocks.shape[1] * self._cache.block_size)
        ends = inputs.decode_lengths[:, None]
        seen = positions < ends
        if self._window:
            seen &= positions >= ends - self._window
        return seen[:, None, None, :]

    def _mask_chunk(self, chunk: Chunk) -> torch.Tensor | None:
        """None: a fresh prompt, which needs no other mask than the usual triangle."""
        if not chunk.position and not (self._window and chunk.context > self._window):
            return None
        queries = torch.arange(chunk.position, chunk.context)[:, None]
        keys = torch.arange(chunk.context)
        seen = keys <= queries
        if self._window:
            seen &= keys > queries - self._window
        return seen


def _attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    mask: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """One sequence: `[token, head, feature]`, with fewer key heads than query heads, perhaps."""
    count, heads, features = queries.shape
    kv_heads = keys.shape[1]
    group = heads // kv_heads
    grouped = queries.view(count, kv_heads, group, features).permute(1, 2, 0, 3)
    keys, values = (
        each.transpose(0, 1)[:, None].expand(-1, group, -1, -1) for each in (keys, values)
    )
    out = F.scaled_dot_product_attention(
        grouped, keys, values, attn_mask=mask, is_causal=mask is None, scale=scale
    )
    return out.permute(2, 0, 1, 3).reshape(count, heads, features)
