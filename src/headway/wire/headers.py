"""Request headers as they came from the wire, decoded only when they are read."""

import itertools
import os
import re
from collections.abc import Iterator, Mapping

_SANE_ID = re.compile(rb"[!-~]{1,128}")
_PREFIX = os.urandom(6).hex()
_numbers = itertools.count(1)


class WireHeaders(Mapping[str, str]):
    """Lower-case names to values. What was sent twice is joined by commas."""

    __slots__ = ("_raw",)

    def __init__(self, raw: dict[bytes, bytes]) -> None:
        self._raw = raw

    def __getitem__(self, name: str) -> str:
        return self._raw[name.encode("latin-1", "replace")].decode("latin-1")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.encode("latin-1", "replace") in self._raw

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]
        """Mapping's own costs an exception for every header that is absent."""
        value = self._raw.get(name.encode("latin-1", "replace"))
        return default if value is None else value.decode("latin-1")

    @property
    def raw(self) -> Mapping[bytes, bytes]:
        return self._raw

    def __iter__(self) -> Iterator[str]:
        return (name.decode("latin-1") for name in self._raw)

    def __len__(self) -> int:
        return len(self._raw)


def request_id(sent: bytes | None) -> str:
    """The caller's own id where it is harmless to repeat, else one that is unique and cheap."""
    if sent is not None and _SANE_ID.fullmatch(sent):
        return sent.decode("ascii")
    return f"{_PREFIX}-{next(_numbers):x}"


def one_line(text: str) -> bytes:
    """A value with a line break in it would be a header of its own, chosen by a client."""
    return text.replace("\r", " ").replace("\n", " ").encode("latin-1", "replace")
