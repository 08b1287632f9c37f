"""The v2 routes: each takes a request and its path's parts and answers. Errors are raised; the
app turns them into `{"error": ...}`. It knows no sockets and no scheduler."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from headway.errors import Forbidden, InvalidInput, NotReady
from headway.hosting.registry import Ask, ServedModel
from headway.hosting.repository.settings import parse_override
from headway.hosting.statistics import ModelStatistics, TritonStatistics
from headway.model import Tensor
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
    LoadRequest,
    LogSettings,
    ModelNames,
    ModelReady,
    Ready,
    RegisterRequest,
    ServerMetadata,
    TraceSettings,
    Unloaded,
    UnloadParameters,
    UnloadRequest,
)
from headway.server.families.v2.codec import WireRequest, WireResponse
from headway.server.families.v2.direct import direct_codec
from headway.server.families.v2.model_config import (
    ModelConfiguration,
    ModelMetadata,
    config_of,
    metadata_of,
    with_contents,
)
from headway.server.service.direct import DirectPath, of_rows
from headway.server.service.dtypes import of_tensor
from headway.server.service.examples import IMAGE
from headway.server.service.inference import Decode, Inference
from headway.server.service.options import ask_of, find_or_wake
from headway.server.service.requests import InferRequest
from headway.server.service.routes import Errors, Gives, Handler, Route, Takes, no_query
from headway.server.service.shared_memory import SharedRegion, SharedRegions
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
        of_model = self._of_models(_M)
        return [
            _get("/v2", self.server_metadata, "What this server is and can do", ServerMetadata),
            _get("/v2/health/live", self.live, "Whether it lives", Live, Access.OPEN),
            _get(
                "/v2/health/ready", self.ready, "Whether every model is ready", Ready, Access.OPEN
            ),
            _get("/v2/models", self.models, "Names of the models", ModelNames),
            _get("/v2/models/stats", self.statistics, "Figures of every model", AllStatistics),
            *of_model,
            *(
                row._replace(
                    template=row.template.replace(_M, _V), summary=f"{row.summary}, of one version"
                )
                for row in of_model
            ),
            *self._of_repository(),
            *self._of_settings(),
            *_of_memory("/v2/systemsharedmemory", SharedRegion, self._system_memory()),
            *_of_memory("/v2/cudasharedmemory", Any, self._cuda_memory()),
        ]

    def _of_models(self, path: str) -> list[Route]:
        """Of a model; the same routes are there for one of its versions."""
        infer = Route(
            *("POST", f"{path}/infer", self.infer, Access.INFER, Errors.TRITON),
            direct=self._direct.start,
            may_compress=True,
            tag="v2",
            summary="Named tensors through a model, rows first",
            description="Tensors as JSON; with `Inference-Header-Content-Length`, JSON followed by "
            "binary tensors.",
            takes=Takes(
                WireRequest, example_of=example_request, is_decoded=False, null_is_absence=False
            ),
            gives=Gives(WireResponse),
        )
        generate = Route(
            *("POST", f"{path}/generate", self.generate, Access.INFER, Errors.TRITON),
            tag="v2",
            summary="Text, or any value, through a model",
            takes=Takes(
                generating.GenerateRequest,
                {"text_input": "hello"},
                is_decoded=False,
                null_is_absence=False,
            ),
            gives=Gives(generating.GenerateResponse),
        )
        of_model = [
            _get(path, self.model_metadata, "Its inputs and outputs", ModelMetadata),
            _get(f"{path}/ready", self.model_ready, "Whether it is ready", ModelReady, Access.OPEN),
            _get(f"{path}/config", self.model_config, "As Triton has it", ModelConfiguration),
            _get(f"{path}/stats", self.statistics, "Figures of one model", AllStatistics),
        ]
        return [
            infer,
            *(row._replace(errors=Errors.TRITON) for row in of_model),
            generate,
            generate._replace(
                template=f"{path}/generate_stream",
                handler=self.generate_stream,
                summary="The same, as server-sent events",
                gives=Gives(None, ("text/event-stream",)),
            ),
        ]

    def _of_repository(self) -> list[Route]:
        """What others would notice takes an administrator: models that come and go, regions that
        are forgotten, levels of logs."""
        change = "/v2/repository/models/{model}"
        index = Takes(IndexRequest, is_optional=True)
        load = Takes(LoadRequest, is_decoded=False, is_optional=True)
        entries = list[IndexEntry]
        summary = "The models, with their state"
        return [
            _post(
                *("/v2/repository/index", self.repository_index, summary),
                *(index, entries, Access.READ),
            ),
            _post(
                *("/v2/repository/{repository}/index", self.repository_index, "The same"),
                *(index, entries, Access.READ),
            ),
            _post(
                f"{change}/load",
                self.repository_load,
                "Load a model, or what has changed of it",
                load,
                Loaded,
            )._replace(
                description="Beside the version that answers, which goes when the new one is "
                "ready; answers then. `config` is a JSON text of settings of its `model.toml`."
            ),
            _post(
                *(f"{change}/unload", self.repository_unload),
                "Unload a model; what it has begun is finished",
                *(load._replace(kind=UnloadRequest), Unloaded),
            ),
        ]

    def _of_settings(self) -> list[Route]:
        """Both are read and set at the same place."""
        rows = []
        for path, handler, kind, name in (
            ("/v2/trace/setting", self.trace_setting, TraceSettings, "trace"),
            (f"{_M}/trace/setting", self.trace_setting, TraceSettings, "model trace"),
            ("/v2/logging", self.logging, LogSettings, "log"),
        ):
            takes = Takes(kind, is_decoded=False, is_optional=True, null_is_absence=False)
            errors = Errors.TRITON if path.startswith(_M) else Errors.TEXT
            read = _get(path, handler, f"{name} settings", kind)
            change = _post(path, handler, "The same; none can be changed", takes, kind)._replace(
                description="Setting one to what it is changes nothing, for clients that do so."
            )
            rows += [row._replace(errors=errors) for row in (read, change)]
        return rows

    def _system_memory(self) -> "MemoryHandlers":
        return MemoryHandlers(
            self.shared_memory_status, self.shared_memory_register, self.shared_memory_unregister
        )

    def _cuda_memory(self) -> "MemoryHandlers":
        """Refused, and described because clients ask for it."""
        return MemoryHandlers(
            self.cuda_memory_status, self.cuda_memory_register, self.cuda_memory_unregister
        )

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

    async def repository_index(
        self, request: Request, asked: IndexRequest, repository: str = ""
    ) -> Response:
        return _json(
            [
                IndexEntry(each.name, each.version, each.state, each.reason)
                for each in self._models.index(request.caller)
                if each.state == "READY" or not asked.ready
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
        regions = self._regions_to_manage(request)  # a key without the right learns no more
        body = await decode_fields(request, RegisterRequest)
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


class MemoryHandlers(NamedTuple):
    """Of one kind of shared memory."""

    status: Handler
    register: Handler
    unregister: Handler


def _of_memory(path: str, kind: Any, handlers: MemoryHandlers) -> list[Route]:
    region = f"{path}/region/{{region}}"
    status, register, unregister = handlers
    example = {"key": "/weather", "byte_size": 64, "offset": 0}
    takes = None if kind is Any else Takes(RegisterRequest, example, is_decoded=False)
    may = "Not supported" if takes is None else "Tensors may be in this memory from now on"
    return [
        _get(f"{path}/status", status, "What is registered", list[kind]),
        _get(f"{region}/status", status, "One that is registered", list[kind]),
        _post(f"{region}/register", register, may, takes, None),
        _post(f"{path}/unregister", unregister, "Forget all", None, None),
        _post(f"{region}/unregister", unregister, "Forget one", None, None),
    ]


def _get(
    path: str, handler: Handler, summary: str, kind: Any, access: Access = Access.READ
) -> Route:
    return Route("GET", path, handler, access, tag="v2", summary=summary, gives=Gives(kind))


def _post(
    path: str,
    handler: Handler,
    summary: str,
    takes: Takes | None,
    kind: Any,
    access: Access = Access.ADMIN,
) -> Route:
    described: Any = {"tag": "v2", "summary": summary, "takes": takes, "gives": Gives(kind)}
    return Route("POST", path, handler, access, **described)


def example_request(model: ServedModel) -> dict[str, Any] | None:
    """One row; None: JSON cannot carry it."""
    if model.only_streams or not all(of_tensor(each).is_json for each in model.inputs):
        return None
    return {"inputs": [_example_tensor(each) for each in model.inputs]}


def _example_tensor(tensor: Tensor) -> dict[str, Any]:
    datatype = of_tensor(tensor)
    shape = [1, *(1 if axis == -1 else axis for axis in tensor.shape[1:])]
    text = IMAGE if tensor.name == "image" else "hello"
    value: Any = {"bytes": text, "bool": True}.get(datatype.kind, 1)
    for axis in reversed(shape):
        value = [value] * axis
    return {"name": tensor.name, "shape": shape, "datatype": datatype.name, "data": value}


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


async def _change_parameters(request: Request) -> dict[str, Any]:
    kind = ChangeRequest[dict[str, Any]]
    body: ChangeRequest[dict[str, Any]] = await decode_fields(request, kind, default=b"{}")
    return body.parameters or {}


async def _fixed(request: Request, settings: dict[str, Any]) -> Response:
    """Settings that can be read. Setting one to what it is, or clearing it, changes nothing."""
    if request.method == "POST":
        for key, value in (await decode_fields(request, dict[str, Any], default=b"{}")).items():
            if key not in settings:
                raise InvalidInput(f"{key!r} is not a setting; there are {', '.join(settings)}")
            known = settings[key]
            if value is not None and (value != known or type(value) is not type(known)):
                raise InvalidInput(f"{key!r} cannot be changed here")
    return _json(settings)
