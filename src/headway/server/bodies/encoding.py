"""Python objects to JSON text; what is large in short steps, off the event loop."""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy

from headway.server.bodies.background import Steps, background

_MOST_VALUES = 2**12  # encoded in one go: less than a millisecond
MOST_CHARACTERS = 64 * 2**10  # of a text, likewise
_SCALARS = frozenset([bool, float, int, type(None)])
Hook = Callable[[Any], Any]


async def encode_json(value: Any, hook: Hook) -> bytes:
    """What `msgspec.json.encode` gives, and raises. `hook`: for kinds that it does not know."""
    if not is_large(value):
        return msgspec.json.encode(value, enc_hook=hook)
    return await background.run(lambda steps: encode_in_steps(value, hook, steps))


def is_large(value: Any) -> bool:
    """Would encoding it hold an event loop up?"""
    if type(value) is str:  # the commonest
        return len(value) > MOST_CHARACTERS
    return _weight(value, _MOST_VALUES) > _MOST_VALUES


def encode_in_steps(
    value: Any, hook: Hook, steps: Steps, *, start: bytes = b"", end: bytes = b""
) -> bytes:
    """Between `start` and `end`."""
    return b"".join((start, *_Writer(hook, steps).parts_of(value), end))


def _weight(value: Any, most: int) -> int:
    """About how many values this is; it stops to count beyond `most`."""
    kind = type(value)
    if kind is dict:
        members: Any = value.values()
    elif kind is list or kind is tuple:
        members = value
    else:
        return _weight_alone(value)
    weight = len(members)
    if weight <= most and _SCALARS.issuperset(map(type, members)):
        return 2 * weight
    for each in members:
        if weight > most:
            break
        weight += _weight(each, most - weight)
    return weight


def _weight_alone(value: Any) -> int:
    """Of what is no container."""
    kind = type(value)
    if kind is str or kind is bytes:
        return 1 + len(value) * _MOST_VALUES // MOST_CHARACTERS
    return 1 + value.size if isinstance(value, numpy.ndarray) else 1


class _Writer:
    def __init__(self, hook: Hook, steps: Steps) -> None:
        self._hook = hook
        self._steps = steps
        self._parts: list[bytes] = []

    def parts_of(self, value: Any) -> list[bytes]:
        self._write(value)
        return self._parts

    def _write(self, value: Any) -> None:
        kind = type(value)
        if _weight(value, _MOST_VALUES) <= _MOST_VALUES:
            self._parts.append(msgspec.json.encode(value, enc_hook=self._hook))
            self._steps.rest()
        elif kind is str:
            self._write_text(value)
        elif kind is dict:
            self._wrap(b"{", list(value.items()), b"}", self._encode_members, self._write_member)
        elif kind is list or kind is tuple:
            self._wrap(b"[", value, b"]", msgspec.json.encode, self._write)
        elif isinstance(value, numpy.ndarray) and value.ndim:
            self._wrap(b"[", value, b"]", self._encode_rows, self._write)
        else:  # a kind of the model's own
            self._parts.append(msgspec.json.encode(value, enc_hook=self._hook))

    def _wrap(
        self,
        start: bytes,
        members: Any,
        end: bytes,
        encode: Callable[..., bytes],
        write: Callable[[Any], None],
    ) -> None:
        self._parts.append(start)
        self._write_some(members, encode, write)
        self._parts[-1] = end  # in place of the last comma

    def _write_some(
        self, members: Any, encode: Callable[..., bytes], write: Callable[[Any], None]
    ) -> None:
        """Together where they are few, else each half, down to one."""
        if _weight(members, _MOST_VALUES) <= _MOST_VALUES:
            self._parts += (encode(members, enc_hook=self._hook)[1:-1], b",")
            self._steps.rest()
        elif len(members) == 1:
            write(members[0])
            self._parts.append(b",")
        else:
            half = len(members) // 2
            self._write_some(members[:half], encode, write)
            self._write_some(members[half:], encode, write)

    def _encode_members(self, members: Any, enc_hook: Hook) -> bytes:
        return msgspec.json.encode(dict(members), enc_hook=enc_hook)

    def _encode_rows(self, rows: Any, enc_hook: Hook) -> bytes:
        return msgspec.json.encode(rows.tolist(), enc_hook=enc_hook)

    def _write_member(self, member: tuple[Any, Any]) -> None:
        key, value = member
        self._parts.append(msgspec.json.encode({key: None}, enc_hook=self._hook)[1:-6] + b":")
        self._write(value)

    def _write_text(self, text: str) -> None:
        self._parts.append(b'"')
        for start in range(0, len(text), MOST_CHARACTERS):
            part = text[start : start + MOST_CHARACTERS]
            self._parts.append(msgspec.json.encode(part)[1:-1])
            self._steps.rest()
        self._parts.append(b'"')
