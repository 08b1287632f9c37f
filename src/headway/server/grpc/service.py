"""`inference.GRPCInferenceService`: each method takes a message and answers with one. Errors are
raised; `calls.py` turns them into statuses. Codec, checks and registry are HTTP's."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, cast

import grpc
from google.protobuf import json_format

from headway.errors import Forbidden, HeadwayError, InvalidInput, NotReady
from headway.hosting.explaining import HEADER, Story
from headway.hosting.registry import Array, Registry, ServedModel
from headway.server.api.v2 import codec
from headway.server.api.v2.handlers import (
    EXTENSIONS,
    LOG_SETTINGS,
    TRACE_SETTINGS,
    DirectInference,
    check_unload,
    override_in,
    statistics_models,
    statistics_of,
)
from headway.server.api.v2.model_config import config_of, metadata_of
from headway.server.api.v2.over_models import OverModels
from headway.server.api.v2.shared_memory import SharedRegions
from headway.server.api.v2.tensors import NORMAL, Limits, Signature
from headway.server.api.v2.triton_words import loading
from headway.server.app import Asker
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc import messages
from headway.server.grpc.asking import ask_of_call
from headway.server.grpc.calls import Calls
from headway.server.grpc.direct import DirectMessages, direct_messages
from headway.server.grpc.streams import Streams
from headway.server.net.background import background
from headway.server.net.holding import BodyRoom


class Inference(OverModels[DirectMessages]):
    """The service over one registry. The methods with the .proto's names are called from afar."""

    def __init__(
        self,
        registry: Registry,
        calls: Calls,
        *,
        version: str = "0",
        regions: SharedRegions | None = None,
        limits: Limits = NORMAL,
        room: BodyRoom | None = None,
    ) -> None:
        super().__init__(registry, version=version, regions=regions, limits=limits)
        self._streams = Streams(self, calls, room)

    # ---- work

    async def ModelInfer(self, request: pb.ModelInferRequest, context: Any) -> Any:
        return await self.answer(request, context)

    def infer_direct(self, request: pb.ModelInferRequest, asker: Asker) -> DirectInference | None:
        """One row for a model whose shapes are fixed, without a task; None: `answer` must do it."""
        key = request.model_name, request.model_version
        try:
            served = self._registry.find_ready(*key)
        except HeadwayError:
            return None
        if served is None:
            return None
        known = self._codecs.get(key)
        if known is None or known[0] is not served:
            known = self._codecs[key] = served, self._direct_messages(served)
        codec = known[1]
        if codec is None or (asked := codec.decode(request)) is None:
            return None
        inference = DirectInference(asker, served, codec, asked)
        return inference if served.submit_direct(inference) else None

    def _direct_messages(self, served: ServedModel) -> DirectMessages | None:
        if not served.is_direct:
            return None
        return direct_messages(served.name, served.version, self.signature_of(served))

    async def ModelStreamInfer(self, requests: AsyncIterator[Any], context: Any) -> None:
        await self._streams.serve(requests, context)

    def finish_streams(self) -> None:
        self._streams.finish()

    def streams(self, request: pb.ModelInferRequest) -> bool:
        try:
            return self._registry.get(request.model_name, request.model_version).streams
        except HeadwayError:  # said when it is answered; `wake` has loaded what can be loaded
            return False

    async def wake(self, request: pb.ModelInferRequest, context: Any) -> None:
        """Only a model that is there can tell whether it streams."""
        with suppress(HeadwayError):  # said when it is answered
            if self._registry.find_ready(request.model_name, request.model_version) is None:
                await self._woken(request, context)

    async def answer(self, request: pb.ModelInferRequest, context: Any) -> pb.ModelInferResponse:
        served = self._registry.find_ready(request.model_name, request.model_version)
        if served is None:
            served = await self._woken(request, context)
        signature = self.signature_of(served)
        with served.held():  # a large one comes to the queue later
            asked = await self._read(request, signature, context)
            inputs = signature.check_inputs(asked.inputs, asked.datatypes)
            codec.check_outputs(asked, signature)
            ask = ask_of_call(asked.parameters, context)
            outputs = await served.infer(inputs, ask)
        if codec.is_large_answer(asked, outputs):
            response = await background.run(lambda _: self._encode(served, asked, outputs))
        else:
            response = self._encode(served, asked, outputs)
        if ask.story is not None:
            _tell(ask.story, response, context)
        return response

    @asynccontextmanager
    async def stream(
        self, request: pb.ModelInferRequest, context: Any
    ) -> AsyncIterator[AsyncIterator[pb.ModelInferResponse]]:
        served = self._registry.find_ready(request.model_name, request.model_version)
        if served is None:
            served = await self._woken(request, context)
        signature = self.signature_of(served)
        asked = await self._read(request, signature, context)
        inputs = signature.check_inputs(asked.inputs, asked.datatypes)
        codec.check_outputs(asked, signature)
        ask = ask_of_call(asked.parameters, context)
        chunks = served.stream(_value_of(served, inputs), ask)
        async with aclosing(cast(Any, chunks)):
            yield (
                self._encode(served, asked, cast(Any, served).signature.output.arrays([chunk]))
                async for chunk in chunks
            )

    async def _read(
        self, request: pb.ModelInferRequest, signature: Signature, context: Any
    ) -> codec.InferRequest:
        """Its arrays; large ones off the event loop, in the caller's time (gRPC itself ends a call
        whose deadline passes meanwhile)."""
        messages.check_promised(request, signature)
        if not messages.is_slow(request):
            return messages.decode(request, regions=self._regions)
        return await background.run(
            lambda steps: messages.decode(request, regions=self._regions, steps=steps),
            timeout_s=context.time_remaining(),
        )

    async def _woken(self, request: pb.ModelInferRequest, context: Any) -> ServedModel:
        """A model that loads on request, once it is there. The wait counts for the caller."""
        ask = ask_of_call(messages.parameters_of(request.parameters), context)
        started = time.monotonic()
        served = await self._wait_ready(request.model_name, request.model_version, ask.deadline_ms)
        if ask.deadline_ms is not None:
            left_us = ask.deadline_ms * 1e3 - (time.monotonic() - started) * 1e6
            request.parameters["timeout"].int64_param = max(1, round(left_us))
        return served

    async def _wait_ready(self, name: str, version: str, deadline_ms: float | None) -> ServedModel:
        timeout_s = None if deadline_ms is None else deadline_ms / 1e3
        return await self._registry.wait_ready(name, version, timeout_s=timeout_s)

    async def _known(self, name: str, version: str, context: Any) -> ServedModel:
        """For its description, which a client needs before it can ask anything: a model that loads
        on request is woken for it."""
        try:
            return self._registry.get(name, version)
        except NotReady:
            return await self._wait_ready(name, version, ask_of_call({}, context).deadline_ms)

    def _encode(
        self, served: ServedModel, asked: codec.InferRequest, outputs: Mapping[str, Array]
    ) -> pb.ModelInferResponse:
        return messages.encode(
            served.name,
            served.version,
            asked,
            outputs,
            signature=self.signature_of(served),
            labels=getattr(served, "labels", None),
            regions=self._regions,
        )

    # ---- health

    async def ServerLive(self, request: pb.ServerLiveRequest, context: Any) -> Any:
        return pb.ServerLiveResponse(live=self._registry.is_live)

    async def ServerReady(self, request: pb.ServerReadyRequest, context: Any) -> Any:
        return pb.ServerReadyResponse(ready=self._registry.is_ready)

    async def ModelReady(self, request: pb.ModelReadyRequest, context: Any) -> Any:
        """A model that is not there is not ready: the clients' question is one of yes or no."""
        try:
            self._registry.find_ready(request.name, request.version)
        except HeadwayError:
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=True)

    # ---- what there is

    async def ServerMetadata(self, request: pb.ServerMetadataRequest, context: Any) -> Any:
        extensions = list(EXTENSIONS)
        if self._regions is not None:
            extensions.append("system_shared_memory")
        return pb.ServerMetadataResponse(
            name="headway", version=self._version, extensions=extensions
        )

    async def ModelMetadata(self, request: pb.ModelMetadataRequest, context: Any) -> Any:
        served = await self._known(request.name, request.version, context)
        versions = [each.version for each in self._registry.models(request.name)]
        found = metadata_of(served, versions=versions)
        return json_format.ParseDict(found, pb.ModelMetadataResponse())

    async def ModelConfig(self, request: pb.ModelConfigRequest, context: Any) -> Any:
        found = config_of(await self._known(request.name, request.version, context))
        return json_format.ParseDict({"config": found}, pb.ModelConfigResponse())

    async def ModelStatistics(self, request: pb.ModelStatisticsRequest, context: Any) -> Any:
        served = statistics_models(self._registry, request.name, request.version)
        found = {"model_stats": [statistics_of(each) for each in served]}
        return json_format.ParseDict(found, pb.ModelStatisticsResponse())

    # ---- models

    async def RepositoryIndex(self, request: pb.RepositoryIndexRequest, context: Any) -> Any:
        response = pb.RepositoryIndexResponse()
        for each in self._registry.index():
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
            await self._registry.may_change().load(_named(request), override_in(parameters))
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest, context: Any
    ) -> Any:
        """No model here depends on another: `unload_dependents` is read and changes nothing."""
        check_unload(messages.parameters_of(request.parameters))
        await self._registry.may_change().unload(_named(request))
        return pb.RepositoryModelUnloadResponse()

    # ---- shared memory

    async def SystemSharedMemoryStatus(
        self, request: pb.SystemSharedMemoryStatusRequest, context: Any
    ) -> Any:
        found = self._regions.list(request.name) if self._regions is not None else []
        regions = {each.name: each.as_triton() for each in found}
        return json_format.ParseDict({"regions": regions}, pb.SystemSharedMemoryStatusResponse())

    async def SystemSharedMemoryRegister(
        self, request: pb.SystemSharedMemoryRegisterRequest, context: Any
    ) -> Any:
        if self._regions is None:
            raise Forbidden("shared memory is off on this server")
        self._regions.register(
            request.name, request.key, offset=request.offset, byte_size=request.byte_size
        )
        return pb.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, context: Any
    ) -> Any:
        if self._regions is not None:
            if request.name:
                self._regions.unregister(request.name)
            else:
                self._regions.close()
        return pb.SystemSharedMemoryUnregisterResponse()

    async def CudaSharedMemoryStatus(
        self, request: pb.CudaSharedMemoryStatusRequest, context: Any
    ) -> Any:
        return pb.CudaSharedMemoryStatusResponse()

    async def CudaSharedMemoryRegister(
        self, request: pb.CudaSharedMemoryRegisterRequest, context: Any
    ) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "CUDA shared memory is not supported")

    async def CudaSharedMemoryUnregister(
        self, request: pb.CudaSharedMemoryUnregisterRequest, context: Any
    ) -> Any:
        """There is nothing to forget; perf_analyzer asks for it with any shared memory."""
        return pb.CudaSharedMemoryUnregisterResponse()

    # ---- settings, which can be read; setting one to what it is changes nothing

    async def TraceSetting(self, request: pb.TraceSettingRequest, context: Any) -> Any:
        if request.model_name:
            self._registry.get(request.model_name)
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


def _tell(story: Story, response: pb.ModelInferResponse, context: Any) -> None:
    """As the call's metadata, and in the response itself: a stream has many, one call."""
    text = story.text()
    if text:
        context.set_trailing_metadata(((HEADER.lower(), text),))
        response.parameters[HEADER.lower().replace("-", "_")].string_param = text


def _named(
    request: "pb.RepositoryModelLoadRequest | pb.RepositoryModelUnloadRequest",
) -> str:
    """KServe's clients have the model's name where Triton's have the repository's."""
    return request.model_name or request.repository_name


def _value_of(served: ServedModel, inputs: Mapping[str, Array]) -> Any:
    """The one row that a stream takes, as `ServedModel.stream` wants it."""
    signature = getattr(served, "signature", None)
    if signature is None:
        raise InvalidInput(f"{served.name} does not stream tensors")
    columns = {field.key: field.column(inputs[field.name]) for field in signature.input.fields}
    rows = {len(column) for column in columns.values()}
    if rows != {1}:
        raise InvalidInput(f"a stream takes one row, not {max(rows)}")
    row = {key: column[0] for key, column in columns.items()}
    return row if signature.input.record is not None else next(iter(row.values()))
