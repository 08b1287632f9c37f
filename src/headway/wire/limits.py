"""The limits of a port for its clients. A server's configuration has these fields."""

from typing import Protocol


class ConnectionLimits(Protocol):
    @property
    def max_connections(self) -> int: ...
    @property
    def max_connections_per_address(self) -> int: ...
    @property
    def max_handshakes(self) -> int: ...
    @property
    def max_header_bytes(self) -> int: ...
    @property
    def max_body_bytes(self) -> int: ...
    @property
    def max_held_bytes(self) -> int:
        """The most bytes that all bodies together may hold."""

    @property
    def header_timeout_s(self) -> float:
        """The time limit from a head's first byte to its last, and for a handshake."""

    @property
    def body_timeout_s(self) -> float: ...
    @property
    def write_timeout_s(self) -> float:
        """How long a client may read nothing of its answer."""

    @property
    def keep_alive_s(self) -> float:
        """How long a connection may be idle."""

    @property
    def drain_s(self) -> float:
        """How long requests that have begun may take, once the port is stopping."""

    @property
    def stream_interval_s(self) -> float:
        """The longest pause between two rounds of small writes."""


class Listening(ConnectionLimits, Protocol):
    """A port's limits, and its address."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
