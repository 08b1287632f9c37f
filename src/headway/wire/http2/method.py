"""The two things that a call knows: the method that it calls, and its connection."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headway.wire.http2.status import CallRefusal
from headway.wire.messages import Pending
from headway.wire.writes import Writes

if TYPE_CHECKING:
    from headway.wire.http2.call_state import CallState


class Direct(Protocol):
    """The commonest kind of request, answered without a task."""

    def start(self, request: Any, call: "CallState") -> Pending | None:
        """Start the method; None: the request is not of that kind."""
        ...

    def refusal_of(self, error: BaseException) -> CallRefusal: ...


class Method(NamedTuple):
    """A method of the service. It is called with a request, or all requests, and a context."""

    run: Callable[[Any, Any], Any]
    parse: Callable[[bytes], Any]
    serialise: Callable[[Any], bytes]
    takes_stream: bool
    gives_stream: bool
    direct: Direct | None = None
    is_open: bool = False  # it needs no key


class Wire(Protocol):
    """The part of its connection that a call needs."""

    loop: asyncio.AbstractEventLoop
    peer: str

    @property
    def client(self) -> str:
        """The client's address, or its network."""
        ...

    limit_bytes: int  # of a message
    unpacking: asyncio.Semaphore  # how many are unpacked at a time

    @property
    def writes(self) -> Writes: ...

    @property
    def is_paused(self) -> bool: ...

    def send_answer(self, call: "CallState", body: bytes) -> None:
        """Send a plain answer as a whole: head, one message, trailers."""
        ...

    def send(self, call: "CallState", *parts: bytes) -> None: ...

    def finish(self, call: "CallState", trailers: bytes) -> None: ...

    def give_back(self, call: "CallState", size_bytes: int) -> None:
        """Open the call's window by this many bytes."""
        ...

    def left(self, task: "asyncio.Task[None]") -> None:
        """The call's task has been cancelled, and may still be cleaning up."""
        ...

    def hold(self, more_bytes: int) -> None:
        """Count `more_bytes` as waiting in memory (or fewer, if negative). Raises QueueFull."""
        ...

    def earn(self, units: int) -> None:
        """Credit work that was done for the peer."""
        ...

    def charge_refused(self) -> None:
        """A request could not be read. It may end the connection."""
        ...
