"""transformers' attention interface: each keyword that a model hands over is honoured, known to be
without effect, or refused by its name.

Under the name `PAGED` attention is ours, and no mask function is registered: transformers then
builds no mask. Under `OBSERVED` nothing attends; what the model asks for is looked at, once, when
it is loaded.
"""

from collections import Counter
from typing import Any, NamedTuple

import torch

from headway.engine.attention.base import Attention
from headway.errors import ConfigError

PAGED, OBSERVED = "headway_paged", "headway_observed"
# Known to be without effect at these values; any other value is refused.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "dropout": (0.0, None),
    **dict.fromkeys(("is_causal", "return_dict"), (True, None)),
    **dict.fromkeys(
        ("use_cache", "output_attentions", "output_hidden_states", "output_router_logits"),
        (False, None),
    ),
    **dict.fromkeys(
        (
            *("softcap", "s_aux", "sinks", "position_bias", "block_indices", "indices"),
            *("head_mask", "layer_head_mask", "past_key_value", "past_key_values", "seq_idx"),
            *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "cache", "labels"),
            *("num_items_in_batch", "encoder_hidden_states", "encoder_attention_mask"),
            "block_table",
        ),
        (None,),
    ),
}
_MEANING = {
    "softcap": "a cap on attention's logits",
    "s_aux": "an attention sink",
    "sinks": "an attention sink",
    "position_bias": "a bias by position",
    "is_causal": "looking ahead",
}
# Without effect in any form: queries and keys are rotated already.
_UNUSED = {"position_ids", "cache_position", "position_embeddings", "deterministic"}


class Layer(NamedTuple):
    """The input of attention from one layer: `[token, head, feature]`."""

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


class Observer:
    """Takes attention's place: each row gets its own value, so that no row sees another."""

    def __init__(self) -> None:
        self.layers: dict[int, Layer] = {}
        self.calls: Counter[int] = Counter()
        self.windows: list[int] = []
        self.masks: list[Any] = []  # functions of batch, head, query and key

    def see(self, module: Any, layer: Layer, mask: Any, keywords: dict[str, Any]) -> torch.Tensor:
        if mask is not None:
            asked = [function for made, function in _made if made is mask]
            if not asked:
                raise ConfigError("attention is given a mask of the model's own")
            self.masks += asked
        if not getattr(module, "is_causal", True):
            raise ConfigError("attention looks ahead (is_causal is False)")
        window = keywords.pop("sliding_window", None)
        if window is not None:
            self.windows.append(int(window))
        for name, value in keywords.items():
            if name not in _NEUTRAL and name not in _UNUSED:
                raise ConfigError(f"attention is given {name!r}, which is not known")
            if name in _NEUTRAL and not _is_neutral(value, _NEUTRAL[name]):
                meaning = _MEANING.get(name, "what it asks for")
                raise ConfigError(f"attention is given {name!r}: {meaning} is not computed")
        index = int(module.layer_idx)
        self.calls[index] += 1
        self.layers[index] = layer
        group = layer.queries.shape[1] // layer.values.shape[1]
        return layer.values.repeat_interleave(group, 1)


def register() -> None:
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(PAGED, _attend)
    AttentionInterface.register(OBSERVED, _observe)
    AttentionMaskInterface.register(OBSERVED, _make_mask)


def causal_until(mask: Any, context: int) -> int:
    """The longest context up to which a mask is causal: each token sees all tokens before it, and
    none after."""
    if _is_triangle(mask, context):
        return context
    least, most = 0, context  # it is one at `least`, and none at `most`
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if _is_triangle(mask, middle) else (least, middle)
    return least


def _is_triangle(mask: Any, context: int) -> bool:
    """Whether the mask is causal, by its last row and some before: a window or chunk shows there
    first."""
    batch, columns = torch.tensor(0), torch.arange(context + 1)
    for row in sorted({0, context // 3, context // 2, max(context - 2, 0), context - 1}):
        allowed = mask(batch, batch, torch.tensor(row), columns)
        allowed = torch.as_tensor(allowed).expand(len(columns))
        if not torch.equal(allowed, columns <= row):
            return False
    return True


_made: list[tuple[torch.Tensor, Any]] = []  # masks of the forward under way, and their functions


def forget_masks() -> None:
    _made.clear()


def _make_mask(*_: Any, mask_function: Any = None, **__: Any) -> torch.Tensor:
    """A mark, by which a layer says which of the masks it would use."""
    mark = torch.zeros(1, 1, 1, 1)
    _made.append((mark, mask_function))
    return mark


def _is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    return any(value is each or (type(value) is type(each) and value == each) for each in neutral)


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    headway_attention: Attention,
    scaling: float | None = None,
    **_: Any,  # the same at every step: `Observer` has looked at them
) -> tuple[torch.Tensor, None]:
    """`[1, head, token, feature]`, queries and keys already rotated."""
    assert attention_mask is None
    width, out_width = query.shape[-1], value.shape[-1]
    if out_width < width:
        value = torch.nn.functional.pad(value, (0, width - out_width))
    packed = (each[0].transpose(0, 1).contiguous() for each in (query, key, value))
    if scaling is None:
        scaling = width**-0.5
    out = headway_attention(module.layer_idx, *packed, scale=scaling)
    return out[None, ..., :out_width], None


def _observe(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    headway_attention: Observer | None = None,
    scaling: float | None = None,
    **keywords: Any,
) -> tuple[torch.Tensor, None]:
    if headway_attention is None:
        raise ConfigError("keywords do not come through to attention")
    layer = Layer(*(each[0].transpose(0, 1) for each in (query, key, value)))
    return headway_attention.see(module, layer, attention_mask, keywords)[None], None
