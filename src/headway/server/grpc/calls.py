"""Around every method: its calls are counted, and what it raises becomes a status."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from headway.errors import InputTooLarge, InvalidInput
from headway.observe import logs
from headway.observe.tally import ErrorTally
from headway.server.api.v2.triton_words import in_tritons_words
from headway.server.auth.access import Access, access_of_method
from headway.server.auth.gates import Gate
from headway.server.background import background
from headway.server.errors import is_asked_to_stop, retry_after_s, tell
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc.large import sendable, serialise
from headway.server.grpc.measuring import Size, measure
from headway.server.grpc.standard.serving import streaming_of
from headway.wire.body_room import BodyRoom

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
MOST_BYTES = 2**31 - 1  # of a message, whatever is configured: gRPC's own limit
OPEN_BYTES = 16 * 2**10  # of a message where no key is asked for: it is a name at most
SMALL_BYTES = 4 * 2**10  # of a message that is parsed without a look at it: 0.6 ms at worst
INLINE_BYTES = 2**20  # of one that is parsed in the event loop, if it has no more in it than this:
_INLINE = Size(messages=256, parts=1024, numbers=2**16)
_MOST_ID = 128  # characters of a caller's own id, as on HTTP
Method: TypeAlias = Callable[[Any, Any], Awaitable[Any]]  # (request or requests, context)
Wrapper: TypeAlias = Callable[[Method, str], Method]  # of a method and its path


class Refusal(NamedTuple):
    """An error as the caller is told of it."""

    code: grpc.StatusCode
    message: str
    metadata: tuple[tuple[str, str], ...]


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
        inline_bytes: int = INLINE_BYTES,
    ) -> None:
        """`room` counts messages that are larger than `inline_bytes`, or have much in them."""
        self._room = room
        self._inline_bytes = inline_bytes
        self._max_message_bytes = max_message_bytes
        self._debug = debug
        self._errors = errors or ErrorTally("grpc")
        self._wrappers = wrappers
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def handler(self, methods: object, gate: Gate) -> grpc.GenericRpcHandler:
        """Every method that the .proto names, behind its gate."""
        handlers, streaming = {}, streaming_of(SERVICE)
        for method in SERVICE.methods:
            gated = gate(access_of_method(method.name), getattr(methods, method.name))
            made = (
                grpc.stream_stream_rpc_method_handler
                if streaming[method.name][0]
                else grpc.unary_unary_rpc_method_handler
            )
            handlers[method.name] = made(
                self._wrapped(method.name, self._watched(gated)),
                request_deserializer=self._reader(method.name, getattr(pb, method.input_type.name)),
                response_serializer=serialise,
            )
        return grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)

    def _reader(self, name: str, kind: Any) -> Callable[[bytes], Any]:
        limit, parse, inline_bytes = self._max_message_bytes, kind.FromString, self._inline_bytes
        if access_of_method(name) is Access.OPEN:
            limit = min(limit, OPEN_BYTES)

        def read(data: bytes) -> Any:
            size_bytes = len(data)
            if size_bytes <= SMALL_BYTES:
                return parse(data) if size_bytes <= limit else TooLarge(size_bytes, limit)
            if size_bytes > limit:
                return TooLarge(size_bytes, limit)
            if size_bytes > inline_bytes:
                return Unparsed(data, kind)
            try:
                measure(data, kind, _INLINE)
            except InputTooLarge:
                return Unparsed(data, kind)
            return parse(data)

        return read

    @asynccontextmanager
    async def parsed(self, unparsed: Unparsed) -> AsyncIterator[Any]:
        """The message, and its bytes counted, wire and parsed. Raises QueueFull, InputTooLarge."""
        room = self._room
        if room is None:
            await unparsed.measured()
            yield await asyncio.to_thread(unparsed.parse)
            return
        held_bytes = 0
        try:
            room.take(len(unparsed.data))
            held_bytes = len(unparsed.data)
            more_bytes = (await unparsed.measured()).more_bytes
            room.take(more_bytes)
            held_bytes += more_bytes
            yield await asyncio.to_thread(unparsed.parse)
        finally:
            room.give_back(held_bytes)

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
        return Refusal(grpc.StatusCode[told.status.grpc], message, metadata)

    def _wrapped(self, name: str, method: Method) -> Method:
        for wrapper in reversed(self._wrappers):  # the first is the outermost
            method = wrapper(method, f"/{SERVICE.full_name}/{name}")
        return method

    def _watched(self, method: Method) -> Method:
        async def call(request: Any, context: Any) -> Any:
            self.begun(context)
            try:
                if type(request) is TooLarge:
                    raise request.error()
                if type(request) is Unparsed:
                    async with self.parsed(request) as request:
                        return await sendable(await method(request, context), context)
                return await sendable(await method(request, context), context)
            except grpc.aio.AbortError:
                raise
            except asyncio.CancelledError as error:
                if is_asked_to_stop():
                    raise
                refusal = self.refusal_of(error, request_id_of(request, context))
            except Exception as error:  # noqa: BLE001 - user code; every caller is answered
                refusal = self.refusal_of(error, request_id_of(request, context))
            request = None  # grpc.aio keeps the error that it raises now, and that this frame
            return await context.abort(refusal.code, refusal.message, refusal.metadata)

        return call

    def _finished(self, _: Any) -> None:
        self._active -= 1
        if not self._active:
            self._idle.set()


def request_id_of(request: Any, context: Any) -> str:
    """The caller's own: as on HTTP, or as v2 has it; else empty."""
    for key, value in context.invocation_metadata() or ():
        if key == "x-request-id":
            return str(value)[:_MOST_ID]
    return str(getattr(request, "id", ""))[:_MOST_ID]
