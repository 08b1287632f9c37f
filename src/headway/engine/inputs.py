"""The model's input in one step: the tokens of all sequences in one row, without padding.

Decodes come first, one token each, then the prompts' chunks. So attention treats the front of the
row as one batch, and each chunk by itself.
"""

from dataclasses import dataclass

import torch

from headway.core.generation.step import Step
from headway.engine.cache import Tables


@dataclass(frozen=True, slots=True)
class Chunk:
    """The place of one prompt's tokens in the row, and of its keys and values in the cache."""

    start: int  # in the row
    end: int
    position: int  # of its first token in the sequence
    blocks: torch.Tensor  # as far as its last token

    @property
    def context(self) -> int:
        """The number of tokens that its last token attends to."""
        return self.position + self.end - self.start


@dataclass(frozen=True, slots=True)
class DecodeContext:
    """The context that decodes attend to where there are no kernels."""

    blocks: torch.Tensor  # [decodes, most blocks], padded with any block
    lengths: torch.Tensor  # tokens in them that each attends to, its own included


@dataclass(frozen=True, slots=True)
class Inputs:
    ids: torch.Tensor
    positions: torch.Tensor
    row_slots: torch.Tensor
    places: torch.Tensor  # where in the cache each token's key and value go
    decodes: int
    chunks: tuple[Chunk, ...]
    sampled: torch.Tensor  # the rows after which a token is sampled
    slots: torch.Tensor  # of these
    context: DecodeContext | None  # None: kernels attend, and gather nothing


def inputs_of(step: Step, tables: Tables, block_size: int, *, gathers: bool) -> Inputs:
    """Bring the tables up to date, and lay the step out."""
    for prefill in step.prefill:
        if prefill.is_first:
            tables.start(prefill.slot)
        tables.append(prefill.slot, prefill.blocks)
    for decode in step.decode:
        if decode.blocks:
            tables.append(decode.slot, decode.blocks)
    decodes = len(step.decode)
    slots = [each.slot for each in step.decode]
    positions = [each.position for each in step.decode]
    rows, sampled = list(slots), list(range(decodes))
    ids = [tables.last[torch.tensor(slots, dtype=torch.int64)]]
    chunks = []
    for prefill in step.prefill:
        start, count = len(rows), len(prefill.tokens)
        context = prefill.position + count
        blocks = tables.blocks[prefill.slot, : -(-context // block_size)]
        chunks.append(Chunk(start, start + count, prefill.position, blocks))
        rows += [prefill.slot] * count
        positions += range(prefill.position, context)
        ids.append(torch.tensor(prefill.tokens, dtype=torch.int64))
        if prefill.is_last:
            sampled.append(len(rows) - 1)
            slots.append(prefill.slot)
    where, row_slots = torch.tensor(positions), torch.tensor(rows)
    return Inputs(
        ids=torch.cat(ids),
        positions=where,
        row_slots=row_slots,
        places=tables.blocks[row_slots, where // block_size] * block_size + where % block_size,
        decodes=decodes,
        chunks=tuple(chunks),
        sampled=torch.tensor(sampled, dtype=torch.int64),
        slots=torch.tensor(slots, dtype=torch.int64),
        context=_context(step, tables, block_size) if gathers else None,
    )


def _context(step: Step, tables: Tables, block_size: int) -> DecodeContext:
    slots = torch.tensor([each.slot for each in step.decode], dtype=torch.int64)
    lengths = torch.tensor([each.position + 1 for each in step.decode], dtype=torch.int64)
    most = -(-max((each.position + 1 for each in step.decode), default=0) // block_size)
    return DecodeContext(tables.blocks[slots, :most], lengths)
