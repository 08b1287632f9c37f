"""Texts laid end to end, none padded, through an encoder of transformers.

Everything in such a network but attention looks at one token at a time, so only attention has to
know where a text ends. torch's varlen attention does; on the CPU, text by text does as well.
"""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy

from headway.backends.torch import import_torch

Array = numpy.ndarray[Any, Any]

NAME = "headway_packed"
SHORT_DTYPES = ("bfloat16", "float16")  # what varlen attention computes in
# The position of a text's first token, by the kind of network. (How other kinds number positions
# is not known here.) None: one more than the padding's id.
_FIRST_POSITIONS: dict[str, int | None] = {
    "bert": 0,
    "camembert": None,
    "roberta": None,
    "xlm-roberta": None,
}


class Ends(NamedTuple):
    """Where the texts of a batch begin and end."""

    starts: Any  # int32, on the device: of each text, and the end of the last
    bounds: list[int]  # the same, here
    longest: int


def can_pack(settings: Mapping[str, Any]) -> bool:
    """Is it (by its config.json) a network whose positions and attention are known?"""
    return settings.get("model_type") in _FIRST_POSITIONS and not settings.get("is_decoder")


def use(model: Any) -> None:
    """Make its attention keep texts apart; from now on it takes only packed texts."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, _no_mask)
    model.set_attn_implementation(NAME)


def run(model: Any, ids: Array, mask: Array, types: Array | None) -> Any:
    """The states of padded texts (rows × length, the padding last), computed without the padding.

    What is laid where is worked out here: to ask the device would be to wait for it.
    """
    torch = import_torch()
    device = model.device
    tokens = numpy.flatnonzero(mask)
    laid = [ids.reshape(-1)[tokens], _positions(model.config, ids).reshape(-1)[tokens]]
    if types is not None:
        laid.append(types.reshape(-1)[tokens])
    moved = torch.as_tensor(numpy.stack([*laid, tokens]), device=device)
    more = {} if types is None else {"token_type_ids": moved[2][None]}
    ends = _ends(torch, mask.sum(1), device)
    states = model(input_ids=moved[0][None], position_ids=moved[1][None], ends=ends, **more)[0][0]
    padded = states.new_zeros((ids.size, states.shape[-1]))
    return padded.index_copy_(0, moved[-1], states).view(*ids.shape, -1)


def _ends(torch: Any, lengths: Array, device: Any) -> Ends:
    bounds = [0, *numpy.cumsum(lengths).tolist()]
    starts = torch.tensor(bounds, dtype=torch.int32, device=device)
    return Ends(starts, bounds, int(lengths.max()))


def _positions(config: Any, ids: Array) -> Array:
    """Each token's position. A text may contain the padding token, which some networks skip."""
    first = _FIRST_POSITIONS[config.model_type]
    if first is not None:
        return numpy.broadcast_to(numpy.arange(first, first + ids.shape[1]), ids.shape)
    real = ids != config.pad_token_id
    positions: Array = numpy.cumsum(real, 1) * real + config.pad_token_id
    return positions


def _attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    *,
    ends: Ends,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Any, None]:
    """Heads × tokens × width of one row that holds every text."""
    torch = import_torch()
    if not query.is_cuda:
        return _text_by_text(torch, query, key, value, ends, scaling), None
    if query.dtype == torch.float32:
        return _in_float32(torch, query, key, value, ends, scaling), None
    from torch.nn.attention.varlen import varlen_attn

    default = query.shape[-1] ** -0.5
    if scaling is not None and scaling != default:
        query = query * (scaling / default)
    q, k, v = (each[0].transpose(0, 1) for each in (query, key, value))
    attended: Any = varlen_attn(q, k, v, ends.starts, ends.starts, ends.longest, ends.longest)
    return attended[None], None


def _in_float32(
    torch: Any, query: Any, key: Any, value: Any, ends: Ends, scaling: float | None
) -> Any:
    """Attention by the kernel that torch itself uses for padded texts of this type. Only under this
    name can the kernel be given the texts' ends."""
    q, k, v = (each.transpose(1, 2) for each in (query, key, value))
    bounds = (ends.starts, ends.starts, ends.longest, ends.longest)
    return torch.ops.aten._efficient_attention_forward(
        q, k, v, None, *bounds, dropout_p=0.0, custom_mask_type=0, scale=scaling
    )[0]


def _text_by_text(
    torch: Any, query: Any, key: Any, value: Any, ends: Ends, scaling: float | None
) -> Any:
    attended = torch.empty_like(query)
    places = zip(ends.bounds, ends.bounds[1:], strict=False)
    for length, alike in itertools.groupby(places, lambda place: place[1] - place[0]):
        (start, stop), *more = alike
        if more:  # neighbours of one length, together
            stop = more[-1][1]
        each = (0, slice(None), slice(start, stop))
        q, k, v = (given[each].unflatten(1, (-1, length)) for given in (query, key, value))
        together = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scaling)
        attended[each] = together.flatten(1, 2)
    return attended.transpose(1, 2)


def _no_mask(*_: Any, **__: Any) -> None:
    return None
