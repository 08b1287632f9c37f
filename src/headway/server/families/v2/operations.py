"""The operations of an operator or a curious client, over HTTP and gRPC alike: descriptions,
statistics, loading and unloading models, shared memory, settings.

Each operation is here once, and has one entry in `OPERATIONS`; `handlers.py` and
`server/grpc/service.py` make their routes and methods from it.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from headway.errors import Forbidden, InvalidInput
from headway.hosting.registry import ServedModel
from headway.hosting.repository.settings import parse_override
from headway.hosting.statistics import ModelStatistics, TritonStatistics
from headway.server.auth.access import Access
from headway.server.auth.keys import Caller
from headway.server.bodies.json_body import Fields, fields_of
from headway.server.families.v2.bodies import (
    AllStatistics,
    ChangeRequest,
    IndexRequest,
    Loaded,
    LoadParameters,
    LoadRequest,
    LogSettings,
    RegisterRequest,
    RepositoryEntry,
    ServerMetadata,
    TraceSettings,
    Unloaded,
    UnloadParameters,
    UnloadRequest,
)
from headway.server.families.v2.model_config import (
    ModelConfiguration,
    ModelMetadata,
    config_of,
    metadata_of,
    with_contents,
)
from headway.server.service.error_words import loading
from headway.server.service.inference import Inference
from headway.server.service.routes import Takes
from headway.server.service.shared_memory import SharedRegion

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
MODEL = "/v2/models/{model}"


class Asked(NamedTuple):
    """One request for an operation."""

    caller: Caller | None
    name: str = ""  # of a model, or of a region of shared memory
    version: str = ""
    body: Any = None
    deadline_ms: Callable[[], float | None] = lambda: None


class Operations:
    """The operations. Each returns a value for JSON or protobuf, or None, or raises its error."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._models = inference.models
        self._regions = inference.regions  # None: shared memory is off

    async def server_metadata(self, asked: Asked) -> ServerMetadata:
        extensions = list(EXTENSIONS)
        if self._regions is not None:
            extensions.append("system_shared_memory")
        return ServerMetadata(self._inference.name, self._inference.version, extensions)

    async def model_metadata(self, asked: Asked) -> ModelMetadata:
        served = await self._known(asked)
        versions = [each.version for each in self._models.versions(asked.caller, asked.name)]
        return with_contents(metadata_of(served, versions=versions), served)

    async def model_config(self, asked: Asked) -> ModelConfiguration:
        return config_of(await self._known(asked))

    async def _known(self, asked: Asked) -> ServedModel:
        caller, name, version, _, deadline_ms = asked
        return await self._inference.known(caller, name, version, deadline_ms)

    async def statistics(self, asked: Asked) -> AllStatistics:
        served = self._models.of_statistics(asked.caller, asked.name, asked.version)
        return {"model_stats": [statistics_of(each) for each in served]}

    async def index(self, asked: Asked) -> list[RepositoryEntry]:
        return [
            RepositoryEntry(each.name, each.version, each.state, each.reason)
            for each in self._models.index(asked.caller)
            if each.state == "READY" or not asked.body.ready
        ]

    async def load(self, asked: Asked) -> Loaded:
        """Load a model. The request may contain settings, but no files."""
        parameters = asked.body.parameters or {}
        for key in parameters:
            if key.startswith("file:"):
                raise InvalidInput(f"{key}: files are not taken; put them into the repository")
        config = _parameters(parameters, LoadParameters, "a load").config
        with loading(asked.name):
            override = None if config is None else parse_override(config)
            await self._models.load(asked.caller, asked.name, override)
        return Loaded(asked.name, load=True)  # as KServe answers; Triton's has no body

    async def unload(self, asked: Asked) -> Unloaded:
        """`unload_dependents` is read and changes nothing: models that use this one stay, and fail
        where they call it."""
        _parameters(asked.body.parameters or {}, UnloadParameters, "an unload")
        await self._models.unload(asked.caller, asked.name)
        return Unloaded(asked.name, unload=True)

    async def trace_settings(self, asked: Asked) -> dict[str, Any]:
        if asked.name:
            self._models.get(asked.caller, asked.name)
        return _unchanged(TRACE_SETTINGS, asked.body or {})

    async def log_settings(self, asked: Asked) -> dict[str, Any]:
        return _unchanged(LOG_SETTINGS, asked.body or {})

    async def list_regions(self, asked: Asked) -> list[SharedRegion]:
        found = [] if self._regions is None else self._regions.list(asked.name)
        return [each.as_triton() for each in found]

    async def register_region(self, asked: Asked) -> None:
        if self._regions is None:
            raise Forbidden("shared memory is off on this server")
        region: RegisterRequest = asked.body
        self._regions.register(
            asked.name, region.key, offset=region.offset, byte_size=region.byte_size
        )

    async def unregister_region(self, asked: Asked) -> None:
        """Unregister the region `asked.name`; without a name, all regions."""
        if self._regions is not None and asked.name:
            self._regions.unregister(asked.name)
        elif self._regions is not None:
            self._regions.close()

    async def list_cuda_regions(self, asked: Asked) -> list[Any]:
        return []

    async def register_cuda_region(self, asked: Asked) -> None:
        raise InvalidInput("CUDA shared memory is not supported")

    async def unregister_cuda_region(self, asked: Asked) -> None:
        """Does nothing, as no region can be registered; perf_analyzer calls it with any shared
        memory."""


class Operation(NamedTuple):
    """A row of the table."""

    method: str  # of HTTP
    template: str
    grpc: str  # the name of its method; the first row with it counts
    run: Callable[[Operations, Asked], Awaitable[Any]]
    summary: str
    gives: Any = None  # a type; None: the answer is empty
    takes: Takes | None = None
    reads: Any = None  # what is decoded, where that is not the type that it takes
    access: Access = Access.READ
    has_versions: bool = False  # the same is there for one version of a model
    is_of_server: bool = False  # not for keys that are limited to some models
    description: str = ""


