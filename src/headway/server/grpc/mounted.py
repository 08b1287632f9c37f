"""The gRPC methods without a listener, for a program that has one: Ray Serve's proxy."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from headway.config import ServerConfig
from headway.server.auth.gates import grpc_gate
from headway.server.auth.guard import Guard
from headway.server.auth.keys import NOBODY, Caller
from headway.server.grpc.admission import CallAdmission
from headway.server.grpc.call_logs import wrappers
from headway.server.grpc.calls import SERVICE, Calls
from headway.server.grpc.service import Methods
from headway.server.service.inference import Inference
from headway.wire.body_room import BodyRoom
from headway.wire.http2.status import Aborted, CallRefusal, Status

if TYPE_CHECKING:
    from headway.server.observing import Observing

Metadata = Iterable[tuple[str, Any]]


class MountedAnswer(NamedTuple):
    """The message (none, if there is an error), and how the call ends."""

    message: bytes
    status: Status = Status.OK
    details: str = ""
    trailing: tuple[tuple[str, Any], ...] = ()


class MountedGrpc:
    def __init__(
        self,
        inference: Inference,
        config: ServerConfig,
        *,
        guard: Guard,
        observing: "Observing",
        room: BodyRoom,
    ) -> None:
        calls = Calls(
            max_message_bytes=config.max_body_bytes,
            debug=config.debug,
            errors=observing.grpc_errors,
            wrappers=wrappers(observing),
            requests=observing.history.requests,
        )
        has_keys = guard.keys is not None
        service = Methods(inference, calls, has_keys=has_keys, room=room)
        self._methods = calls.methods(service, grpc_gate(config, has_keys=has_keys))
        self._admit = CallAdmission(guard.keys, calls).admit

    async def answer(
        self, name: str, data: bytes, metadata: Metadata, client: str
    ) -> MountedAnswer:
        """Of a method with one message and one answer."""
        path, admitted = self._admitted(name, metadata)
        if isinstance(admitted, CallRefusal):
            return MountedAnswer(b"", *admitted)
        method, call = self._methods[path], _MountedCall(admitted, metadata, client, _no_write)
        try:
            request = method.parse(data)
        except Exception:  # noqa: BLE001 - protobuf's own, and there are three of them
            return MountedAnswer(b"", Status.INTERNAL, "the request cannot be parsed")
        try:
            message = method.serialise(await method.run(request, call))
        except Aborted:
            message = b""
        finally:
            call.end()
        return call.answer(message)

    async def answers(
        self, name: str, requests: AsyncIterator[bytes], metadata: Metadata, client: str
    ) -> AsyncIterator[MountedAnswer]:
        """Of a method with many; the last answer has no message. The method runs in a task and
        writes into a queue of one, from which this generator yields."""
        path, admitted = self._admitted(name, metadata)
        if isinstance(admitted, CallRefusal):
            yield MountedAnswer(b"", *admitted)
            return
        method = self._methods[path]
        written: asyncio.Queue[bytes | None] = asyncio.Queue(1)

        async def write(message: Any) -> None:
            await written.put(method.serialise(message))

        async def parsed() -> AsyncIterator[Any]:
            async for data in requests:
                yield method.parse(data)

        async def run() -> None:
            try:
                with suppress(Aborted):
                    await method.run(parsed(), call)
            finally:
                call.end()
                await written.put(None)

        call = _MountedCall(admitted, metadata, client, write)
        task = asyncio.create_task(run())
        try:
            while (message := await written.get()) is not None:
                yield MountedAnswer(message)
            await task
            yield call.answer(b"")
        finally:
            task.cancel()

    def _admitted(self, name: str, metadata: Metadata) -> tuple[str, Caller | CallRefusal]:
        path = f"/{SERVICE.full_name}/{name}"
        return path, NOBODY if self._admit is None else self._admit(path, metadata)


async def _no_write(message: Any) -> None:
    raise AssertionError("a method with one answer writes none itself")


class _MountedCall:
    """What methods ask of a call's context. The client's deadline is known to the parent only."""

    def __init__(
        self,
        caller: Caller,
        metadata: Metadata,
        client: str,
        write: Callable[[Any], Awaitable[None]],
    ) -> None:
        self.caller, self.client, self.write = caller, client, write
        self._metadata = tuple(metadata)
        self._status, self._details = Status.OK, ""
        self._trailing: tuple[tuple[str, Any], ...] = ()
        self._callbacks: list[Callable[[Any], object]] = []

    def invocation_metadata(self) -> Any:
        return self._metadata

    def time_remaining(self) -> None:
        return None

    def peer(self) -> str:
        return self.client

    def sink(self) -> None:
        """There is no connection to write to past the parent."""

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._callbacks.append(callback)

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        self._trailing += tuple(metadata)

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """The parent has none to send: it comes at the end."""
        self._trailing += tuple(metadata)

    def code(self) -> Status:
        return self._status

    def details(self) -> str:
        return self._details

    async def abort(self, code: Status, details: str = "", trailing: Metadata = ()) -> NoReturn:
        self._status, self._details = code, details
        self._trailing += tuple(trailing)
        raise Aborted("the call has its status")

    def end(self) -> None:
        for callback in self._callbacks:
            callback(self)

    def answer(self, message: bytes) -> MountedAnswer:
        return MountedAnswer(message, self._status, self._details, self._trailing)
