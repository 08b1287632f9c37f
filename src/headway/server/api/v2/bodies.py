"""What v2's routes beside inference take and answer. `/openapi.json` describes these types."""

from typing import Annotated, Any

from msgspec import Meta, Struct


class IndexRequest(Struct, frozen=True, forbid_unknown_fields=True):
    ready: bool = False


class IndexEntry(Struct, frozen=True):
    name: str
    version: str
    state: str
    reason: str


class ChangeRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """To load or unload a model. Which parameters there are is checked, by name, in `handlers`."""

    parameters: dict[str, Any] = {}


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


TAKEN: list[type[Struct]] = [IndexRequest, RegisterRequest]
ANSWERED: list[type[Struct]] = [
    *(IndexEntry, Loaded, Unloaded, Live, Ready, ModelReady, ModelNames, ServerMetadata),
]
