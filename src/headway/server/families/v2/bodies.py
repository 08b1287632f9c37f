"""The types that v2's routes other than inference take and answer. `/openapi.json` describes
them."""

from typing import Annotated, Generic, TypedDict, TypeVar

from msgspec import Meta, Struct, field

from headway.hosting.statistics import TritonStatistics

Parameters = TypeVar("Parameters")
Count = Annotated[int, Meta(ge=0)]


class IndexRequest(Struct, frozen=True, forbid_unknown_fields=True):
    ready: bool = False


class RepositoryEntry(Struct, frozen=True):
    name: str
    version: str
    state: str
    reason: str


class ChangeRequest(Struct, Generic[Parameters], frozen=True, forbid_unknown_fields=True):
    """A request to load or unload. Its parameters are checked later, because gRPC brings them,
    too."""

    parameters: Parameters | None = None


class LoadParameters(Struct, frozen=True, forbid_unknown_fields=True):
    config: str | None = None  # settings, as JSON in a text


class UnloadParameters(Struct, frozen=True, forbid_unknown_fields=True):
    unload_dependents: bool | None = None


class LoadRequest(ChangeRequest[LoadParameters], frozen=True, forbid_unknown_fields=True):
    """The body of `/v2/repository/models/MODEL/load`."""


class UnloadRequest(ChangeRequest[UnloadParameters], frozen=True, forbid_unknown_fields=True):
    """The body of `/v2/repository/models/MODEL/unload`."""


class Loaded(Struct, frozen=True):
    name: str
    load: bool


class Unloaded(Struct, frozen=True):
    name: str
    unload: bool


class RegisterRequest(Struct, frozen=True, forbid_unknown_fields=True):
    # Only described here: numbers that do not fit are refused with the region's name.
    key: str
    byte_size: Annotated[int, Meta(extra_json_schema={"minimum": 1})]
    offset: Annotated[int, Meta(extra_json_schema={"minimum": 0})] = 0


class TraceSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Triton's trace settings. They can be read, not changed; null, which would clear one, is
    taken and changes nothing."""

    trace_level: list[str] | None = field(default_factory=lambda: ["OFF"])
    trace_rate: str | None = "1000"
    trace_count: str | None = "-1"
    log_frequency: str | None = "0"
    trace_file: str | None = ""
    trace_mode: str | None = "triton"


class LogSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Triton's log settings. They can be read, not changed."""

    log_file: str | None = ""
    log_info: bool | None = True
    log_warning: bool | None = True
    log_error: bool | None = True
    log_verbose_level: Count | None = 0
    log_format: str | None = "default"


class Live(Struct, frozen=True):
    live: bool


class Ready(Struct, frozen=True):
    ready: bool


class ModelReady(Struct, frozen=True):
    name: str
    ready: bool


class ModelNames(Struct, frozen=True):
    models: list[str]


class ServerMetadata(Struct, frozen=True):
    name: str
    version: str
    extensions: list[str]


class AllStatistics(TypedDict):
    model_stats: list[TritonStatistics]
