"""Attention over pages in plain torch: where there are no kernels, and as the reference for them.

Decodes are one batch, over gathered pages. All queries that share a key head are rows of one
product, so each key is read once. A prompt's chunk is attended to by itself: a fresh prompt on the
keys just computed, a later chunk on gathered pages.
"""

import math

import torch
import torch.nn.functional as F

from headway.engine.attention.base import Attention
from headway.engine.cache import KvCache
from headway.engine.inputs import Chunk, Inputs


class PlainAttention(Attention):
    """Attention by torch. Holds the step's masks."""

    def __init__(self, cache: KvCache, inputs: Inputs) -> None:
        super().__init__(cache, inputs, dtype=cache.keys[0].dtype)
        assert inputs.context is not None
        self._context = inputs.context
        self._decode_mask = self._mask_decodes()
        self._chunk_masks = [self._mask_chunk(each) for each in inputs.chunks]

    def _attend(
        self,
        layer: int,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        inputs = self._inputs
        if not inputs.chunks:
            return self._decode(layer, queries, scale)
        out = torch.empty_like(queries)
        if inputs.decodes:
            out[: inputs.decodes] = self._decode(layer, queries[: inputs.decodes], scale)
        for chunk, mask in zip(inputs.chunks, self._chunk_masks, strict=True):
            rows = slice(chunk.start, chunk.end)
            if mask is None:
                context = keys[rows], values[rows]
            else:
                context = self._gather(layer, chunk.blocks, chunk.context)
            out[rows] = _attend_chunk(queries[rows], *context, mask=mask, scale=scale)
        return out

    def _decode(self, layer: int, queries: torch.Tensor, scale: float) -> torch.Tensor:
        """Attention for the decodes alone; their keys and values are in the cache already."""
        count, heads, features = queries.shape
        all_keys, all_values = self._cache.keys[layer], self._cache.values[layer]
        kv_heads = all_keys.shape[2]
        flat = self._context.blocks.reshape(-1)
        keys, values = (
            each.index_select(0, flat).view(count, -1, kv_heads, features).transpose(1, 2)
            for each in (all_keys, all_values)
        )
        if not self._cache.is_finite:  # what is masked is multiplied, too: 0 × NaN is NaN
            hidden = self._decode_mask[:, 0].transpose(1, 2)[:, None] < 0
            keys, values = (each.masked_fill(hidden, 0.0) for each in (keys, values))
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
        """Added to the scores of the gathered pages: nothing, or minus infinity where a decode
        may not look. `[sequence, 1, 1, position]`."""
        context = self._context
        positions = torch.arange(context.blocks.shape[1] * self._cache.block_size)
        hidden = positions >= context.lengths[:, None]
        mask = torch.zeros(hidden.shape, dtype=self._cache.keys[0].dtype)
        return mask.masked_fill_(hidden, -math.inf)[:, None, None, :]

    def _mask_chunk(self, chunk: Chunk) -> torch.Tensor | None:
        """The chunk's mask; None: a fresh prompt, for which the causal mask is enough."""
        if not chunk.position:
            return None
        queries = torch.arange(chunk.position, chunk.context)[:, None]
        return torch.arange(chunk.context) <= queries


def _attend_chunk(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    mask: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """Attention of one sequence: `[token, head, feature]`; there may be fewer key heads than query
    heads."""
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
