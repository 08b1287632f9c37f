"""`inference.GRPCInferenceService`: each method takes a message and answers with one. Errors are
raised; `calls.py` turns them into statuses. Codec, checks and registry are HTTP's."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, cast

import msgspec
from google.protobuf import json_format

from headway.errors import DeadlineExceeded, HeadwayError, InvalidInput
from headway.hosting.explaining import HEADER, Story
from headway.hosting.registry import PLAIN, Array, Ask, ServedModel
from headway.server.auth.keys import Caller, check_whole_server
from headway.server.families.v2.bodies import ChangeRequest, IndexRequest, RegisterRequest
from headway.server.families.v2.operations import (
    OPERATIONS,
    TRACE_SETTINGS,
    Asked,
    Operation,
    Operations,
)
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc import messages
from headway.server.grpc.calls import SERVICE, Calls
from headway.server.grpc.streams import Chunks, InferCall, Streams
from headway.server.service.dtypes import BYTES
from headway.server.service.inference import Inference
from headway.server.service.options import ask_from
from headway.server.service.requests import InferRequest, Parameters
from headway.signature import Decoded
from headway.wire.body_room import BodyRoom
from headway.wire.http2.status import Status


class Methods:
    """The methods of the .proto by name, over the service that HTTP uses, too."""

    def __init__(
        self,
        inference: Inference,
        calls: Calls,
        *,
        has_keys: bool = False,
        room: BodyRoom | None = None,
    ) -> None:
        self._inference = inference
        self._models = inference.models
        self._has_keys = has_keys
        self._streams = Streams(self, calls, room)
        self._operations = Operations(inference)
        for operation in reversed(OPERATIONS):  # of several with one method, the first counts
            if not hasattr(Methods, operation.grpc):
                setattr(self, operation.grpc, self._face(operation))

    def _caller(self, context: Any) -> Caller | None:
        """The caller found when the call's head was checked; None: the server has no keys."""
        caller: Caller | None = context.caller if self._has_keys else None
        return caller

    # ---- work

    async def ModelInfer(self, request: pb.ModelInferRequest, context: Any) -> Any:
        return await self.answer(InferCall(request, context, self._caller(context)))

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> None:
        await self._streams.serve(requests, context, self._caller(context))

    def finish_streams(self) -> None:
        self._streams.finish()

    async def streams(self, asked: InferCall) -> bool:
        """Does the model stream? Only a loaded model knows, so it is loaded if necessary."""
        try:
            return (await self._find_or_wake(asked)).streams
        except HeadwayError:  # raised again when it is answered
            return False

    async def answer(self, asked: InferCall) -> bytes:
        if asked.caller is None:
            return await self._answer(asked)
        with asked.caller.allowance.running_one(time.monotonic()):
            return await self._answer(asked)

    async def _answer(self, asked: InferCall) -> bytes:
        request, context, caller = asked
        served = self._models.find_ready(caller, request.model_name, request.model_version)
        if served is None:
            served = await self._find_or_wake(asked)
        messages.check_promised(request, self._inference.signature_of(served))
        if messages.is_large(request):
            with served.held():  # its items are queued later
                ask = ask_of_call(messages.parameters_of(request.parameters), context, caller)
                decoded, spent_s = await self._decode_in_thread(asked)
                return await self._infer(served, decoded, ask.after(spent_s), context)
        decoded = messages.decode(request, regions=self._inference.regions_to_use(caller))
        ask = ask_of_call(decoded.parameters, context, caller)
        return await self._infer(served, decoded, ask, context)

    async def _infer(
        self, served: ServedModel, decoded: InferRequest, ask: Ask, context: Any
    ) -> bytes:
        answer = await self._inference.infer(served, decoded, ask, messages.encode)
        return answer if ask.story is None else _told(ask.story, answer, context)

    @asynccontextmanager
    async def stream(self, asked: InferCall) -> AsyncIterator[Chunks]:
        allowance = None if asked.caller is None else asked.caller.allowance
        with nullcontext() if allowance is None else allowance.running_one(time.monotonic()):
            async with self._stream(asked) as chunks:
                yield chunks

    @asynccontextmanager
    async def _stream(self, asked: InferCall) -> AsyncIterator[Chunks]:
        request, context, caller = asked
        served = await self._find_or_wake(asked)
        messages.check_promised(request, self._inference.signature_of(served))
        if messages.is_large(request):
            decoded, _ = await self._decode_in_thread(asked)
        else:
            decoded = messages.decode(request, regions=self._inference.regions_to_use(caller))
        inputs = self._inference.checked(served, decoded)
        ask = ask_of_call(decoded.parameters, context, caller)
        stream = served.stream(_value_of(served, inputs), ask)
        arrays = cast(Any, served).signature.output.arrays

        signature = self._inference.signature_of(served)
        encoder = messages.AnswerEncoder(served.name, served.version, signature)
        of_text = None
        if not decoded.outputs and [*signature.outputs.values()] == [BYTES]:
            of_text = messages.text_encoder(encoder.encode(decoded.id, arrays([""])))

        def encode(chunk: Any) -> bytes:
            if of_text is not None and type(chunk) is str:
                return of_text(chunk)
            outputs = arrays([chunk])
            if decoded.outputs:
                return self._inference.encode(served, decoded, outputs, messages.encode)
            return encoder.encode(decoded.id, outputs)

        async with aclosing(cast(Any, stream)):
            yield Chunks(stream, encode)

    async def _decode_in_thread(self, asked: InferCall) -> tuple[InferRequest, float]:
        """(The call ends by itself if its deadline passes meanwhile.)"""
        request, context, caller = asked
        decode = partial(messages.decode, request)
        return await self._inference.decode_in_thread(decode, caller, context.time_remaining())

    async def _find_or_wake(self, asked: InferCall) -> ServedModel:
        """A model that loads on request, once it is there. The wait counts for the caller."""
        request, context, caller = asked
        name, version = request.model_name, request.model_version
        found = self._models.find_ready(caller, name, version)
        if found is not None:
            return found
        ask = ask_of_call(messages.parameters_of(request.parameters), context, caller)
        found, left_ms = await self._inference.wake(caller, name, version, ask.deadline_ms)
        if left_ms is not None:
            request.parameters["timeout"].int64_param = max(1, round(left_ms * 1e3))
        return found

    # ---- health

    async def ServerLive(self, request: pb.ServerLiveRequest, context: Any) -> Any:
        return pb.ServerLiveResponse(live=self._models.registry.is_live)

    async def ServerReady(self, request: pb.ServerReadyRequest, context: Any) -> Any:
        return pb.ServerReadyResponse(ready=self._models.registry.is_ready)

    async def ModelReady(self, request: pb.ModelReadyRequest, context: Any) -> Any:
        """A model that is not there is not ready: the clients' question is one of yes or no."""
        try:
            self._models.registry.find_ready(request.name, request.version)
        except HeadwayError:
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=True)

    # ---- what an operator asks

    def _face(self, operation: Operation) -> Callable[[Any, Any], Awaitable[Any]]:
        answer_kind = getattr(pb, SERVICE.methods_by_name[operation.grpc].output_type.name)
        reads, writes = _READS.get(operation.grpc), _WRITES.get(operation.grpc)

        async def answer(request: Any, context: Any) -> Any:
            caller = self._caller(context)
            if operation.is_of_server:
                check_whole_server(caller)
            asked = Asked(
                *(caller, _named(request), getattr(request, "version", "")),
                None if reads is None else reads(request),
                lambda: ask_of_call({}, context, caller).deadline_ms,
            )
            found = msgspec.to_builtins(await operation.run(self._operations, asked))
            fields = found if writes is None else writes(found)
            # HTTP's metadata has fields that the .proto has not.
            return json_format.ParseDict(fields or {}, answer_kind(), ignore_unknown_fields=True)

        return answer

    async def CudaSharedMemoryRegister(
        self, request: pb.CudaSharedMemoryRegisterRequest, context: Any
    ) -> Any:
        await context.abort(Status.UNIMPLEMENTED, "CUDA shared memory is not supported")


