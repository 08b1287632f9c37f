"""`inference.GRPCInferenceService`: each method takes a message and answers with one. Errors are
raised; `calls.py` turns them into statuses. Codec, checks and registry are HTTP's."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, cast

from google.protobuf import json_format

from headway.errors import Forbidden, HeadwayError, InvalidInput
from headway.hosting.explaining import HEADER, Story
from headway.hosting.registry import Array, Ask, ServedModel
from headway.server.auth.keys import Caller, check_whole_server
from headway.server.families.v2.handlers import (
    EXTENSIONS,
    LOG_SETTINGS,
    TRACE_SETTINGS,
    check_unload,
    override_in,
    statistics_of,
)
from headway.server.families.v2.model_config import config_of, metadata_of
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc import messages
from headway.server.grpc.asking import ask_of_call
from headway.server.grpc.calls import Calls
from headway.server.grpc.streams import Asked, Chunks, Streams
from headway.server.service.inference import Inference
from headway.server.service.requests import InferRequest
from headway.server.service.shared_memory import SharedRegions
from headway.server.service.triton_words import loading
from headway.signature import Decoded
from headway.wire.body_room import BodyRoom
from headway.wire.http2.status import Status


class Methods:
    """Those of the .proto, by its names, over the service that HTTP has, too."""

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
        self._regions = inference.regions
        self._has_keys = has_keys
        self._streams = Streams(self, calls, room)

    def _caller(self, context: Any) -> Caller | None:
        """It was found at the call's head; None: the server has no keys."""
        caller: Caller | None = context.caller if self._has_keys else None
        return caller

    # ---- work

    async def ModelInfer(self, request: pb.ModelInferRequest, context: Any) -> Any:
        return await self.answer(Asked(request, context, self._caller(context)))

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> None:
        await self._streams.serve(requests, context, self._caller(context))

    def finish_streams(self) -> None:
        self._streams.finish()

    async def streams(self, asked: Asked) -> bool:
        try:
            return (await self._find_or_wake(asked)).streams
        except HeadwayError:  # said when it is answered
            return False

    async def answer(self, asked: Asked) -> bytes:
        if asked.caller is None:
            return await self._answer(asked)
        with asked.caller.allowance.running_one(time.monotonic()):
            return await self._answer(asked)

    async def _answer(self, asked: Asked) -> bytes:
        request, context, caller = asked
        served = self._models.find_ready(caller, request.model_name, request.model_version)
        if served is None:
            served = await self._find_or_wake(asked)
        messages.check_promised(request, self._inference.signature_of(served))
        if messages.is_large(request):
            with served.held():  # its items come to the queue later
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
    async def stream(self, asked: Asked) -> AsyncIterator[Chunks]:
        allowance = None if asked.caller is None else asked.caller.allowance
        with nullcontext() if allowance is None else allowance.running_one(time.monotonic()):
            async with self._stream(asked) as chunks:
                yield chunks

    @asynccontextmanager
    async def _stream(self, asked: Asked) -> AsyncIterator[Chunks]:
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

        def encode(chunk: Any) -> bytes:
            outputs = arrays([chunk])
            if decoded.outputs:
                return self._inference.encode(served, decoded, outputs, messages.encode)
            return encoder.encode(decoded.id, outputs)

        async with aclosing(cast(Any, stream)):
            yield Chunks(stream, encode)

    async def _decode_in_thread(self, asked: Asked) -> tuple[InferRequest, float]:
        """(gRPC itself ends a call whose deadline passes meanwhile.)"""
        request, context, caller = asked
        decode = partial(messages.decode, request)
        return await self._inference.decode_in_thread(decode, caller, context.time_remaining())

    async def _find_or_wake(self, asked: Asked) -> ServedModel:
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

    async def _known(self, name: str, version: str, context: Any) -> ServedModel:
        caller = self._caller(context)
        return await self._inference.known(
            caller, name, version, lambda: ask_of_call({}, context, caller).deadline_ms
        )

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

    # ---- what there is

    async def ServerMetadata(self, request: pb.ServerMetadataRequest, context: Any) -> Any:
        extensions = list(EXTENSIONS)
        if self._regions is not None:
            extensions.append("system_shared_memory")
        return pb.ServerMetadataResponse(
            name=self._inference.name, version=self._inference.version, extensions=extensions
        )

    async def ModelMetadata(self, request: pb.ModelMetadataRequest, context: Any) -> Any:
        served = await self._known(request.name, request.version, context)
        versions = [
            each.version for each in self._models.versions(self._caller(context), request.name)
        ]
        found = metadata_of(served, versions=versions)
        return json_format.ParseDict(found, pb.ModelMetadataResponse())

    async def ModelConfig(self, request: pb.ModelConfigRequest, context: Any) -> Any:
        found = config_of(await self._known(request.name, request.version, context))
        return json_format.ParseDict({"config": found}, pb.ModelConfigResponse())

    async def ModelStatistics(self, request: pb.ModelStatisticsRequest, context: Any) -> Any:
        served = self._models.of_statistics(self._caller(context), request.name, request.version)
        found = {"model_stats": [statistics_of(each) for each in served]}
        return json_format.ParseDict(found, pb.ModelStatisticsResponse())

    # ---- models

    async def RepositoryIndex(self, request: pb.RepositoryIndexRequest, context: Any) -> Any:
        response = pb.RepositoryIndexResponse()
        for each in self._models.index(self._caller(context)):
            if each.state == "READY" or not request.ready:
                response.models.add(
                    name=each.name, version=each.version, state=each.state, reason=each.reason
                )
        return response

    async def RepositoryModelLoad(
        self, request: pb.RepositoryModelLoadRequest, context: Any
    ) -> Any:
        parameters = messages.parameters_of(request.parameters)
        with loading(_named(request)):
            await self._models.load(self._caller(context), _named(request), override_in(parameters))
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest, context: Any
    ) -> Any:
        """`unload_dependents` is read and changes nothing: models that use this one stay, and fail
        where they call it."""
        check_unload(messages.parameters_of(request.parameters))
        await self._models.unload(self._caller(context), _named(request))
        return pb.RepositoryModelUnloadResponse()

    # ---- shared memory

    async def SystemSharedMemoryStatus(
        self, request: pb.SystemSharedMemoryStatusRequest, context: Any
    ) -> Any:
        regions = self._regions_to_manage(context)
        found = regions.list(request.name) if regions is not None else []
        listed = {each.name: each.as_triton() for each in found}
        return json_format.ParseDict({"regions": listed}, pb.SystemSharedMemoryStatusResponse())

    async def SystemSharedMemoryRegister(
        self, request: pb.SystemSharedMemoryRegisterRequest, context: Any
    ) -> Any:
        regions = self._regions_to_manage(context)
        if regions is None:
            raise Forbidden("shared memory is off on this server")
        regions.register(
            request.name, request.key, offset=request.offset, byte_size=request.byte_size
        )
        return pb.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, context: Any
    ) -> Any:
        regions = self._regions_to_manage(context)
        if regions is not None:
            if request.name:
                regions.unregister(request.name)
            else:
                regions.close()
        return pb.SystemSharedMemoryUnregisterResponse()

    def _regions_to_manage(self, context: Any) -> SharedRegions | None:
        """None: shared memory is off."""
        check_whole_server(self._caller(context))
        return self._regions

    async def CudaSharedMemoryStatus(
        self, request: pb.CudaSharedMemoryStatusRequest, context: Any
    ) -> Any:
        return pb.CudaSharedMemoryStatusResponse()

    async def CudaSharedMemoryRegister(
        self, request: pb.CudaSharedMemoryRegisterRequest, context: Any
    ) -> Any:
        await context.abort(Status.UNIMPLEMENTED, "CUDA shared memory is not supported")

    async def CudaSharedMemoryUnregister(
        self, request: pb.CudaSharedMemoryUnregisterRequest, context: Any
    ) -> Any:
        """There is nothing to forget; perf_analyzer asks for it with any shared memory."""
        return pb.CudaSharedMemoryUnregisterResponse()

    # ---- settings, which can be read; setting one to what it is changes nothing

    async def TraceSetting(self, request: pb.TraceSettingRequest, context: Any) -> Any:
        if request.model_name:
            self._models.get(self._caller(context), request.model_name)
        known = {
            key: value if isinstance(value, list) else [value]
            for key, value in TRACE_SETTINGS.items()
        }
        for key, setting in request.settings.items():
            if setting.value and list(setting.value) != known.get(key):
                raise InvalidInput(f"{key!r} cannot be changed here")
        settings = {key: {"value": value} for key, value in known.items()}
        return json_format.ParseDict({"settings": settings}, pb.TraceSettingResponse())

    async def LogSettings(self, request: pb.LogSettingsRequest, context: Any) -> Any:
        for key, setting in request.settings.items():
            kind = setting.WhichOneof("parameter_choice")
            if kind is not None and getattr(setting, kind) != LOG_SETTINGS.get(key):
                raise InvalidInput(f"{key!r} cannot be changed here")
        response = pb.LogSettingsResponse()
        kinds = {bool: "bool_param", int: "uint32_param", str: "string_param"}
        for key, value in LOG_SETTINGS.items():
            setattr(response.settings[key], kinds[type(value)], value)
        return response


def _told(story: Story, answer: bytes, context: Any) -> bytes:
    """As the call's metadata, and in the answer itself: a call that streams has many answers."""
    text = story.text()
    if not text:
        return answer
    context.set_trailing_metadata(((HEADER.lower(), text),))
    return answer + messages.parameters_message(**{HEADER.lower().replace("-", "_"): text})


def _named(
    request: "pb.RepositoryModelLoadRequest | pb.RepositoryModelUnloadRequest",
) -> str:
    """KServe's clients have the model's name where Triton's have the repository's."""
    return request.model_name or request.repository_name


def _value_of(served: ServedModel, inputs: Mapping[str, Array]) -> Any:
    """The one row that a stream takes."""
    signature = served.signature
    if signature is None:
        raise InvalidInput(f"{served.name} does not stream tensors")
    values = signature.input.values(inputs)
    if len(values) != 1:
        raise InvalidInput(f"a stream takes one row, not {len(values)}")
    return Decoded(values[0])
