"""The v2 routes: each takes a request and its path's parts and answers. Errors are raised; the
app turns them into `{"error": ...}`. It knows no sockets and no scheduler."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from headway.errors import Forbidden, InvalidInput, NotReady
from headway.hosting.registry import Ask, ServedModel
from headway.hosting.repository.settings import parse_override
from headway.hosting.statistics import ModelStatistics, TritonStatistics
from headway.server.auth.access import Access
from headway.server.auth.keys import check_whole_server
from headway.server.bodies.json_body import Fields, decode_fields, fields_of
from headway.server.bodies.own_headers import timeout_s
from headway.server.families.v2 import codec, generating
from headway.server.families.v2.bodies import (
    AllStatistics,
    ChangeRequest,
    IndexEntry,
    IndexRequest,
    Live,
    Loaded,
    LoadParameters,
    LogSettings,
    ModelNames,
    ModelReady,
    Ready,
    RegisterRequest,
    ServerMetadata,
    TraceSettings,
    Unloaded,
    UnloadParameters,
)
from headway.server.families.v2.direct import direct_codec
from headway.server.families.v2.model_config import config_of, metadata_of, with_contents
from headway.server.service.direct import DirectPath, of_rows
from headway.server.service.inference import Decode, Inference
from headway.server.service.options import ask_of, find_or_wake, no_query
from headway.server.service.requests import InferRequest
from headway.server.service.routes import Errors, Route
from headway.server.service.shared_memory import SharedRegions
from headway.server.service.triton_words import loading
from headway.wire.messages import Answer, Request, Response

HEADER_LENGTH = "inference-header-content-length"

_M = "/v2/models/{model}"
_V = "/v2/models/{model}/versions/{version}"


EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "parameters",
    "schedule_policy",
    "statistics",
)
TRACE_SETTINGS: dict[str, Any] = msgspec.structs.asdict(TraceSettings())
LOG_SETTINGS: dict[str, Any] = msgspec.structs.asdict(LogSettings())


class V2:
    """Its routes and their handlers, over one service. Path parts come percent-decoded."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._models = inference.models
        self._regions = inference.regions
        self._direct = DirectPath(inference, of_rows(inference, direct_codec))

    def routes(self) -> list[Route]:
        load, unload = self.repository_load, self.repository_unload
        trace = f"{_M}/trace/setting"
        return [
            Route("GET", "/v2", self.server_metadata, Access.READ),
            Route("GET", "/v2/health/live", self.live, Access.OPEN),
            Route("GET", "/v2/health/ready", self.ready, Access.OPEN),
            Route("GET", "/v2/models", self.models, Access.READ),
            Route("GET", "/v2/models/stats", self.statistics, Access.READ),
            *self._of_models(_M),
            *self._of_models(_V),
            Route("POST", "/v2/repository/index", self.repository_index, Access.READ),
            Route("POST", "/v2/repository/{repository}/index", self.repository_index, Access.READ),
            # What others would notice takes an administrator: models that come and go, regions
            # that are forgotten, levels of logs.
            Route("POST", "/v2/repository/models/{model}/load", load, Access.ADMIN),
            Route("POST", "/v2/repository/models/{model}/unload", unload, Access.ADMIN),
            Route("GET", "/v2/trace/setting", self.trace_setting, Access.READ),
            Route("POST", "/v2/trace/setting", self.trace_setting, Access.ADMIN),
            Route("GET", trace, self.trace_setting, Access.READ, Errors.TRITON),
            Route("POST", trace, self.trace_setting, Access.ADMIN, Errors.TRITON),
            Route("GET", "/v2/logging", self.logging, Access.READ),
            Route("POST", "/v2/logging", self.logging, Access.ADMIN),
            *self._of_shared_memory(),
        ]

    def _of_models(self, path: str) -> list[Route]:
        """Of a model, or of one of its versions."""
        infer = Route("POST", f"{path}/infer", self.infer, Access.INFER, Errors.TRITON)
        stream = self.generate_stream
        return [
            infer._replace(direct=self._direct.start, may_compress=True),
            Route("GET", path, self.model_metadata, Access.READ, Errors.TRITON),
            Route("GET", f"{path}/ready", self.model_ready, Access.OPEN, Errors.TRITON),
            Route("GET", f"{path}/config", self.model_config, Access.READ, Errors.TRITON),
            Route("GET", f"{path}/stats", self.statistics, Access.READ, Errors.TRITON),
            Route("POST", f"{path}/generate", self.generate, Access.INFER, Errors.TRITON),
            Route("POST", f"{path}/generate_stream", stream, Access.INFER, Errors.TRITON),
        ]

    def _of_shared_memory(self) -> list[Route]:
        rows = []
        for path, status, register, unregister in (
            (
                "/v2/systemsharedmemory",
                self.shared_memory_status,
                self.shared_memory_register,
                self.shared_memory_unregister,
            ),
            (
                "/v2/cudasharedmemory",
                self.cuda_memory_status,
                self.cuda_memory_register,
                self.cuda_memory_unregister,
            ),
        ):
            region = f"{path}/region/{{region}}"
            rows += [
                Route("GET", f"{path}/status", status, Access.READ),
                Route("GET", f"{region}/status", status, Access.READ),
                Route("POST", f"{region}/register", register, Access.ADMIN),
                Route("POST", f"{path}/unregister", unregister, Access.ADMIN),
                Route("POST", f"{region}/unregister", unregister, Access.ADMIN),
            ]
        return rows

    async def infer(self, request: Request, model: str, version: str = "") -> Response:
        served = self._models.find_ready(
            request.caller, model, version
        )  # the hot path: no coroutine
        if served is None:
            served = await self._find_or_wake(request, model, version)
        no_query(request)
        body, length = request.body, _header_length(request.headers)
        signature = self._inference.signature_of(served)
        decode: Decode = partial(codec.decode, body, length, signature=signature)
        if codec.is_large(body, length, signature):
            with served.held():  # its items come to the queue later
                limit_s = timeout_s(request.headers)
                asked, spent_s = await self._inference.decode_in_thread(
                    decode, request.caller, limit_s
                )
                ask = ask_of(asked.parameters, request).after(spent_s)
                return await self._infer(served, asked, ask)
        asked = decode(regions=self._inference.regions_to_use(request.caller))
        return await self._infer(served, asked, ask_of(asked.parameters, request))

    async def _infer(self, served: ServedModel, asked: InferRequest, ask: Ask) -> Response:
        return _inferred(await self._inference.infer(served, asked, ask, codec.encode), ask)

    async def _find_or_wake(self, request: Request, model: str, version: str) -> ServedModel:
        head = request.body[: _header_length(request.headers) or None]
        return await find_or_wake(self._inference, request, model, version, head=head)

    async def live(self, request: Request) -> Response:
        if not self._models.registry.is_live:
            raise NotReady("no model completes any work: this process needs a restart")
        return _json(Live(live=True))

    async def ready(self, request: Request) -> Response:
        if not self._models.registry.is_ready:
            raise NotReady(self._models.registry.unready, retry_after_s=1.0)
        return _json(Ready(ready=True))

    async def server_metadata(self, request: Request) -> Response:
        extensions = list(EXTENSIONS)
        if self._regions is not None:
            extensions.append("system_shared_memory")
        server = self._inference
        return _json(ServerMetadata(server.name, server.version, extensions))

    async def models(self, request: Request) -> Response:
        return _json(ModelNames(self._models.names(request.caller)))

    async def model_ready(self, request: Request, model: str, version: str = "") -> Response:
        """One that loads on request is ready for that."""
        self._models.find_ready(request.caller, model, version)
        return _json(ModelReady(model, ready=True))

    async def model_metadata(self, request: Request, model: str, version: str = "") -> Response:
        served = await self._known(request, model, version)
        versions = [each.version for each in self._models.versions(request.caller, model)]
        return _json(with_contents(metadata_of(served, versions=versions), served))

    async def model_config(self, request: Request, model: str, version: str = "") -> Response:
        return _json(config_of(await self._known(request, model, version)))

    async def statistics(self, request: Request, model: str = "", version: str = "") -> Response:
        served = self._models.of_statistics(request.caller, model, version)
        found: AllStatistics = {"model_stats": [statistics_of(each) for each in served]}
        return _json(found)

    async def generate(self, request: Request, model: str, version: str = "") -> Response:
        served = await self._find_or_wake(request, model, version)
        no_query(request)
        body = await generating.parse(request, served)
        ask = ask_of(body.parameters, request)
        answer = await generating.answer(served, body, ask)
        answer.headers = ask.headers()
        return answer

    async def generate_stream(self, request: Request, model: str, version: str = "") -> Answer:
        served = await self._find_or_wake(request, model, version)
        no_query(request)
        body = await generating.parse(request, served, streams=True)
        return await generating.answer_stream(served, body, ask_of(body.parameters, request))

    async def repository_index(self, request: Request, repository: str = "") -> Response:
        only_ready = (await _parse(request, IndexRequest)).ready
        return _json(
            [
                IndexEntry(each.name, each.version, each.state, each.reason)
                for each in self._models.index(request.caller)
                if each.state == "READY" or not only_ready
            ]
        )

    async def repository_load(self, request: Request, model: str) -> Response:
        parameters = await _change_parameters(request)
        with loading(model):
            await self._models.load(request.caller, model, override_in(parameters))
        return _json(Loaded(model, load=True))  # as KServe answers; Triton's has no body

    async def repository_unload(self, request: Request, model: str) -> Response:
        """`unload_dependents` is read and changes nothing: models that use this one stay, and fail
        where they call it."""
        check_unload(await _change_parameters(request))
        await self._models.unload(request.caller, model)
        return _json(Unloaded(model, unload=True))

    async def _known(self, request: Request, model: str, version: str) -> ServedModel:
        return await self._inference.known(
            request.caller, model, version, lambda: ask_of({}, request).deadline_ms
        )

    async def trace_setting(self, request: Request, model: str = "") -> Response:
        if model:
            self._models.get(request.caller, model)
        return await _fixed(request, TRACE_SETTINGS)

    async def logging(self, request: Request) -> Response:
        return await _fixed(request, LOG_SETTINGS)

    async def shared_memory_status(self, request: Request, region: str = "") -> Response:
        regions = self._regions_to_manage(request)
        found = regions.list(region) if regions is not None else []
        return _json([each.as_triton() for each in found])

    async def shared_memory_register(self, request: Request, region: str) -> Response:
        regions = self._regions_to_manage(request)
        body = await _parse(request, RegisterRequest)
        if regions is None:
            raise Forbidden("shared memory is off on this server")
        regions.register(region, body.key, offset=body.offset, byte_size=body.byte_size)
        return Response()

    async def shared_memory_unregister(self, request: Request, region: str = "") -> Response:
        regions = self._regions_to_manage(request)
        if regions is not None:
            if region:
                regions.unregister(region)
            else:
                regions.close()
        return Response()

    async def cuda_memory_status(self, request: Request, region: str = "") -> Response:
        return _json([])

    async def cuda_memory_register(self, request: Request, region: str) -> Response:
        raise InvalidInput("CUDA shared memory is not supported")

    async def cuda_memory_unregister(self, request: Request, region: str = "") -> Response:
        return Response()  # there is nothing to forget

    def _regions_to_manage(self, request: Request) -> SharedRegions | None:
        """None: shared memory is off."""
        check_whole_server(request.caller)
        return self._regions


