"""Steps with prompts in them before the first request: their kernels are compiled, the vendor's
library has chosen its own, and the allocator has the memory that the largest step takes."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway.core.generation.limits import EngineLimits
from headway.core.generation.step import Decode, Prefill, Step

if TYPE_CHECKING:
    from headway.engine.gpu.steps.runner import GpuRunner

_LEAST = 16  # tokens of a chunk
_BESIDE = 8  # decodes, while the size of the prompts varies


def warm_mixed(runner: "GpuRunner") -> None:
    """Warm up, once graphs are captured (that frees memory). No sequence may be under way."""
    for step in mixed_steps(runner.limits):
        runner.start(step).result()


def mixed_steps(limits: EngineLimits) -> Iterator[Step]:
    """The largest first; then prompts of every size (in powers of two), and every number of
    decodes that splits its attention in another way."""
    most_decodes = limits.max_sequences - 1
    beside = min(_BESIDE, most_decodes // 2)
    most = limits.step_tokens - beside
    sizes = [(beside, tokens) for tokens in (most, *_powers(_LEAST, most))]
    for decodes in (0, *_powers(1, most_decodes)):
        sizes.append((decodes, min(_LEAST, limits.step_tokens - decodes)))
    for number, (decodes, tokens) in enumerate(sizes, 1):
        yield _step(limits, number, decodes, tokens)


def _powers(least: int, most: int) -> list[int]:
    return [1 << power for power in range(least.bit_length() - 1, most.bit_length())]


def _step(limits: EngineLimits, number: int, decodes: int, tokens: int) -> Step:
    """A step for warming up. All of its sequences write to the same blocks: the results are not
    used."""
    longest = min(limits.max_context, limits.blocks * limits.block_size)
    prompts = []
    for slot in range(decodes, limits.max_sequences):
        count = min(tokens, longest)
        if count < 1:
            break
        blocks = tuple(range(limits.blocks_for(count)))
        ids = (0,) * count
        prompts.append(Prefill(-1, slot, 0, ids, blocks, is_first=True, is_last=True))
        tokens -= count
    rows = tuple(Decode(-1, slot, 0, ()) for slot in range(decodes))
    return Step(number, rows, tuple(prompts), (), ())
