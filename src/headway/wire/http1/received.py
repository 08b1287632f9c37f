"""The things that a connection answers in order: received requests, and refused ones."""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, TypeAlias

from headway.wire.headers import WireHeaders, request_id
from headway.wire.messages import Headers, Request


class Phase(Enum):
    """The part of a request that the client is sending."""

    NOTHING = 0
    HEAD = 1
    BODY = 2


class RequestRefused(Exception):
    """Raised in the parser's callbacks to stop it."""

    def __init__(self, status: int, code: str, message: str, headers: Headers = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = (("Retry-After", "1"),) if status == 503 else headers


class Received(NamedTuple):
    request: Request
    keep_alive: bool
    is_http_10: bool
    parts: Sequence[bytes] = ()  # of its body, where that is still to be joined

    @property
    def body_bytes(self) -> int:
        return len(self.request.body) + sum(map(len, self.parts))


Turn: TypeAlias = Received | RequestRefused


def request_of(method: bytes, url: bytes, headers: dict[bytes, bytes], body: bytes) -> Request:
    path, _, query = url.decode("latin-1").partition("?")
    sent_id = request_id(headers.get(b"x-request-id"))
    return Request(method.decode("ascii"), path, query, WireHeaders(headers), body, sent_id)
