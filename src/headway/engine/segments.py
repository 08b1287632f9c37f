"""Which stretches of the cache decodes can read where they lie, without gathering pages.

Blocks are mostly handed out in a row, so a long prompt is one stretch of memory: a view. Sequences
that share a prefix share its stretch, and one product reads it for all of them. What follows (the
tokens generated since, scattered over the cache) is gathered.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

LEAST = 8  # blocks: a shorter stretch is gathered sooner than it is attended to by itself


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Full blocks in a row, and the decodes that attend to all of them."""

    first: int  # block
    blocks: int
    rows: tuple[int, ...]


def segments_of(
    starts: Sequence[int], runs: Sequence[int]
) -> tuple[tuple[BlockRun, ...], tuple[int, ...]]:
    """The segments, and after how many blocks the rest of each decode begins.

    `starts` are the decodes' first blocks, `runs` how many full ones follow in a row from there.
    """
    families: dict[int, list[int]] = defaultdict(list)
    for row, start in enumerate(starts):
        families[start].append(row)
    segments, read = [], [0] * len(starts)
    for start, rows in families.items():
        shared = min(runs[row] for row in rows)
        if shared >= LEAST:
            segments.append(BlockRun(start, shared, tuple(rows)))
            for row in rows:
                read[row] = shared
        for row in rows:
            own = runs[row] - read[row]
            if own >= LEAST:
                segments.append(BlockRun(start + read[row], own, (row,)))
                read[row] = runs[row]
    return tuple(segments), tuple(read)