def _settings(
    template: str, grpc: str, run: Callable[[Operations, Asked], Awaitable[Any]], kind: Any
) -> tuple[Operation, Operation]:
    """Two routes for the same path: one reads the settings, one sets them."""
    name = "trace" if kind is TraceSettings else "log"
    read = Operation("GET", template, grpc, run, f"The {name} settings", kind)
    change = read._replace(
        method="POST",
        summary=f"Set {name} settings; only their present values are accepted",
        takes=Takes(kind, is_optional=True, null_is_absence=False),
        reads=dict[str, Any],
        access=Access.ADMIN,
        description="Some clients set a setting to the value that it has: that changes nothing.",
    )
    return read, change


def _memory(root: str, grpc: str, kind: Any, *runs: Any) -> tuple[Operation, ...]:
    """The routes for shared memory. Those whose effect other clients would notice need the right
    `admin`."""
    region = f"{root}/region/{{region}}"
    listing, register, unregister = runs
    status = Operation(
        *("GET", f"{root}/status", f"{grpc}Status", listing, "Registered regions", list[kind]),
        is_of_server=kind is SharedRegion,
    )
    example = {"key": "/weather", "byte_size": 64, "offset": 0}
    change = status._replace(method="POST", access=Access.ADMIN, gives=None)
    forget = change._replace(grpc=f"{grpc}Unregister", run=unregister)
    return (
        status,
        status._replace(template=f"{region}/status", summary="One registered region"),
        change._replace(
            template=f"{region}/register",
            grpc=f"{grpc}Register",
            run=register,
            summary="Register a region of memory that tensors may be in",
            takes=Takes(RegisterRequest, example) if kind is SharedRegion else None,
        ),
        forget._replace(template=f"{root}/unregister", summary="Unregister all regions"),
        forget._replace(template=f"{region}/unregister", summary="Unregister one region"),
    )


_INDEX = Operation(
    *("POST", "/v2/repository/index", "RepositoryIndex", Operations.index),
    *("The models, with their state", list[RepositoryEntry], Takes(IndexRequest, is_optional=True)),
)
_LOAD = Operation(
    *("POST", "/v2/repository/models/{model}/load", "RepositoryModelLoad", Operations.load),
    *("Load a model, or its changes", Loaded, Takes(LoadRequest, is_optional=True)),
    *(ChangeRequest[dict[str, Any]], Access.ADMIN),
    description="The new version is loaded beside the one that answers, and replaces it when it is "
    "ready; then this call returns. `config`: settings for its `model.toml`, as a JSON text.",
)
OPERATIONS: tuple[Operation, ...] = (
    Operation(
        *("GET", "/v2", "ServerMetadata", Operations.server_metadata),
        *("The server's name, version and extensions", ServerMetadata),
    ),
    Operation(
        *("GET", "/v2/models/stats", "ModelStatistics", Operations.statistics),
        *("Statistics of every model", AllStatistics),
    ),
    Operation(
        *("GET", MODEL, "ModelMetadata", Operations.model_metadata),
        *("The model's inputs and outputs", ModelMetadata),
        has_versions=True,
    ),
    Operation(
        *("GET", f"{MODEL}/config", "ModelConfig", Operations.model_config),
        *("The model's configuration, in Triton's format", ModelConfiguration),
        has_versions=True,
    ),
    Operation(
        *("GET", f"{MODEL}/stats", "ModelStatistics", Operations.statistics),
        *("Statistics of one model", AllStatistics),
        has_versions=True,
    ),
    _INDEX,
    _INDEX._replace(template="/v2/repository/{repository}/index"),
    _LOAD,
    Operation(
        *("POST", "/v2/repository/models/{model}/unload", "RepositoryModelUnload"),
        *(Operations.unload, "Unload a model after its running requests", Unloaded),
        *(Takes(UnloadRequest, is_optional=True), ChangeRequest[dict[str, Any]], Access.ADMIN),
    ),
    *_settings("/v2/trace/setting", "TraceSetting", Operations.trace_settings, TraceSettings),
    *_settings(f"{MODEL}/trace/setting", "TraceSetting", Operations.trace_settings, TraceSettings),
    *_settings("/v2/logging", "LogSettings", Operations.log_settings, LogSettings),
    *_memory(
        *("/v2/systemsharedmemory", "SystemSharedMemory", SharedRegion),
        *(Operations.list_regions, Operations.register_region, Operations.unregister_region),
    ),
    *_memory(
        *("/v2/cudasharedmemory", "CudaSharedMemory", Any, Operations.list_cuda_regions),
        *(Operations.register_cuda_region, Operations.unregister_cuda_region),
    ),
)


def statistics_of(model: ServedModel) -> TritonStatistics:
    """The model's statistics; zeros for a model that keeps none."""
    statistics = getattr(model, "statistics", None)
    if not isinstance(statistics, ModelStatistics):
        statistics = ModelStatistics()
    return statistics.as_triton(model.name, model.version)


def _parameters(given: Mapping[str, Any], kind: type[Fields], what: str) -> Fields:
    try:
        return fields_of(given, kind)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"the parameters of {what}: {error}") from error


def _unchanged(settings: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse changes. Setting a value to what it is, or clearing it, changes nothing."""
    for key, value in given.items():
        if key not in settings:
            raise InvalidInput(f"{key!r} is not a setting; there are {', '.join(settings)}")
        known = settings[key]
        if value is not None and (value != known or type(value) is not type(known)):
            raise InvalidInput(f"{key!r} cannot be changed here")
    return settings
