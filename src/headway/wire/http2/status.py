"""The status codes of gRPC."""

from enum import IntEnum
from typing import NamedTuple


class Status(IntEnum):
    """gRPC's own numbers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallRefusal(NamedTuple):
    """An error as it is sent to the caller."""

    status: Status
    message: str
    metadata: tuple[tuple[str, str], ...] = ()


class Aborted(Exception):
    """The call has been given its status: its method has nothing more to do."""
