"""Greedy and tempered sampling on the device, in one pass over the logits.

A token is the argmax of logit / temperature + Gumbel noise, which draws it with the probability
that softmax gives it. The noise is a function of the sequence's seed, the position and the token:
so a sequence gets the same text in any batch.
"""

import torch
import triton
import triton.language as tl

_BLOCK = 4096


@triton.jit
def _best_of_block(
    logits, slots, temperatures, seeds, positions, best, which, vocabulary, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    part = tl.program_id(1)
    slot = tl.load(slots + row)
    token = part * BLOCK + tl.arange(0, BLOCK)
    is_here = token < vocabulary
    value = tl.load(
        logits + row.to(tl.int64) * vocabulary + token, mask=is_here, other=-float("inf")
    ).to(tl.float32)
    is_number = (value == value) & (value < float("inf"))
    temperature = tl.load(temperatures + slot)
    if temperature > 0.0:
        seed = tl.load(seeds + slot) + tl.load(positions + row).to(tl.int64) * 0x9E3779B97F4A7C1
        chance = tl.maximum(tl.rand(seed, token), 1e-10)
        value = value / temperature - tl.log(-tl.log(chance))
        value = tl.where(is_here, value, -float("inf"))
    value = tl.where(is_number, value, float("inf"))  # `max` would pass over what is no number
    found, place = tl.max(value, axis=0, return_indices=True)
    parts = tl.num_programs(1)
    tl.store(best + row * parts + part, found)
    tl.store(which + row * parts + part, part * BLOCK + place)


@triton.jit
def _best_of_row(best, which, slots, tokens, last, parts, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    part = tl.arange(0, BLOCK)
    value = tl.load(best + row * parts + part, mask=part < parts, other=-float("inf"))
    place = tl.argmax(value, axis=0)
    token = tl.load(which + row * parts + place)
    highest = tl.max(value, axis=0)
    is_number = (highest > -float("inf")) & (highest < float("inf"))
    tl.store(tokens + row, tl.where(is_number, token, -1))
    tl.store(last + tl.load(slots + row), tl.where(is_number, token, 0).to(tl.int64))


def sample(
    logits: torch.Tensor,  # rows × vocabulary
    slots: torch.Tensor,  # rows, int32
    positions: torch.Tensor,  # rows, int32: of the token that is drawn
    temperatures: torch.Tensor,  # by slot, float32; 0: the likeliest
    seeds: torch.Tensor,  # by slot, int64
    last: torch.Tensor,  # by slot, int64: written
    tokens: torch.Tensor,  # rows, int32: written; -1 where the logits are no finite numbers
) -> None:
    rows, vocabulary = logits.shape
    parts = triton.cdiv(vocabulary, _BLOCK)
    best = torch.empty((rows, parts), dtype=torch.float32, device=logits.device)
    which = torch.empty((rows, parts), dtype=torch.int32, device=logits.device)
    _best_of_block[(rows, parts)](
        logits, slots, temperatures, seeds, positions, best, which, vocabulary, BLOCK=_BLOCK
    )
    _best_of_row[(rows,)](
        best, which, slots, tokens, last, parts, BLOCK=triton.next_power_of_2(parts), num_warps=1
    )
