"""Block tables of running sequences: opened on cached prefixes, grown, registered, closed."""

from headway.core.generation.limits import EngineLimits
from headway.core.generation.prefixes import Prefixes
from headway.core.generation.sequence import Progress


class BlockTables:
    def __init__(self, limits: EngineLimits, model: str) -> None:
        self._size = limits.block_size
        self.prefixes = Prefixes(blocks=limits.blocks, block_size=limits.block_size, model=model)
        self.blocks = self.prefixes.blocks
        self._promised: dict[
            bytes, Progress
        ] = {}  # prefixes being computed, and the sequence that computes each

    def cached(self, progress: Progress) -> list[int]:
        """The blocks of its longest cached prefix; the last token is always computed."""
        most = (len(progress.tokens) - 1) // self._size
        if len(progress.keys) < most:
            self.prefixes.extend(progress.keys, progress.root, progress.tokens, most)
        return self.prefixes.match(progress.keys[:most])

    def needed(self, progress: Progress, cached: list[int]) -> int:
        """The number of free blocks that opening its table uses."""
        idle = sum(1 for block in cached if not self.blocks.references(block))
        return -(-len(progress.tokens) // self._size) - len(cached) + idle

    def computes(self, progress: Progress, cached: list[int]) -> Progress | None:
        """The sequence that is computing the block that this one would compute first."""
        if len(cached) < (len(progress.tokens) - 1) // self._size:
            return self._promised.get(progress.keys[len(cached)])
        return None

    def open(self, progress: Progress, cached: list[int]) -> None:
        self.blocks.share(cached)
        fresh = self.blocks.take(-(-len(progress.tokens) // self._size) - len(cached))
        progress.blocks = cached + fresh
        progress.new_blocks = list(progress.blocks)
        progress.computed = len(cached) * self._size
        progress.registered = len(cached)
        for key in progress.keys[len(cached) :]:
            self._promised.setdefault(key, progress)

    def grow(self, progress: Progress) -> None:
        block = self.blocks.take(1)[0]
        progress.blocks.append(block)
        progress.new_blocks.append(block)

    def register(self, progress: Progress) -> None:
        """Register its full blocks that are computed and have known tokens."""
        full = min(progress.computed, len(progress.tokens)) // self._size
        if full <= progress.registered:
            return
        self.prefixes.extend(progress.keys, progress.root, progress.tokens, full)
        for index in range(progress.registered, full):
            key = progress.keys[index]
            self.prefixes.register(key, progress.blocks[index])
            if self._promised.get(key) is progress:
                del self._promised[key]
        progress.registered = full

    def close(self, progress: Progress) -> None:
        for key in progress.keys[progress.registered :]:
            if self._promised.get(key) is progress:
                del self._promised[key]
        self.blocks.release(progress.blocks)
        progress.blocks = []
        progress.new_blocks = []
        progress.computed = progress.registered = 0
