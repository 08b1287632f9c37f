"""Finds out whether a client that has stopped sending has left, or still reads.

That shows only when something is sent: the kernel of a client that has left answers with a reset.
So something harmless is sent, and the kernel is asked for the reply.
"""

import asyncio
import os
import socket
import struct
from enum import Enum

_STATE_AND_UNACKED = struct.Struct("=B23xI")  # of Linux's tcp_info
_TCP_CLOSE = 7
CHECKS_S = (0.01, 0.05, 0.25, 1.0, 5.0)  # when to check again, while there is no reply


class Peer(Enum):
    READS = "it has taken what was sent"
    LEFT = "it is gone"
    UNKNOWN = "nothing has come back yet"


def send_interim(transport: asyncio.Transport, interim: bytes) -> Peer:
    """Send past the transport, which must have nothing to send itself: it may hold data back."""
    sock = transport.get_extra_info("socket")
    try:
        if os.write(sock.fileno(), interim) != len(interim):
            return Peer.LEFT  # half an interim answer would spoil the one that follows
    except BlockingIOError:
        return Peer.UNKNOWN
    except OSError:
        return Peer.LEFT
    return peer_of(transport)


def peer_of(transport: asyncio.Transport) -> Peer:
    sock = transport.get_extra_info("socket")
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return Peer.READS  # a local socket's write fails at once where the peer has gone
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    except (OSError, AttributeError):  # closed meanwhile; a system without it
        return Peer.LEFT
    state, unacked = _STATE_AND_UNACKED.unpack_from(info)
    if state == _TCP_CLOSE:
        return Peer.LEFT
    return Peer.UNKNOWN if unacked else Peer.READS
