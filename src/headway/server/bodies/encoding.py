"""Python objects to JSON text: what is large, in a thread."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import msgspec
import numpy

from headway.errors import InvalidInput
from headway.server.bodies.background import background
from headway.server.bodies.own_headers import timeout_s
from headway.wire.compression import decompress
from headway.wire.messages import Request

_MOST_VALUES = 2**14  # encoded in the event loop: about a millisecond
_MOST_CHARACTERS = 2**18  # of a text: the same time
_SCALARS = frozenset([bool, float, int, type(None)])
Hook: TypeAlias = Callable[[Any], Any]


async def encode_json(value: Any, hook: Hook) -> bytes:
    """Encode as `msgspec.json.encode` does; large values in a thread. `hook`: for other types."""
    if not is_large(value):
        return msgspec.json.encode(value, enc_hook=hook)
    return await background.run(partial(msgspec.json.encode, value, enc_hook=hook))


def is_large(value: Any) -> bool:
    """Whether encoding it would hold up the event loop."""
    if type(value) is str:  # the commonest
        return len(value) > _MOST_CHARACTERS
    return _weight(value, _MOST_VALUES) > _MOST_VALUES


def _weight(value: Any, most: int) -> int:
    """The approximate number of values in `value`. Counting stops beyond `most`."""
    kind = type(value)
    if kind is dict:
        members: Any = value.values()
    elif kind is list or kind is tuple:
        members = value
    elif kind is str or kind is bytes:
        return 1 + len(value) * _MOST_VALUES // _MOST_CHARACTERS
    else:
        return 1 + value.size if isinstance(value, numpy.ndarray) else 1
    weight = len(members)
    if weight <= most and _SCALARS.issuperset(map(type, members)):
        return 2 * weight
    for each in members:
        if weight > most:
            break
        weight += _weight(each, most - weight)
    return weight


async def decompress_body(request: Request, *, limit: int) -> None:
    """Unpack the body, in place. Raises InvalidInput or InputTooLarge."""
    if not request.body:
        return
    for encoding in reversed(request.headers["content-encoding"].split(",")):
        name = encoding.strip().lower()
        if name in ("", "identity"):
            continue
        if name not in ("gzip", "x-gzip", "deflate"):
            raise InvalidInput(f"Content-Encoding {name!r} is not known; there are: gzip, deflate")
        # Never in the event loop: a thousandth of the limit can unpack to all of it.
        request.body = await background.run(
            partial(decompress, request.body, limit), timeout_s=timeout_s(request.headers)
        )
