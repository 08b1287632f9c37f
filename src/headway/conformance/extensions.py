"""Triton's extensions of the protocol that others offer too: binary tensors, the repository."""

import json
from typing import Any

from headway.conformance.checks import Check, hold
from headway.conformance.mistakes import is_refused
from headway.conformance.rest import UNKNOWN
from headway.conformance.subject import Subject, SubjectAnswer, outputs_of
from headway.loadgen.tensors import as_bytes

_BINARY = "binary_tensor_data"
_REPOSITORY = "model_repository"
_LENGTH = "inference-header-content-length"


def _send(server: Subject, *, parameters: dict[str, Any], missing: int = 0) -> SubjectAnswer:
    """Inputs as bytes behind the JSON; the last `missing` bytes are left out."""
    tensors = server.tensors()
    parts = [as_bytes(each.values, each.datatype) for each in tensors]
    inputs = [
        {**each.about(), "parameters": {"binary_data_size": len(part)}}
        for each, part in zip(tensors, parts, strict=True)
    ]
    parameters = {**server.parameters, **parameters}
    head = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    body = head + b"".join(parts)
    return server.ask(
        "POST",
        f"{server.path}/infer",
        body[: len(body) - missing],
        Inference_Header_Content_Length=str(len(head)),
        Content_Type="application/octet-stream",
    )


def binary_inputs(server: Subject) -> None:
    server.needs(_BINARY)
    binary = outputs_of(_send(server, parameters={}).ok())
    plain = server.steady_outputs()
    for name, tensor in plain.items():
        same = binary[name].get("data") == tensor.get("data")
        hold(same, f"{name} differs from that of the same values as JSON")


def binary_outputs(server: Subject) -> None:
    server.needs(_BINARY)
    answer = _send(server, parameters={"binary_data_output": True})
    hold(answer.status == 200, f"200 is expected, not {answer}")
    told = answer.headers.get(_LENGTH, "")
    hold(told.isdigit(), f"Inference-Header-Content-Length is {told!r}")
    outputs = outputs_of(json.loads(answer.body[: int(told)]))
    sizes = [each.get("parameters", {}).get("binary_data_size") for each in outputs.values()]
    hold(all(isinstance(each, int) for each in sizes), f"binary_data_size: {sizes}")
    rest = len(answer.body) - int(told)
    hold(sum(sizes) == rest, f"binary_data_size: {sizes}, and {rest} bytes follow the JSON")


def binary_data_that_is_cut(server: Subject) -> str | None:
    server.needs(_BINARY)
    return is_refused(_send(server, parameters={}, missing=1))


def length_beyond_the_body(server: Subject) -> str | None:
    server.needs(_BINARY)
    return is_refused(
        server.ask("POST", f"{server.path}/infer", b"{}", Inference_Header_Content_Length="1000000")
    )


def repository_index(server: Subject) -> None:
    server.needs(_REPOSITORY)
    index = server.post({}, "/v2/repository/index").ok()
    hold(isinstance(index, list), f"an array is expected, not {index!r:.200}")
    names = [each.get("name") for each in index]
    hold(server.model in names, f"{server.model} is not among {names}")


def loading_what_is_not_there(server: Subject) -> str | None:
    server.needs(_REPOSITORY)
    return is_refused(server.post({}, f"/v2/repository/models/{UNKNOWN}/load"))


def _of(extension: str, what: str, run: Any) -> Check[Subject]:
    return Check(f"extension_{extension}", what, run)


CHECKS: list[Check[Subject]] = [
    _of("binary_data.md, Request", "bytes are what the same values as JSON are", binary_inputs),
    _of("binary_data.md, Response", "sizes of outputs as bytes are right", binary_outputs),
    _of("binary_data.md, Request", "a body that is cut is refused", binary_data_that_is_cut),
    _of("binary_data.md, Request", "a length beyond the body is refused", length_beyond_the_body),
    _of("model_repository.md, Index", "the index names the model", repository_index),
    _of("model_repository.md, Load", "an unknown model is refused", loading_what_is_not_there),
]
