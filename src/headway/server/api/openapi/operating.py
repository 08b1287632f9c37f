"""The routes of v2 that an operator calls, described: models that come and go, memory that clients
share, and Triton's settings. Pure."""

from typing import Any

from headway.server.api.openapi.parts import (
    Operation,
    body_of,
    errors_of,
    json_of,
    operation_of,
    path_part,
)
from headway.server.api.openapi.schemas import array, ref

_REGION = path_part("region", "a name that the client chose")
_CHANGED = ("400", "403", "404", "413")
_REGIONS = array(ref("SharedRegion"))
_EMPTY = {"description": "done"}


def operating(named: dict[str, Any]) -> dict[str, dict[str, Operation]]:
    """`named` is the part of a path that names a model."""
    return {**_repository(named), **_settings(named), **_shared_memory(), **_cuda_memory()}


def _repository(named: dict[str, Any]) -> dict[str, dict[str, Operation]]:
    index = {
        "requestBody": _optional("IndexRequest"),
        "responses": {
            "200": json_of("all, or those ready", array(ref("IndexEntry"))),
            **errors_of(("400", "413")),
        },
    }
    repository = path_part("repository", "any: there is one")
    return {
        "/v2/repository/index": {
            "post": {
                **operation_of("v2", "repository_index", "The models, with their state"),
                **index,
            }
        },
        "/v2/repository/{repository}/index": {
            "post": {
                **operation_of("v2", "named_repository_index", "The same"),
                "parameters": [repository],
                **index,
            }
        },
        "/v2/repository/models/{model}/load": {
            "post": {
                **operation_of("v2", "load", "Load a model, or what has changed of it"),
                "description": "Beside the version that answers, which goes when the new one is "
                "ready; answers then. `config` is a JSON text of settings of its `model.toml`.",
                "parameters": [named],
                "requestBody": _optional("LoadRequest"),
                "responses": {
                    "200": json_of("it answers now", ref("Loaded")),
                    **errors_of((*_CHANGED, "503")),
                },
            }
        },
        "/v2/repository/models/{model}/unload": {
            "post": {
                **operation_of("v2", "unload", "Unload a model; what it has begun is finished"),
                "parameters": [named],
                "requestBody": _optional("UnloadRequest"),
                "responses": {
                    "200": json_of("it is unloaded: no request finds it any more", ref("Unloaded")),
                    **errors_of(_CHANGED),
                },
            }
        },
    }


def _optional(kind: str) -> dict[str, Any]:
    return {**body_of(ref(kind), example={}), "required": False}


def _settings(named: dict[str, Any]) -> dict[str, dict[str, Operation]]:
    """Both are read and set at the same place."""
    of_trace = {"/v2/trace/setting": [], "/v2/models/{model}/trace/setting": [named]}
    return {
        **{
            path: _setting(f"{'model_' if parameters else ''}trace", "TraceSettings", parameters)
            for path, parameters in of_trace.items()
        },
        "/v2/logging": _setting("log", "LogSettings", []),
    }


def _setting(name: str, shape: str, parameters: list[Any]) -> dict[str, Operation]:
    missing = ("404", "503") if parameters else ()
    return {
        "get": {
            **operation_of("v2", f"{name}_settings", f"{name.replace('_', ' ')} settings"),
            "parameters": parameters,
            "responses": {"200": json_of("as they are", ref(shape)), **errors_of(missing)},
        },
        "post": {
            **operation_of("v2", f"set_{name}_settings", "The same; none can be changed"),
            "description": "Setting one to what it is changes nothing, for clients that do so.",
            "parameters": parameters,
            "requestBody": _optional(shape),
            "responses": {
                "200": json_of("as they are", ref(shape)),
                **errors_of(("400", "403", "413", *missing)),
            },
        },
    }


def _shared_memory() -> dict[str, dict[str, Operation]]:
    root = "/v2/systemsharedmemory"
    example = {"key": "/weather", "byte_size": 64, "offset": 0}
    register: Operation = {
        **operation_of("v2", "register_region", "Tensors may lie in this memory from now on"),
        "parameters": [_REGION],
        "requestBody": body_of(ref("RegisterRequest"), example=example),
        "responses": {"200": _EMPTY, **errors_of(("400", "403", "413"))},
    }
    return {
        **_statuses(root, "region", _REGIONS),
        f"{root}/region/{{region}}/register": {"post": register},
        **_unregisters(root, "region"),
    }


def _cuda_memory() -> dict[str, dict[str, Operation]]:
    """Refused, and described because clients ask for it."""
    root = "/v2/cudasharedmemory"
    register: Operation = {
        **operation_of("v2", "register_cuda_region", "Not supported"),
        "parameters": [_REGION],
        "responses": errors_of(("400", "403")),
    }
    return {
        **_statuses(root, "cuda_region", array({})),
        f"{root}/region/{{region}}/register": {"post": register},
        **_unregisters(root, "cuda_region"),
    }


def _statuses(root: str, name: str, schema: dict[str, Any]) -> dict[str, dict[str, Operation]]:
    every: Operation = {
        **operation_of("v2", f"{name}s", "What is registered"),
        "responses": {"200": json_of("all", schema)},
    }
    one: Operation = {
        **operation_of("v2", name, "One that is registered"),
        "parameters": [_REGION],
        "responses": {"200": json_of("that one", schema), **errors_of(("400",))},
    }
    return {f"{root}/status": {"get": every}, f"{root}/region/{{region}}/status": {"get": one}}


def _unregisters(root: str, name: str) -> dict[str, dict[str, Operation]]:
    responses = {"200": _EMPTY, **errors_of(("403",))}
    every: Operation = {
        **operation_of("v2", f"unregister_{name}s", "Forget all"),
        "responses": responses,
    }
    one: Operation = {
        **operation_of("v2", f"unregister_{name}", "Forget one"),
        "parameters": [_REGION],
        "responses": responses,
    }
    return {
        f"{root}/unregister": {"post": every},
        f"{root}/region/{{region}}/unregister": {"post": one},
    }
