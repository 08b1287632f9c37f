"""Digests of what callers send: equal contents, equal digests. For recognising, not for secrets."""

import hashlib
import pickle
import sys
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

_SAMPLE = 64  # bytes from either end, elements of an array
_MEMBERS = 8  # of a container, from either end
_HASHED = frozenset([str, int, float, bool, bytes])
_MOST_HASHED = 2**14  # bytes, in 5 µs: Python's lock is held while they are hashed


def digest_of(value: Any, partition: Hashable) -> bytes | None:
    """Of the whole content and of what it runs with. None: equal contents cannot be recognised."""
    return _digest((value, partition), sampled=False)


def sketch_of(value: Any, partition: Hashable) -> bytes | None:
    """The same of a few samples: costs microseconds, whatever the size."""
    return _digest((value, partition), sampled=True)


class Trail:
    """A sequence of contents, as one digest of their sketches."""

    __slots__ = ("_hash", "_is_known", "_state", "length")

    def __init__(self) -> None:
        self.length = 0
        self._state = _State(sampled=True)
        self._is_known = True
        self._hash = 0

    def add(self, content: Any, size: int) -> None:
        """`size`: of its text or bytes."""
        self.length += 1
        kind = type(content)
        if kind in _HASHED and size <= _MOST_HASHED:  # tokens: a tenth of what a digest costs
            self._hash = hash((self._hash, kind, content))
            return
        self._hash = hash((self._hash, kind))  # its place among the others
        try:
            self._state.add(content)
        except BaseException:  # noqa: BLE001  user code, as below
            self._is_known = False

    def add_texts(self, texts: Sequence[str]) -> None:
        """The same for each of them. The hot path."""
        self.length += len(texts)
        value = self._hash
        for text in texts:
            value = hash((value, str, text))
        self._hash = value

    def digest(self) -> tuple[int, bytes] | None:
        """None: whether another one is equal cannot be known, so it is not. It holds within
        this process."""
        return (self._hash, self._state.hash.digest()) if self._is_known else None


def _digest(content: Any, *, sampled: bool) -> bytes | None:
    state = _State(sampled=sampled)
    try:
        state.add(content)
    except BaseException:  # noqa: BLE001  user code: what pickle asks of a value, or its `__iter__`
        return None
    return state.hash.digest()


class _State:
    def __init__(self, *, sampled: bool) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self._sampled = sampled

    def add(self, value: Any) -> None:
        if isinstance(value, str):
            self._add_text(value)
        elif isinstance(value, bytes | bytearray | memoryview):
            self._add_bytes("b", bytes(value))
        elif isinstance(value, list | tuple):
            self._add_members("l", value)
        elif isinstance(value, Mapping):
            self._add_members("m", list(value.items()))
        elif _is_array(value):
            self._add_array(value)
        elif value is None or isinstance(value, int | float):
            self._add_bytes("n", repr(value).encode())
        else:
            self._add_bytes("p", pickle.dumps(value, protocol=5))

    def _add_text(self, text: str) -> None:
        if self._sampled and len(text) > 2 * _SAMPLE:  # before it is encoded: it may be long
            self.hash.update(f"t{len(text)}:".encode())
            text = text[:_SAMPLE] + text[-_SAMPLE:]
        self._add_bytes("s", text.encode(errors="surrogatepass"))

    def _add_bytes(self, kind: str, content: bytes) -> None:
        self.hash.update(f"{kind}{len(content)}:".encode())
        if self._sampled and len(content) > 2 * _SAMPLE:
            content = content[:_SAMPLE] + content[-_SAMPLE:]
        self.hash.update(content)

    def _add_members(self, kind: str, members: "list[Any] | tuple[Any, ...]") -> None:
        self.hash.update(f"{kind}{len(members)}:".encode())
        if self._sampled and len(members) > 2 * _MEMBERS:
            members = [*members[:_MEMBERS], *members[-_MEMBERS:]]
        for member in members:
            self.add(member)

    def _add_array(self, array: Any) -> None:
        self.hash.update(f"a{array.dtype.str}{array.shape}:".encode())
        if array.dtype.hasobject:
            self.add(array.tolist())
            return
        if self._sampled and array.size > 2 * _SAMPLE:
            array = array.flat[:: array.size // _SAMPLE]
        self.hash.update(array.tobytes())


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)
