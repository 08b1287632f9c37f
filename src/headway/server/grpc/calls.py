"""Around every method: its calls are counted, and what it raises becomes a status."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from headway.errors import InputTooLarge, InvalidInput
from headway.observe import logs
from headway.observe.tally import ErrorTally
from headway.runtime.calling.threads import whose
from headway.server.auth.access import Access, access_of_method
from headway.server.auth.gates import Gate
from headway.server.auth.keys import NOBODY
from headway.server.bodies.background import background
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc.large import serialise
from headway.server.grpc.measuring import Size, measure
from headway.server.grpc.standard.serving import streaming_of
from headway.server.service.errors import retry_after_s, tell
from headway.server.service.triton_words import in_tritons_words
from headway.wire.body_room import BodyRoom
from headway.wire.cancellation import is_asked_to_stop
from headway.wire.http2.call_state import OPEN_BYTES
from headway.wire.http2.method import Method
from headway.wire.http2.status import Aborted, Refusal, Status

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
MOST_BYTES = 2**31 - 1  # of a message, whatever is configured: gRPC's own limit
SMALL_BYTES = 4 * 2**10  # of a message that is parsed without a look at it: 0.6 ms at worst
INLINE_BYTES = 2**20  # of one that is parsed in the event loop, if it has no more in it than this:
_INLINE = Size(messages=256, parts=1024, numbers=2**16)
_MOST_ID = 128  # characters of a caller's own id, as on HTTP
Run: TypeAlias = Callable[[Any, Any], Awaitable[Any]]  # (request or requests, context)
Wrapper: TypeAlias = Callable[[Run, str], Run]  # of a method and its path


class TooLarge(NamedTuple):
    """Stands where a message would be. (gRPC turns whatever its reader raises into UNKNOWN.)"""

    size_bytes: int
    limit_bytes: int

    def error(self) -> InputTooLarge:
        limit = self.limit_bytes
        return InputTooLarge(
            f"the message has {self.size_bytes} bytes, at most {limit} are allowed", limit=limit
        )


class Unparsed(NamedTuple):
    """Stands where a message would be that is not parsed in the event loop."""

    data: bytes
    kind: Any

    def parse(self) -> Any:
        try:
            return self.kind.FromString(self.data)
        except DecodeError as error:
            raise InvalidInput(f"the message cannot be parsed: {error}") from error

    async def measured(self) -> Size:
        """Raises InputTooLarge."""
        return await background.run(lambda steps: measure(self.data, self.kind, steps=steps))


class Calls:
    """The calls under way."""

    def __init__(
        self,
        *,
        max_message_bytes: int = MOST_BYTES,
        debug: bool = False,
        errors: ErrorTally | None = None,
        wrappers: Sequence[Wrapper] = (),
        room: BodyRoom | None = None,
    ) -> None:
        """`room` counts what messages with much in them grow to."""
        self._room = room
        self._max_message_bytes = max_message_bytes
        self._debug = debug
        self._errors = errors or ErrorTally("grpc")
        self._wrappers = wrappers
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def methods(self, service: object, gate: Gate) -> dict[str, Method]:
        """Every method that the .proto names, by its path, behind its gate."""
        found, streaming = {}, streaming_of(SERVICE)
        for method in SERVICE.methods:
            access = access_of_method(method.name)
            gated = gate(access, getattr(service, method.name))
            takes_stream, gives_stream = streaming[method.name]
            found[f"/{SERVICE.full_name}/{method.name}"] = Method(
                run=self._wrapped(method.name, self._watched(gated)),
                parse=self._reader(method.name, getattr(pb, method.input_type.name)),
                serialise=serialise,
                takes_stream=takes_stream,
                gives_stream=gives_stream,
                is_open=access is Access.OPEN,
            )
        return found

    def _reader(self, name: str, kind: Any) -> Callable[[bytes], Any]:
        limit, parse = self._max_message_bytes, kind.FromString
        if access_of_method(name) is Access.OPEN:
            limit = min(limit, OPEN_BYTES)

        def read(data: bytes) -> Any:
            size_bytes = len(data)
            if size_bytes <= SMALL_BYTES:
                return parse(data) if size_bytes <= limit else TooLarge(size_bytes, limit)
            if size_bytes > limit:
                return TooLarge(size_bytes, limit)
            if size_bytes > INLINE_BYTES:
                return Unparsed(data, kind)
            try:
                measure(data, kind, _INLINE)
            except InputTooLarge:
                return Unparsed(data, kind)
            return parse(data)

        return read

    @asynccontextmanager
    async def parsed(self, unparsed: Unparsed) -> AsyncIterator[Any]:
        """The message, and what it grows to counted. (The connection counts the bytes that came.)
        Raises QueueFull, InputTooLarge."""
        more_bytes = (await unparsed.measured()).more_bytes
        if self._room is None:
            yield await asyncio.to_thread(unparsed.parse)
            return
        self._room.take(more_bytes)
        try:
            yield await asyncio.to_thread(unparsed.parse)
        finally:
            self._room.give_back(more_bytes)

    @property
    def are_observed(self) -> bool:
        return bool(self._wrappers)

    def begun(self, context: Any) -> None:
        """Until its answer has left, not only until it is known."""
        self._active += 1
        self._idle.clear()
        context.add_done_callback(self._finished)

    async def wait_idle(self) -> None:
        await self._idle.wait()

    def refusal_of(self, error: BaseException, request_id: str = "") -> Refusal:
        told = tell(error, self._errors, debug=self._debug, id=request_id)
        logs.note_error(told.code)
        seconds = retry_after_s(told.error)
        metadata = () if seconds is None else (("retry-after", str(seconds)),)
        message = in_tritons_words(told.code, told.message)
        return Refusal(Status[told.status.grpc], message, metadata)

    def _wrapped(self, name: str, run: Run) -> Run:
        for wrapper in reversed(self._wrappers):  # the first is the outermost
            run = wrapper(run, f"/{SERVICE.full_name}/{name}")
        return run

    def _watched(self, run: Run) -> Run:
        async def call(request: Any, context: Any) -> Any:
            self.begun(context)
            whose.set(_whose(context))
            try:
                if type(request) is TooLarge:
                    raise request.error()
                if type(request) is Unparsed:
                    async with self.parsed(request) as request:
                        return await run(request, context)
                return await run(request, context)
            except Aborted:
                raise
            except BaseException as error:
                if is_asked_to_stop(error):
                    raise
                refusal = self.refusal_of(error, request_id_of(request, context))
            return await context.abort(*refusal)

        return call

    def _finished(self, _: Any) -> None:
        self._active -= 1
        if not self._active:
            self._idle.set()


def _whose(context: Any) -> str:
    """Clients share threads by tenant, and by address where there are no keys."""
    caller = context.caller
    tenant: str = context.client if caller in (None, NOBODY) else caller.key.tenant
    return tenant


def request_id_of(request: Any, context: Any) -> str:
    """The caller's own: as on HTTP, or as v2 has it; else empty."""
    for key, value in context.invocation_metadata() or ():
        if key == "x-request-id":
            return str(value)[:_MOST_ID]
    return str(getattr(request, "id", ""))[:_MOST_ID]
