"""Around every method: its calls are counted, and what it raises becomes a status."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from headway.errors import InputTooLarge
from headway.observe import logs
from headway.observe.requests import RequestLog
from headway.observe.tally import ErrorTally
from headway.runtime.calling.threads import current_client
from headway.server.auth.access import Access, access_of_method
from headway.server.auth.gates import Gate
from headway.server.auth.keys import NOBODY
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc.standard.serving import streaming_of
from headway.server.service.error_words import in_tritons_words
from headway.server.service.errors import retry_after_s, tell
from headway.wire.http2.call_state import OPEN_BYTES
from headway.wire.http2.method import Method
from headway.wire.http2.status import Aborted, CallRefusal, Status
from headway.wire.own_cancellation import is_asked_to_stop

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
MOST_BYTES = 2**31 - 1  # gRPC's own limit for a message, which no setting raises
_MOST_ID = 128  # characters of a caller's own id, as on HTTP
Run: TypeAlias = Callable[[Any, Any], Awaitable[Any]]  # (request or requests, context)
Wrapper: TypeAlias = Callable[[Run, str], Run]  # of a method and its path


class TooLarge(NamedTuple):
    """Takes the place of a message. (gRPC turns every error of its reader into UNKNOWN.)"""

    size_bytes: int
    limit_bytes: int

    def error(self) -> InputTooLarge:
        limit = self.limit_bytes
        return InputTooLarge(
            f"the message has {self.size_bytes} bytes, at most {limit} are allowed", limit=limit
        )


def serialise(message: Any) -> bytes:
    if type(message) is bytes:
        return message
    data: bytes = message.SerializeToString()
    return data


class Calls:
    """The calls under way."""

    def __init__(
        self,
        *,
        max_message_bytes: int = MOST_BYTES,
        debug: bool = False,
        errors: ErrorTally | None = None,
        wrappers: Sequence[Wrapper] = (),
        requests: RequestLog | None = None,
    ) -> None:
        """`requests`: keeps when each call came and went."""
        self._max_message_bytes = max_message_bytes
        self._debug = debug
        self._errors = errors or ErrorTally("grpc")
        self._wrappers = wrappers
        self._requests = requests
        self._active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def methods(self, service: object, gate: Gate) -> dict[str, Method]:
        """Every method of the .proto by its path, behind its gate."""
        found, streaming = {}, streaming_of(SERVICE)
        for method in SERVICE.methods:
            access = access_of_method(method.name)
            gated = gate(access, getattr(service, method.name))
            takes_stream, gives_stream = streaming[method.name]
            found[f"/{SERVICE.full_name}/{method.name}"] = Method(
                run=self._wrapped(method.name, self._watched(gated, method.name)),
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
            if len(data) > limit:
                return TooLarge(len(data), limit)
            return parse(data)

        return read

    @property
    def are_observed(self) -> bool:
        return bool(self._wrappers)

    def begun(self, context: Any) -> None:
        """Count the call as active until its answer has been sent, not only until it is
        computed."""
        self._active += 1
        self._idle.clear()
        context.add_done_callback(self._finished)

    async def wait_idle(self) -> None:
        await self._idle.wait()

    def refusal_of(self, error: BaseException, request_id: str = "") -> CallRefusal:
        report = tell(error, self._errors, debug=self._debug, id=request_id)
        logs.note_error(report.code)
        seconds = retry_after_s(report.error)
        metadata = () if seconds is None else (("retry-after", str(seconds)),)
        message = in_tritons_words(report.code, report.message)
        return CallRefusal(Status[report.status.grpc], message, metadata)

    def _wrapped(self, name: str, run: Run) -> Run:
        for wrapper in reversed(self._wrappers):  # the first is the outermost
            run = wrapper(run, f"/{SERVICE.full_name}/{name}")
        return run

    def _watched(self, run: Run, name: str) -> Run:
        requests = self._requests
        if requests is None:
            return self._answering(run)

        async def kept(request: Any, context: Any) -> Any:
            note = requests.begin(request_id_of(request, context), f"gRPC {name}")
            code = "cancelled"
            try:
                answer = await answering(request, context)
                code = ""
                return answer
            except Aborted:
                code = context.code().name.lower()
                raise
            finally:
                requests.end(note, code)

        answering = self._answering(run)
        return kept

    def _answering(self, run: Run) -> Run:
        async def call(request: Any, context: Any) -> Any:
            self.begun(context)
            current_client.set(_client_of(context))
            try:
                if type(request) is TooLarge:
                    raise request.error()
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


def _client_of(context: Any) -> str:
    """The client for sharing threads: the tenant, or the address if there are no keys."""
    caller = context.caller
    tenant: str = context.client if caller in (None, NOBODY) else caller.key.tenant
    return tenant


def request_id_of(request: Any, context: Any) -> str:
    """The caller's own: as on HTTP, or as v2 has it; else empty."""
    for key, value in context.invocation_metadata() or ():
        if key == "x-request-id":
            return str(value)[:_MOST_ID]
    return str(getattr(request, "id", ""))[:_MOST_ID]
