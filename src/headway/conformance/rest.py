"""Health, metadata and inference over HTTP: `inference_rest.md`."""

import math
from collections.abc import Callable
from typing import Any

from headway.conformance.checks import Check, NotOffered, hold
from headway.conformance.subject import Subject, outputs_of

DATATYPES = frozenset(
    [
        *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
        *("FP16", "FP32", "FP64", "BF16", "BYTES"),
    ]
)
UNKNOWN = "no-such-model-a5c1"
_REST = "inference_rest.md"


def _answers_200(path: Callable[[Subject], str]) -> Callable[[Subject], None]:
    def run(server: Subject) -> None:
        answer = server.ask("GET", path(server))
        hold(answer.status == 200, f"200 is expected, not {answer}")

    return run


def unknown_model_is_not_ready(server: Subject) -> None:
    answer = server.ask("GET", f"/v2/models/{UNKNOWN}/ready")
    hold(400 <= answer.status < 500, f"a status of 4xx is expected, not {answer}")


def server_metadata(server: Subject) -> None:
    about = server.ask("GET", "/v2").ok()
    for name in ("name", "version"):
        hold(isinstance(about.get(name), str), f"{name}: a text is expected in {about!r:.200}")
    found = about.get("extensions")
    is_list = isinstance(found, list) and all(isinstance(each, str) for each in found)
    hold(is_list, f"extensions: an array of texts is expected, not {found!r:.200}")


def metadata_is_json(server: Subject) -> None:
    kind = server.ask("GET", "/v2").headers.get("content-type", "")
    hold(kind.startswith("application/json"), f"Content-Type is {kind!r}")


def model_metadata(server: Subject) -> None:
    about = server.metadata
    hold(about.get("name") == server.model, f"name is {about.get('name')!r}")
    hold(isinstance(about.get("platform"), str), f"platform is {about.get('platform')!r}")
    for side in ("inputs", "outputs"):
        tensors = about.get(side)
        hold(isinstance(tensors, list) and tensors, f"{side}: {tensors!r:.200}")
        for each in tensors:
            hold(isinstance(each.get("name"), str), f"{side}: without a name: {each!r:.200}")
            hold(each.get("datatype") in DATATYPES, f"{side}: datatype {each.get('datatype')!r}")
            shape = each.get("shape")
            is_shape = isinstance(shape, list) and all(isinstance(axis, int) for axis in shape)
            hold(is_shape, f"{side}: shape {shape!r:.200}")


def _version(server: Subject) -> str:
    versions = server.metadata.get("versions")
    if not versions:
        raise NotOffered("the metadata names no versions")
    hold(all(isinstance(each, str) for each in versions), f"versions: texts, not {versions!r}")
    return str(versions[-1])


def metadata_of_a_version(server: Subject) -> None:
    about = server.ask("GET", f"{server.path}/versions/{_version(server)}").ok()
    hold(about.get("name") == server.model, f"name is {about.get('name')!r}")


def inference(server: Subject) -> None:
    answer = server.post(server.request()).ok()
    hold(answer.get("model_name") == server.model, f"model_name is {answer.get('model_name')!r}")
    declared = {each["name"]: each for each in server.metadata["outputs"]}
    for name, tensor in outputs_of(answer).items():
        hold(name in declared, f"the metadata has no output {name}")
        wanted = declared[name]["datatype"]
        hold(tensor.get("datatype") == wanted, f"{name}: {wanted} is declared, not {tensor!r:.200}")
        shape: Any = tensor.get("shape")
        hold(isinstance(shape, list), f"{name}: shape is {shape!r:.200}")
        count = len(_flattened(tensor.get("data", [])))
        hold(count == math.prod(shape), f"{name}: {count} values in the shape {shape}")


def _flattened(data: Any) -> list[Any]:
    if not isinstance(data, list):
        return [data]
    return [value for each in data for value in _flattened(each)]


def nested_is_flat(server: Subject) -> None:
    flat = server.steady_outputs()
    inputs = [{**each.about(), "data": each.nested()} for each in server.tensors()]
    nested = outputs_of(server.post({**server.request(), "inputs": inputs}).ok())
    for name, tensor in flat.items():
        same = _flattened(nested[name]["data"]) == _flattened(tensor["data"])
        hold(same, f"{name} differs from that of the flat form")


def id_comes_back(server: Subject) -> None:
    found = server.post(server.request(id="conformance-7")).ok().get("id")
    hold(found == "conformance-7", f"id is {found!r}")


def only_outputs_asked_for(server: Subject) -> None:
    name = server.metadata["outputs"][0]["name"]
    found = outputs_of(server.post(server.request(outputs=[{"name": name}])).ok())
    hold(list(found) == [name], f"asked for {name}, answered {list(found)}")


def inference_of_a_version(server: Subject) -> None:
    version = _version(server)
    answer = server.post(server.request(), f"{server.path}/versions/{version}/infer").ok()
    found = answer.get("model_version", version)
    hold(found == version, f"model_version is {found!r}")


CHECKS: list[Check[Subject]] = [
    *(
        Check(f"{_REST}, Health: {heading}", f"a {what} answers 200", _answers_200(path))
        for heading, what, path in (
            ("Server Live", "live server", lambda _: "/v2/health/live"),
            ("Server Ready", "ready server", lambda _: "/v2/health/ready"),
            ("Model Ready", "ready model", lambda server: f"{server.path}/ready"),
        )
    ),
    Check(
        f"{_REST}, Health: Model Ready",
        "an unknown model is not ready: 4xx",
        unknown_model_is_not_ready,
    ),
    Check(f"{_REST}, Server Metadata", "name, version and extensions", server_metadata),
    Check(f"{_REST}, Server Metadata", "the answer is declared as JSON", metadata_is_json),
    Check(
        f"{_REST}, Model Metadata",
        "name, platform, inputs and outputs with their types",
        model_metadata,
    ),
    Check(f"{_REST}, Model Metadata", "of a version", metadata_of_a_version),
    Check(f"{_REST}, Inference Request", "an answer as the metadata declares it", inference),
    Check(f"{_REST}, Tensor Data", "nested arrays are what flat ones are", nested_is_flat),
    Check(f"{_REST}, Inference Response", "the request's id comes back", id_comes_back),
    Check(f"{_REST}, Inference Request", "only outputs asked for", only_outputs_asked_for),
    Check(f"{_REST}, Inference", "of a version", inference_of_a_version),
]
