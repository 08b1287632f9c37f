"""Samples tokens from logits, for each sequence with its own options.

The random number depends only on the sequence's seed and the token's position: so a sequence gets
the same text in any batch, and again after it was preempted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from headway.core.generation.sampling import Logprobs, Sampling

NOT_FINITE = "the model's logits are not finite numbers"
_CANDIDATES = 256  # the likeliest, which nearly always hold all that top-k and top-p keep
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Row:
    """A sequence that samples: its options, its position, and its tokens so far."""

    sampling: Sampling
    position: int
    prompt: Sequence[int]
    generated: Sequence[int]
    allowed: torch.Tensor | None = None  # the tokens that its grammar takes next; None: all
    error: str = ""  # why no token can be chosen


@dataclass(frozen=True, slots=True)
class Sampled:
    tokens: list[int]
    logprobs: list[Logprobs | None]
    broken: dict[int, str] = field(default_factory=dict)  # rows whose token means nothing, and why


def sample(logits: torch.Tensor, rows: Sequence[Row]) -> Sampled:
    logits = logits.float()
    raw = logits
    broken = dict.fromkeys((~logits.amax(-1).isfinite()).nonzero()[:, 0].tolist(), NOT_FINITE)
    if broken:
        logits = logits.clone()
        logits[list(broken)] = 0.0  # nothing below meets what is no number
    if any(_is_adjusted(each) for each in rows):
        logits = logits.clone()
        for index, row in enumerate(rows):
            _adjust(logits[index], row)
    chosen = logits.argmax(dim=-1)
    drawn = [index for index, row in enumerate(rows) if not row.sampling.is_greedy]
    if drawn:
        where = torch.tensor(drawn)
        chosen[where] = _draw(logits[where], [rows[index] for index in drawn])
    tokens = chosen.tolist()
    logprobs = [
        None if row.sampling.logprobs is None else logprobs_of(line, token, row.sampling.logprobs)
        for line, token, row in zip(raw, tokens, rows, strict=True)
    ]
    broken |= {index: row.error for index, row in enumerate(rows) if row.error}
    return Sampled(tokens, logprobs, broken)


def chance(seed: int, position: int) -> float:
    """A number from 0 to 1, without 1, by the seed and the position (splitmix64, twice)."""
    state = _mix(_mix(seed & _MASK) + position)
    return (state >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _is_adjusted(row: Row) -> bool:
    sampling = row.sampling
    return bool(sampling.has_penalties or sampling.logit_bias or row.allowed is not None)


def _adjust(logits: torch.Tensor, row: Row) -> None:
    """Apply grammar, penalties and biases, in place."""
    sampling = row.sampling
    if row.allowed is not None:
        logits.masked_fill_(~row.allowed, -torch.inf)
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*row.prompt, *row.generated}))
        known = logits[seen]
        penalty = sampling.repetition_penalty
        logits[seen] = torch.where(known > 0, known / penalty, known * penalty)
    if row.generated and (sampling.presence_penalty or sampling.frequency_penalty):
        tokens, counts = torch.tensor(row.generated).unique(return_counts=True)
        often = counts.to(logits.dtype)
        logits[tokens] -= sampling.presence_penalty + sampling.frequency_penalty * often
    if sampling.logit_bias:
        tokens = torch.tensor(list(sampling.logit_bias))
        logits[tokens] += logits.new_tensor(list(sampling.logit_bias.values()))


def _draw(logits: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
    logits = logits / logits.new_tensor([[row.sampling.temperature] for row in rows])
    own = [[chance(row.sampling.seed, row.position)] for row in rows]
    chances = torch.tensor(own, dtype=torch.float64)  # float32 would round some of them up to 1
    chosen = torch.empty(len(rows), dtype=torch.int64)
    plain = [index for index, row in enumerate(rows) if not _is_cut(row.sampling)]
    if plain:
        where = torch.tensor(plain)
        chosen[where] = _pick(logits[where].softmax(-1), chances[where])
    for index in (index for index, row in enumerate(rows) if _is_cut(row.sampling)):
        line, sampling = logits[index], rows[index].sampling
        kept, tokens = _cut(line, sampling)
        chosen[index] = tokens[_pick(kept[None], chances[index : index + 1])[0]]
    return chosen


def _pick(weights: torch.Tensor, chances: torch.Tensor) -> torch.Tensor:
    """The index at which the running sum passes the chance's share of the whole."""
    sums = weights.double().cumsum(-1)
    index = torch.searchsorted(sums, chances * sums[:, -1:], right=True)[:, 0]
    return index.clamp_(max=weights.shape[-1] - 1)


def _is_cut(sampling: Sampling) -> bool:
    return bool(sampling.top_p < 1.0 or sampling.top_k or sampling.min_p)


def _cut(logits: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """The probabilities and tokens that min-p, then top-k, then top-p leave; the likeliest first,
    and of equals the one with the lower id. `gpu/drawing.py` does the same for many rows."""
    total = logits.logsumexp(-1)
    candidates = min(_CANDIDATES, len(logits))
    while True:
        values, tokens = _likeliest(logits, candidates)
        weights = (values - total).exp()
        kept = _keep(weights, sampling, len(logits))
        # An equal of the last kept may be among those that were not looked at.
        if kept is not None and (
            candidates == len(logits) or values[kept - 1] > values[-1] or not weights[kept - 1]
        ):
            return weights[:kept], tokens[:kept]
        candidates = min(candidates * 16, len(logits))


def _likeliest(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = logits.topk(count).indices.sort().values
    values, order = logits[tokens].sort(descending=True, stable=True)
    return values, tokens[order]


def _keep(weights: torch.Tensor, sampling: Sampling, vocabulary: int) -> int | None:
    """The number of likeliest tokens to keep; None: more of them are needed to know."""
    seen = len(weights)
    bound = min(sampling.top_k or vocabulary, vocabulary)
    if sampling.min_p:
        passing = int((weights >= sampling.min_p * weights[0]).sum())
        if passing == seen < bound:
            return None
        bound = max(1, min(bound, passing))  # none passes where the logits are no numbers
    if sampling.top_p == 1.0 or seen < bound < vocabulary:
        return bound if bound <= seen else None
    sums = weights[:bound].double().cumsum(-1)
    whole = sums[-1] if bound < vocabulary else 1.0
    enough = min(int((sums < sampling.top_p * whole).sum()) + 1, bound)
    return enough if enough <= seen else None


def logprobs_of(logits: torch.Tensor, token: int, count: int) -> Logprobs:
    lines = logits.log_softmax(-1)
    top: tuple[tuple[int, float], ...] = ()
    if count:
        values, tokens = lines.topk(count)
        top = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
    return Logprobs(float(lines[token]), top)
