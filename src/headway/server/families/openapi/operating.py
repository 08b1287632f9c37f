"""The routes of v2 that an operator calls, described: models that come and go, memory that clients
share, and Triton's settings. Pure."""

from typing import Any

from headway.server.families.openapi.parts import (
    Operation,
    body_of,
    json_of,
    operation_of,
    path_part,
)
from headway.server.service.schemas import array, ref

_REGION = path_part("region", "a name that the client chose")
_CHANGED = ("400", "403", "404", "413")
_EMPTY = {"description": "done"}


def operating(named: dict[str, Any]) -> dict[str, dict[str, Operation]]:
    """`named` is the part of a path that names a model."""
    return {**_repository(named), **_settings(named), **_shared_memory(), **_cuda_memory()}


def _repository(named: dict[str, Any]) -> dict[str, dict[str, Operation]]:
    repository = path_part("repository", "any: there is one")

    def index(name: str, summary: str, parameters: list[Any] | None = None) -> Operation:
        answer = json_of("all, or those ready", array(ref("IndexEntry")))
        body = _optional("IndexRequest")
        return operation_of(
            "v2", name, summary, answer, ("400", "413"), parameters=parameters, body=body
        )

    load = operation_of(
        *("v2", "load", "Load a model, or what has changed of it"),
        json_of("it answers now", ref("Loaded")),
        (*_CHANGED, "503"),
        description="Beside the version that answers, which goes when the new one is "
        "ready; answers then. `config` is a JSON text of settings of its `model.toml`.",
        parameters=[named],
        body=_optional("LoadRequest"),
    )
    unload = operation_of(
        *("v2", "unload", "Unload a model; what it has begun is finished"),
        json_of("it is unloaded: no request finds it any more", ref("Unloaded")),
        _CHANGED,
        parameters=[named],
        body=_optional("UnloadRequest"),
    )
    return {
        "/v2/repository/index": {"post": index("repository_index", "The models, with their state")},
        "/v2/repository/{repository}/index": {
            "post": index("named_repository_index", "The same", [repository])
        },
        "/v2/repository/models/{model}/load": {"post": load},
        "/v2/repository/models/{model}/unload": {"post": unload},
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
    answer = json_of("as they are", ref(shape))
    return {
        "get": operation_of(
            *("v2", f"{name}_settings", f"{name.replace('_', ' ')} settings", answer, missing),
            parameters=parameters,
        ),
        "post": operation_of(
            *("v2", f"set_{name}_settings", "The same; none can be changed", answer),
            ("400", "403", "413", *missing),
            description="Setting one to what it is changes nothing, for clients that do so.",
            parameters=parameters,
            body=_optional(shape),
        ),
    }


def _shared_memory() -> dict[str, dict[str, Operation]]:
    register = operation_of(
        *("v2", "register_region", "Tensors may lie in this memory from now on", _EMPTY),
        ("400", "403", "413"),
        parameters=[_REGION],
        body=body_of(
            ref("RegisterRequest"), example={"key": "/weather", "byte_size": 64, "offset": 0}
        ),
    )
    return _memory("/v2/systemsharedmemory", "region", array(ref("SharedRegion")), register)


def _cuda_memory() -> dict[str, dict[str, Operation]]:
    """Refused, and described because clients ask for it."""
    register = operation_of(
        *("v2", "register_cuda_region", "Not supported", None, ("400", "403")), parameters=[_REGION]
    )
    return _memory("/v2/cudasharedmemory", "cuda_region", array({}), register)


def _memory(
    root: str, name: str, schema: dict[str, Any], register: Operation
) -> dict[str, dict[str, Operation]]:
    every, one = json_of("all", schema), json_of("that one", schema)
    forget_all = f"unregister_{name}s", "Forget all", _EMPTY, ("403",)
    forget = f"unregister_{name}", "Forget one", _EMPTY, ("403",)
    return {
        f"{root}/status": {"get": operation_of("v2", f"{name}s", "What is registered", every)},
        f"{root}/region/{{region}}/status": {
            "get": operation_of(
                "v2", name, "One that is registered", one, ("400",), parameters=[_REGION]
            )
        },
        f"{root}/region/{{region}}/register": {"post": register},
        f"{root}/unregister": {"post": operation_of("v2", *forget_all)},
        f"{root}/region/{{region}}/unregister": {
            "post": operation_of("v2", *forget, parameters=[_REGION])
        },
    }
