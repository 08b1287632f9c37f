"""Text that keeps, for each character, who wrote it: the chat template, or the caller.

A template may cut, join and replace text as it likes: what these methods follow keeps its origin,
and what they do not follow (`format`, a number) has none. None becomes the template's by accident.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Any, SupportsIndex

CALLER, TEMPLATE, UNTRACED = b"\0", b"\1", b"\2"  # one for each character


class Traced(str):
    """Equal to the text itself, so that a template sees no difference."""

    __slots__ = ("origins",)
    origins: bytes

    def __new__(cls, text: object = "", origins: bytes | None = None) -> "Traced":
        self = super().__new__(cls, text)
        self.origins = UNTRACED * len(self) if origins is None else origins
        return self

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> "Traced":
        if not isinstance(other, str) or hasattr(other, "__html__"):  # jinja2's own kind of text
            return NotImplemented
        return joined((self, other))

    def __radd__(self, other: str) -> "Traced":
        return joined((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> "Traced":
        return Traced(super().__mul__(times), self.origins * times)

    __rmul__ = __mul__

    def __getitem__(self, key: Any) -> "Traced":
        found = self.origins[key]
        return Traced(
            super().__getitem__(key), found if isinstance(found, bytes) else bytes([found])
        )

    def join(self, parts: Iterable[str]) -> "Traced":
        spaced: list[str] = []
        for part in parts:
            spaced += (self, part)
        return joined(spaced[1:])

    def lstrip(self, characters: str | None = None) -> "Traced":
        return self[len(self) - len(super().lstrip(characters)) :]

    def rstrip(self, characters: str | None = None) -> "Traced":
        return self[: len(super().rstrip(characters))]

    def strip(self, characters: str | None = None) -> "Traced":
        return self.lstrip(characters).rstrip(characters)

    def removeprefix(self, prefix: str, /) -> "Traced":
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str, /) -> "Traced":
        return self[: len(self) - len(suffix)] if self.endswith(suffix) else self

    def split(  # type: ignore[override]
        self, sep: str | None = None, maxsplit: SupportsIndex = -1
    ) -> "list[Traced]":
        return self._pieces(super().split(sep, maxsplit), sep)

    def rsplit(  # type: ignore[override]
        self, sep: str | None = None, maxsplit: SupportsIndex = -1
    ) -> "list[Traced]":
        return self._pieces(super().rsplit(sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> "list[Traced]":  # type: ignore[override]
        whole = self._pieces(super().splitlines(keepends=True), "")
        ends = super().splitlines(keepends=keepends)
        return [line[: len(shown)] for line, shown in zip(whole, ends, strict=True)]

    def partition(self, sep: str, /) -> "tuple[Traced, Traced, Traced]":
        return self._parts(self.find(sep), sep, otherwise=(self, Traced(), Traced()))

    def rpartition(self, sep: str, /) -> "tuple[Traced, Traced, Traced]":
        return self._parts(self.rfind(sep), sep, otherwise=(Traced(), Traced(), self))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> "Traced":
        if not old:
            return Traced(super().replace(old, new, count))
        return joined_by(new, self.split(old, count))

    def upper(self) -> "Traced":
        return self._changed(super().upper())

    def lower(self) -> "Traced":
        return self._changed(super().lower())

    def title(self) -> "Traced":
        return self._changed(super().title())

    def capitalize(self) -> "Traced":
        return self._changed(super().capitalize())

    def _changed(self, text: str) -> "Traced":
        """Letter for letter, unless one became several."""
        return Traced(text, self.origins if len(text) == len(self) else None)

    def _pieces(self, pieces: list[str], sep: str | None) -> "list[Traced]":
        """The pieces with their authors: each is found after the one before and the separator (or
        whitespace)."""
        found, place = [], 0
        for piece in pieces:
            place = self.find(piece, place) if sep is None else place
            found.append(self[place : place + len(piece)])
            place += len(piece) + len(sep or "")
        return found

    def _parts(
        self, place: int, sep: str, otherwise: "tuple[Traced, Traced, Traced]"
    ) -> "tuple[Traced, Traced, Traced]":
        if place < 0:
            return otherwise
        end = place + len(sep)
        return self[:place], self[place:end], self[end:]


def joined(parts: Iterable[str]) -> Traced:
    parts = list(parts)
    return Traced("".join(parts), b"".join(map(_origins, parts)))


def joined_by(separator: str, parts: Iterable[str]) -> Traced:
    traced = separator if isinstance(separator, Traced) else Traced(separator)
    return traced.join(parts)


@functools.lru_cache(maxsize=1024)  # the pieces of templates, again and again
def of_template(text: str) -> Traced:
    return Traced(text, TEMPLATE * len(text))


def of_caller(value: Any) -> Any:
    """A text, or an object as JSON has it with every text in it."""
    if isinstance(value, str):
        return Traced(value, CALLER * len(value))
    if isinstance(value, Mapping):
        return {of_caller(key): of_caller(item) for key, item in value.items()}
    return [of_caller(item) for item in value] if isinstance(value, list | tuple) else value


def _origins(part: str) -> bytes:
    return part.origins if isinstance(part, Traced) else UNTRACED * len(part)
