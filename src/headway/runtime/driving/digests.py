"""Digests of callers' values: equal contents, equal digests. Not for secrets."""

import hashlib
import pickle
import sys
from collections.abc import Hashable, Mapping
from typing import Any


def digest_of(value: Any, partition: Hashable) -> bytes | None:
    """A digest of the value and its partition. None: equal contents cannot be recognised."""
    state = _State()
    try:
        state.add((value, partition))
    except BaseException:  # noqa: BLE001  user code: what pickle asks of a value, or its `__iter__`
        return None
    return state.hash.digest()


class _State:
    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)

    def add(self, value: Any) -> None:
        if isinstance(value, str):
            self._add_bytes("s", value.encode(errors="surrogatepass"))
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

    def _add_bytes(self, kind: str, content: bytes) -> None:
        self.hash.update(f"{kind}{len(content)}:".encode())
        self.hash.update(content)

    def _add_members(self, kind: str, members: "list[Any] | tuple[Any, ...]") -> None:
        self.hash.update(f"{kind}{len(members)}:".encode())
        for member in members:
            self.add(member)

    def _add_array(self, array: Any) -> None:
        self.hash.update(f"a{array.dtype.str}{array.shape}:".encode())
        if array.dtype.hasobject:
            self.add(array.tolist())
            return
        self.hash.update(array.tobytes())


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)