def override_in(parameters: Mapping[str, Any]) -> dict[str, Any] | None:
    """The settings that a load request brings. It may not bring files."""
    for key in parameters:
        if key.startswith("file:"):
            raise InvalidInput(f"{key}: files are not taken; put them into the repository")
    config = _parameters(parameters, LoadParameters, "a load").config
    return None if config is None else parse_override(config)


def check_unload(parameters: Mapping[str, Any]) -> None:
    _parameters(parameters, UnloadParameters, "an unload")


def _parameters(given: Mapping[str, Any], kind: type[Fields], what: str) -> Fields:
    try:
        return fields_of(given, kind)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the parameters of {what}: {error}") from error


def statistics_of(model: ServedModel) -> TritonStatistics:
    """Of a model that keeps none: zeros."""
    statistics = getattr(model, "statistics", None)
    if not isinstance(statistics, ModelStatistics):
        statistics = ModelStatistics()
    return statistics.as_triton(model.name, model.version)


def _inferred(encoded: tuple[bytes, str, int | None], ask: Ask) -> Response:
    body, content_type, header_length = encoded
    more = ask.headers()
    if header_length is None:
        return Response(body, headers=more)
    return Response(
        body,
        content_type=content_type,
        headers=(("Inference-Header-Content-Length", str(header_length)), *more),
    )


def _header_length(headers: Mapping[str, str]) -> int | None:
    text = headers.get(HEADER_LENGTH)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidInput(f"Inference-Header-Content-Length is {text!r}, not a whole number")
    return int(text)


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value))


async def _parse(request: Request, kind: type[Any]) -> Any:
    """The body as `kind`; clients leave it out where every field has a default."""
    return await decode_fields(request, kind, default=b"{}")


async def _change_parameters(request: Request) -> dict[str, Any]:
    body: ChangeRequest[dict[str, Any]] = await _parse(request, ChangeRequest[dict[str, Any]])
    return body.parameters or {}


async def _fixed(request: Request, settings: dict[str, Any]) -> Response:
    """Settings that can be read. Setting one to what it is, or clearing it, changes nothing."""
    if request.method == "POST":
        for key, value in (await _parse(request, dict[str, Any])).items():
            if key not in settings:
                raise InvalidInput(f"{key!r} is not a setting; there are {', '.join(settings)}")
            known = settings[key]
            if value is not None and (value != known or type(value) is not type(known)):
                raise InvalidInput(f"{key!r} cannot be changed here")
    return _json(settings)
