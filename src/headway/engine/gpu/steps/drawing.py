"""Samples tokens with top-k, top-p or min-p where the logits are: nothing waits for the host, which
knows each row's parameters and random number before the step is computed.

The results equal those of `engine/sampling.py`: the tokens kept, their order, and the token for a
seed. It sorts whole rows instead of only the likeliest tokens, because a device that needs more of
them would have to ask the host.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import torch

from headway.core.generation.sampling import Sampling
from headway.engine.sampling import chance

_TOGETHER = 32  # rows: what they take of the memory is bounded
_NUMBERS = 7  # for each row, as `Draw` and `draw` name them


class Draw(NamedTuple):
    row: int  # of the logits
    slot: int
    position: int
    sampling: Sampling


class CutDraws:
    def __init__(self, rows: int, vocabulary: int, *, in_flight: int, is_pinned: bool) -> None:
        """`in_flight`: the steps whose numbers may be under way at once."""
        self._vocabulary = vocabulary
        made = (torch.empty(_NUMBERS * rows, dtype=torch.float64) for _ in range(in_flight))
        self._buffers = deque(each.pin_memory() if is_pinned else each for each in made)

    def __call__(
        self, draws: Iterable[Draw], logits: torch.Tensor, tokens: torch.Tensor, last: torch.Tensor
    ) -> None:
        """Writes `tokens` by row and `last` by slot, in the device's own order."""
        lines = [self._numbers(each) for each in draws]
        host = self._buffers[0][: _NUMBERS * len(lines)].view(_NUMBERS, len(lines))
        self._buffers.rotate(-1)
        host.numpy()[:] = list(zip(*lines, strict=True))
        given = host.to(logits.device, non_blocking=True)
        for first in range(0, len(lines), _TOGETHER):
            part = given[:, first : first + _TOGETHER]
            rows, slots = part[:2].long()
            drawn = draw(logits[rows], part[2:])
            is_number = logits[rows].amax(-1).isfinite()
            tokens[rows] = drawn.where(is_number, -1).to(tokens.dtype)
            last[slots] = drawn.where(is_number, 0)

    def warm_up(self, logits: torch.Tensor) -> None:
        """The device's library loads what it needs before the first request."""
        for rows in {1, min(_TOGETHER, len(logits))}:
            draw(torch.zeros_like(logits[:rows]), logits.new_ones(5, rows, dtype=torch.float64))

    def _numbers(self, each: Draw) -> tuple[float, ...]:
        sampling = each.sampling
        most = min(sampling.top_k or self._vocabulary, self._vocabulary)
        own = chance(sampling.seed, each.position)
        return (
            each.row,
            each.slot,
            sampling.temperature,
            sampling.min_p,
            most,
            sampling.top_p,
            own,
        )


def draw(logits: torch.Tensor, parameters: torch.Tensor) -> torch.Tensor:
    """A token for each row. `parameters`: 5 × rows, float64: temperature, min_p, top_k, top_p and
    the chance.

    The twin of `_cut` and `_pick`, for many rows and without a branch."""
    temperature, min_p, top_k, top_p, own = (each[:, None] for each in parameters)
    vocabulary = logits.shape[1]
    logits = logits.float() / temperature.float()
    values, tokens = logits.sort(descending=True, stable=True)
    weights = (values - logits.logsumexp(-1, keepdim=True)).exp()
    passing = (weights >= min_p.float() * weights[:, :1]).sum(-1, keepdim=True)
    bound = torch.minimum(passing, top_k.long()).clamp(min=1)  # not a number: 0 would be passing
    sums = weights.double().cumsum(-1)
    whole = torch.where(bound < vocabulary, sums.gather(1, bound - 1), 1.0)
    enough = (sums < top_p * whole).sum(-1, keepdim=True) + 1
    kept = torch.where(top_p < 1.0, torch.minimum(enough, bound), bound)
    index = torch.searchsorted(sums, own * sums.gather(1, kept - 1), right=True)
    return tokens.gather(1, torch.minimum(index, kept - 1))[:, 0]
