"""Reading and writing on an attacker's sockets."""

import contextlib
import re
import socket

LIMIT_S = 30.0  # for anything to happen


def read_all(connection: socket.socket) -> bytes:
    """Until the server hangs up, however it does."""
    parts = []
    with contextlib.suppress(OSError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def read_some(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except OSError:
        return b""


def status_of(answer: bytes) -> int | None:
    found = re.match(rb"HTTP/1\.[01] (\d{3}) ", answer)
    return int(found[1]) if found else None