def _told(story: Story, answer: bytes, context: Any) -> bytes:
    """Add the story to the call's metadata and to the answer: a streaming call has many answers."""
    text = story.text()
    if not text:
        return answer
    context.set_trailing_metadata(((HEADER.lower(), text),))
    return answer + messages.parameters_message(**{HEADER.lower().replace("-", "_"): text})


def _named(request: Any) -> str:
    """The model, or the region. KServe's clients have the model's name where Triton's have the
    repository's."""
    fields = ("name", "model_name", "repository_name")
    return next((name for field in fields if (name := getattr(request, field, ""))), "")


def _change_of(request: Any) -> ChangeRequest[dict[str, Any]]:
    return ChangeRequest(dict(messages.parameters_of(request.parameters)))


def _trace_settings_in(request: Any) -> dict[str, Any]:
    """The settings of the request. One without a value is to be cleared."""
    given: dict[str, Any] = {}
    for key, setting in request.settings.items():
        value = list(setting.value)
        is_list = isinstance(TRACE_SETTINGS.get(key), list) or len(value) > 1
        given[key] = value if value and is_list else next(iter(value), None)
    return given


_READS: dict[str, Callable[[Any], Any]] = {  # the body, where the message has one
    "RepositoryIndex": lambda request: IndexRequest(request.ready),
    "RepositoryModelLoad": _change_of,
    "RepositoryModelUnload": _change_of,
    "SystemSharedMemoryRegister": lambda request: RegisterRequest(
        request.key, request.byte_size, request.offset
    ),
    "TraceSetting": _trace_settings_in,
    "LogSettings": lambda request: messages.parameters_of(request.settings),
}
_PREFIX = "headway-"
_NO_HEADERS: dict[str, str] = {}
_KINDS = {bool: "bool_param", int: "uint32_param", str: "string_param"}
_WRITES: dict[str, Callable[[Any], Any]] = {  # the message's fields, where they are not HTTP's
    "ModelConfig": lambda found: {"config": found},
    "RepositoryIndex": lambda found: {"models": found},
    "SystemSharedMemoryStatus": lambda found: {"regions": {each["name"]: each for each in found}},
    "CudaSharedMemoryStatus": lambda found: {},
    "TraceSetting": lambda found: {
        "settings": {
            key: {"value": value if isinstance(value, list) else [value]}
            for key, value in found.items()
        }
    },
    "LogSettings": lambda found: {
        "settings": {key: {_KINDS[type(value)]: value} for key, value in found.items()}
    },
}


def ask_of_call(parameters: Parameters, context: Any, caller: Caller | None) -> Ask:
    """The options of a call: v2's parameters, HTTP's headers as metadata, and the call's own
    deadline. Of two time limits, the shorter counts."""
    headers = _NO_HEADERS
    for key, value in context.invocation_metadata() or ():
        if key.startswith(_PREFIX):
            headers = {**headers, key: value}
    if parameters or headers:
        ask = ask_from(parameters, headers, caller)
    else:
        ask = PLAIN if caller is None else caller.plain
    left_s = context.time_remaining()
    if left_s is None:
        return ask
    if left_s <= 0:
        raise DeadlineExceeded("the call's deadline has passed")
    return ask.within(left_s * 1000)


def _value_of(served: ServedModel, inputs: Mapping[str, Array]) -> Any:
    """The one row that a stream takes."""
    signature = served.signature
    if signature is None:
        raise InvalidInput(f"{served.name} does not stream tensors")
    values = signature.input.values(inputs)
    if len(values) != 1:
        raise InvalidInput(f"a stream takes one row, not {len(values)}")
    return Decoded(values[0])
