"""A request's body as Python objects: the way in for every route that takes JSON."""

import time
from typing import Any

import msgspec

from headway.server.json.pieces import decode_in_pieces
from headway.server.net.background import Steps, background
from headway.server.net.headers import DEADLINE, timeout_s
from headway.server.net.messages import Request

SMALL_BYTES = 64 * 2**10  # decoded in the event loop: two milliseconds, whatever is in it


async def decode_json(request: Request, kind: Any = Any, *, default: bytes = b"") -> Any:
    """Raises what `msgspec.json.decode` does, and InputTooLarge, InvalidInput, DeadlineExceeded.

    A large body is decoded off the event loop, in its caller's time.
    """
    body = request.body or default
    if len(body) <= SMALL_BYTES:
        return msgspec.json.decode(body, type=kind)

    def decode(steps: Steps) -> Any:
        value = decode_in_pieces(body, steps)
        return value if kind is Any else msgspec.convert(value, kind)

    started = time.monotonic()
    value = await background.run(decode, timeout_s=timeout_s(request.headers))
    spend(request, time.monotonic() - started)
    return value


def spend(request: Request, seconds: float) -> None:
    """What has been done for the request counts for its deadline."""
    limit_s = timeout_s(request.headers)
    if limit_s is not None:
        left_ms = max(0.001, (limit_s - seconds) * 1e3)
        request.headers = {**request.headers, DEADLINE: str(left_ms)}
