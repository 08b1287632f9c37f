"""The prefix cache: finds the blocks that hold the keys and values of a prefix.

A full block's key is a hash of its tokens chained to the key before it, so one key identifies the
whole prefix. The chain starts from the model, the adapter and the salt: neither another adapter's
nor another salt's sequence can meet a block by any choice of tokens. Which block is evicted first
is decided in `blocks`.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from headway.core.generation.blocks import Blocks

_KEY_BYTES = 16


class Prefixes:
    def __init__(self, *, blocks: int, block_size: int, model: str = "") -> None:
        self.blocks = Blocks(blocks, self._evicted)
        self._block_size = block_size
        self._model = model
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

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
        for index in range(len(keys), blocks):
            content = array("q", tokens[index * size : (index + 1) * size]).tobytes()
            parent = blake2b(parent + content, digest_size=_KEY_BYTES).digest()
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

    def forget(self) -> None:
        """The cache is lost, or must not be used: new weights, or a new engine."""
        self._block_of.clear()
        self._key_of.clear()
        self.blocks.forget()

    def _evicted(self, block: int) -> None:
        del self._block_of[self._key_of.pop(block)]
