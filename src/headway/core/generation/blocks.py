"""KV blocks with reference counts, and the order in which they are evicted.

A new block is taken from the empty ones; when there are none, the cached block that has been unused
longest is evicted. The class knows block numbers only: the engine knows their content, and
`prefixes` the key of each.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable


class Blocks:
    def __init__(self, count: int, on_evict: Callable[[int], None] = lambda block: None) -> None:
        self.count = count
        self._on_evict = on_evict  # called with a block before its content is lost
        self._references = [0] * count
        self._kept = bytearray(count)  # 1: its content is worth keeping
        self._empty = list(range(count - 1, -1, -1))  # free; lowest number first
        self._idle: OrderedDict[int, None] = OrderedDict()  # free and kept; longest unused first

    @property
    def free(self) -> int:
        return len(self._empty) + len(self._idle)

    @property
    def idle(self) -> int:
        """Free blocks whose content is kept."""
        return len(self._idle)

    def references(self, block: int) -> int:
        return self._references[block]

    def take(self, count: int) -> list[int]:
        """Take `count` free blocks, each with one reference. Their content is lost."""
        assert count <= self.free, f"{count} blocks asked for, {self.free} are free"
        taken = []
        for _ in range(count):
            if self._empty:
                block = self._empty.pop()
            else:
                block, _ = self._idle.popitem(last=False)
                self._kept[block] = 0
                self._on_evict(block)
            self._references[block] = 1
            taken.append(block)
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block."""
        for block in blocks:
            if not self._references[block]:
                del self._idle[block]
            self._references[block] += 1

    def keep(self, block: int) -> None:
        """From now on, keep the content of the block while its place is not needed."""
        assert self._references[block], f"block {block} is free"
        self._kept[block] = 1

    def release(self, blocks: list[int]) -> None:
        """Drop a reference to each block. Last first: a prefix outlives its continuation."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if self._kept[block]:
                    self._idle[block] = None
                else:
                    self._empty.append(block)
            assert self._references[block] >= 0, f"block {block} was released twice"

    def forget(self) -> None:
        """Give up the content of all free blocks."""
        for block in self._idle:
            self._empty.append(block)
        self._idle.clear()
        self._kept = bytearray(self.count)
