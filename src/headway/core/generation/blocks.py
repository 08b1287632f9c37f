"""KV blocks: who refers to each, which prefix it holds, and the block tables of sequences."""

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

from headway.core.generation.limits import EngineLimits
from headway.core.generation.sequence import Progress


class Blocks:
    """Reference counts, and the order of eviction.

    A new block is taken from the empty ones; when there are none, the cached block that has been
    unused longest is evicted, and those that somebody waits for last. Knows block numbers only:
    the engine knows their content, and `Prefixes` the key of each.
    """

    def __init__(self, count: int, on_evict: Callable[[int], None] = lambda block: None) -> None:
        self.count = count
        self._on_evict = on_evict  # called with a block before its content is lost
        self._references = [0] * count
        self._kept = bytearray(count)  # 1: its content is worth keeping
        self._empty = list(range(count - 1, -1, -1))  # free; lowest number first
        self._wanted = bytearray(count)  # 1: a waiting sequence will use its content
        # Free and kept, longest unused first: those that nobody waits for, and the others.
        self._idle: tuple[OrderedDict[int, None], OrderedDict[int, None]] = (
            OrderedDict(),
            OrderedDict(),
        )

    @property
    def free(self) -> int:
        return self.spare + len(self._idle[1])

    @property
    def spare(self) -> int:
        """Free blocks whose content nobody waits for."""
        return len(self._empty) + len(self._idle[0])

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
                block, _ = (self._idle[0] or self._idle[1]).popitem(last=False)
                self._kept[block] = self._wanted[block] = 0
                self._on_evict(block)
            self._references[block] = 1
            taken.append(block)
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block."""
        for block in blocks:
            if not self._references[block]:
                del self._idle[self._wanted[block]][block]
            self._references[block] += 1

    def keep(self, block: int) -> None:
        """From now on, keep the content of the block while its place is not needed."""
        assert self._references[block], f"block {block} is free"
        self._kept[block] = 1

    def want(self, block: int) -> None:
        """Evict this block after all others, as long as it keeps its content."""
        self._mark(block, 1)

    def unwant(self, block: int) -> None:
        self._mark(block, 0)

    def _mark(self, block: int, wanted: int) -> None:
        if not self._references[block]:
            del self._idle[self._wanted[block]][block]
            self._idle[wanted][block] = None
        self._wanted[block] = wanted

    def release(self, blocks: list[int]) -> None:
        """Drop a reference to each block. Last first: a prefix outlives its continuation."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if self._kept[block]:
                    self._idle[self._wanted[block]][block] = None
                else:
                    self._empty.append(block)
            assert self._references[block] >= 0, f"block {block} was released twice"

    def forget(self) -> None:
        """Give up the content of all free blocks."""
        for idle in self._idle:
            self._empty += idle
            idle.clear()
        self._kept = bytearray(self.count)
        self._wanted = bytearray(self.count)


_KEY_BYTES = 16


class Prefixes:
    """The prefix cache: finds the blocks that hold the keys and values of a prefix.

    A full block's key is a hash of its tokens chained to the key before it, so one key identifies
    the whole prefix. The chain starts from the model, the adapter and the salt: neither another
    adapter's nor another salt's sequence can meet a block by any choice of tokens.
    """

    def __init__(self, *, blocks: int, block_size: int, model: str = "") -> None:
        self.blocks = Blocks(blocks, self._evicted)
        self._block_size = block_size
        self._model = model
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._wanted: dict[bytes, int] = {}  # how many waiting sequences will use it; never 0

    def __len__(self) -> int:
        return len(self._block_of)

    def root(self, adapter: str, salt: str) -> bytes:
        """The first key of all prefixes of one adapter and salt."""
        # A caller's text may hold half a surrogate.
        parts = [each.encode(errors="surrogatepass") for each in (self._model, adapter, salt)]
        digest = blake2b(digest_size=_KEY_BYTES)
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.digest()

    def extend(self, keys: list[bytes], root: bytes, tokens: list[int], blocks: int) -> None:
        """Append keys until each of the first `blocks` blocks of the tokens has one."""
        size = self._block_size
        parent = keys[-1] if keys else root
        content = array("q", tokens[len(keys) * size : blocks * size]).tobytes()
        for start in range(0, len(content), 8 * size):
            block = content[start : start + 8 * size]
            parent = blake2b(parent + block, digest_size=_KEY_BYTES).digest()
            keys.append(parent)

    def match(self, keys: Sequence[bytes]) -> list[int]:
        """The blocks of the longest known prefix. They stay free until the caller shares them."""
        found = []
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def register(self, key: bytes, block: int) -> None:
        """The block holds this prefix's last tokens, from the step now issued on.

        Steps run in order, so later sequences may read it. If two sequences computed the same
        prefix, the cache finds the first one's block; the other block stays private.
        """
        if key not in self._block_of:
            self._block_of[key] = block
            self._key_of[block] = key
            self.blocks.keep(block)
            if key in self._wanted:
                self.blocks.want(block)

    def want(self, keys: Sequence[bytes]) -> None:
        """A waiting sequence will use blocks with these keys: they are evicted after all others."""
        for key in reversed(keys):
            self._wanted[key] = self._wanted.get(key, 0) + 1
            if self._wanted[key] == 1 and key in self._block_of:
                self.blocks.want(self._block_of[key])

    def unwant(self, keys: Sequence[bytes]) -> None:
        """It waits no longer."""
        for key in reversed(keys):
            self._wanted[key] -= 1
            if not self._wanted[key]:
                del self._wanted[key]
                if key in self._block_of:
                    self.blocks.unwant(self._block_of[key])

    def forget(self) -> None:
        """The cache is lost, or must not be used: new weights, or a new engine."""
        self._block_of.clear()
        self._key_of.clear()
        self.blocks.forget()

    def _evicted(self, block: int) -> None:
        del self._block_of[self._key_of.pop(block)]


class BlockTables:
    """Block tables of running sequences: opened on cached prefixes, grown, registered, closed."""

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

    def is_choice(self, progress: Progress, cached: list[int]) -> bool:
        """Would its start cost blocks that waiting sequences will use? False: there are enough
        others, or it cannot start at all."""
        fresh = -(-len(progress.tokens) // self._size) - len(cached)
        return self.blocks.spare < fresh <= self.blocks.free

    def computes(self, progress: Progress, cached: list[int]) -> Progress | None:
        """The sequence that is computing the block that this one would compute first."""
        if self._promised and len(cached) < (len(progress.tokens) - 1) // self._size:
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
