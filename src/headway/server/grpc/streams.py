"""`ModelStreamInfer`: many requests on one call, each answered once, or often by a model that
streams. A request's error is its own message; the stream goes on."""

import asyncio
import functools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from headway.errors import Closed
from headway.hosting.streaming import ServedStream
from headway.server.auth.keys import Caller
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc.calls import Calls, TooLarge
from headway.server.grpc.messages import IS_END, stream_message
from headway.server.service.event_stream import ToSink
from headway.wire.body_room import BodyRoom
from headway.wire.http2.inbox import framed
from headway.wire.http2.status import Status
from headway.wire.own_cancellation import is_asked_to_stop

if TYPE_CHECKING:
    from headway.server.grpc.service import Methods


MAX_WAITING = 1024  # requests of one stream; beyond, it is not read until some are answered
_REQUEST_BYTES = 2**11  # counted for each request's task
_WANTS_END = "triton_enable_empty_final_response"


class InferCall(NamedTuple):
    """One request of a stream, with its caller and its call."""

    request: pb.ModelInferRequest
    context: Any
    caller: Caller | None


class Chunks(NamedTuple):
    """The chunks of one request's stream, and what makes a `ModelInferResponse` of each."""

    stream: AsyncIterator[Any]
    encode: Callable[[Any], bytes]


class Streams:
    """The open ones."""

    def __init__(self, service: "Methods", calls: Calls, room: BodyRoom | None = None) -> None:
        """`room`: for the requests that have been read; None: no limit."""
        self._service = service
        self._calls = calls
        self._room = room
        self._readers: set[asyncio.Task[None]] = set()

    def finish(self) -> None:
        """Read no more requests; answer those that have been read."""
        for reader in self._readers:
            reader.cancel()

    async def serve(
        self, requests: AsyncIterator[pb.ModelInferRequest], context: Any, caller: Caller | None
    ) -> None:
        stream = _Stream(self._service, self._calls, self._room, context, caller)
        async with asyncio.TaskGroup() as tasks:  # a call that is cancelled cancels them all
            reader = tasks.create_task(stream.read(requests, tasks))
            self._readers.add(reader)
            reader.add_done_callback(self._readers.discard)
        if reader.cancelled():
            raise Closed("the server stops")


class _Stream:
    def __init__(
        self,
        service: "Methods",
        calls: Calls,
        room: BodyRoom | None,
        context: Any,
        caller: Caller | None,
    ) -> None:
        self._service = service
        self._calls = calls
        self._room = room
        self._context = context
        self._caller = caller
        self._writing = asyncio.Lock()  # gRPC takes one message at a time
        self._places = asyncio.Semaphore(MAX_WAITING)

    async def read(
        self, requests: AsyncIterator[pb.ModelInferRequest], tasks: asyncio.TaskGroup
    ) -> None:
        """Read requests. Single answers are sent in the order of their requests; streamed ones as
        they come."""
        before = asyncio.Event()
        before.set()
        async for request in requests:
            if type(request) is TooLarge:
                await before.wait()
                await self._write(self._refused(pb.ModelInferRequest(), request.error()))
                continue
            await self._places.acquire()
            asked = InferCall(request, self._context, self._caller)
            if await self._service.streams(asked):
                tasks.create_task(self._answer_often(asked))
                continue
            after = asyncio.Event()
            tasks.create_task(self._answer_once(asked, before, after))
            before = after

    async def _answer_once(
        self, asked: InferCall, before: asyncio.Event, after: asyncio.Event
    ) -> None:
        try:
            try:
                with self._held(asked.request):
                    response = await self._service.answer(asked)
                message: Any = stream_message(response, is_final=True)
            except BaseException as error:  # noqa: BLE001 - user code; every caller is answered
                message = self._refused(asked.request, error)
            await before.wait()
            await self._write(message)
        finally:
            after.set()
            self._places.release()

    async def _answer_often(self, asked: InferCall) -> None:
        request = asked.request
        try:
            try:
                with self._held(request):
                    await self._write_all(asked)
            except BaseException as error:  # noqa: BLE001 - user code; every caller is answered
                await self._write(self._refused(request, error))
            else:
                if request.parameters and request.parameters[_WANTS_END].bool_param:
                    await self._write(_end_of(request))
        finally:
            self._places.release()

    async def _write_all(self, asked: InferCall) -> None:
        async with self._service.stream(asked) as (stream, encode):

            def frame_of(chunk: Any) -> bytes:
                return framed(stream_message(encode(chunk), is_final=False))

            async for chunk in stream:
                await self._write(stream_message(encode(chunk), is_final=False))
                if not isinstance(stream, ServedStream):
                    continue
                sink = self._context.sink()
                if sink is not None:
                    # Write the other pieces as they come, without a task's turn for each.
                    rest = ToSink(stream, frame_of, sink)
                    try:
                        await rest.wait_done()
                    finally:
                        sink.flush()  # before its end or its error is written
                    return

    @contextmanager
    def _held(self, request: pb.ModelInferRequest) -> Iterator[None]:
        """Its bytes, until it is answered. Raises QueueFull on entering. Every one is counted: a
        stream has many requests at a time."""
        if self._room is None:
            yield
            return
        size_bytes = request.ByteSize() + _REQUEST_BYTES
        self._room.take(size_bytes)
        try:
            yield
        finally:
            self._room.give_back(size_bytes)

    async def _write(self, message: Any) -> None:
        async with self._writing:
            await self._context.write(message)

    def _refused(
        self, request: pb.ModelInferRequest, error: BaseException
    ) -> pb.ModelStreamInferResponse:
        if is_asked_to_stop(error):
            raise error
        return pb.ModelStreamInferResponse(
            error_message=self._calls.refusal_of(error, request.id).message,
            infer_response=pb.ModelInferResponse(id=request.id),
        )


def _end_of(request: pb.ModelInferRequest) -> pb.ModelStreamInferResponse:
    response = pb.ModelInferResponse(
        model_name=request.model_name, model_version=request.model_version, id=request.id
    )
    response.parameters[IS_END].bool_param = True
    return pb.ModelStreamInferResponse(infer_response=response)


MOST_OF_A_CLIENT = 256
MOST_S = 3600.0
Watching: TypeAlias = Callable[[Any, Any], Coroutine[Any, Any, None]]


class OpenStreams:
    """Streams that need no key (of health, of reflection): how many a client may hold, and how
    long."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def bounded(self, run: Callable[[Any, Any], Any]) -> Watching:
        """The same method, with a limit."""

        @functools.wraps(run)
        async def bounded(request: Any, context: Any) -> None:
            client = context.peer().rpartition(":")[0]
            if self._counts[client] >= MOST_OF_A_CLIENT:
                await context.abort(
                    Status.RESOURCE_EXHAUSTED,
                    f"at most {MOST_OF_A_CLIENT} streams of one client without a key",
                )
            self._counts[client] += 1
            try:
                async with asyncio.timeout(MOST_S):
                    await _write_all(run(request, context), context)
            except TimeoutError:
                await context.abort(Status.UNAVAILABLE, "watch again: it has been long")
            finally:
                self._counts[client] -= 1
                if not self._counts[client]:
                    del self._counts[client]

        return bounded


async def _write_all(result: Any, context: Any) -> None:
    """A method gives its messages, or writes them itself."""
    if hasattr(result, "__aiter__"):
        async for message in result:
            await context.write(message)
    else:
        await result
