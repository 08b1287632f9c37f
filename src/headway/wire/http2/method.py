"""The methods of a service, as its server knows them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headway.wire.http2.status import CallRefusal
from headway.wire.messages import Pending

if TYPE_CHECKING:
    from headway.wire.http2.call_state import CallState


class Direct(Protocol):
    """The commonest kind of request, answered without a task."""

    def start(self, request: Any, call: "CallState") -> Pending | None:
        """Start the method; None: the request is not of that kind."""

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
