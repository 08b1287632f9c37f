"""Requests that are wrong, each in one way: `inference_rest.md`, the error responses."""

from typing import Any

from headway.conformance.checks import Check, hold
from headway.conformance.rest import UNKNOWN
from headway.conformance.subject import Subject, SubjectAnswer

_REST = "inference_rest.md"


def is_refused(answer: SubjectAnswer) -> str | None:
    """With an error status, and a JSON object that has `error`."""
    hold(answer.status >= 400, f"an error status is expected, not {answer}")
    error = answer.json().get("error")
    hold(isinstance(error, str) and error, f"error: a text is expected in {answer}")
    return f"with {answer.status}; 400 is typical" if answer.status >= 500 else None


def _changed(server: Subject, **changes: Any) -> dict[str, Any]:
    """A good request, with these keys of its first input changed."""
    request = server.request()
    request["inputs"][0] = {**request["inputs"][0], **changes}
    return request


def not_json(server: Subject) -> str | None:
    return is_refused(server.ask("POST", f"{server.path}/infer", b'{"inputs": ['))


def nothing(server: Subject) -> str | None:
    return is_refused(server.ask("POST", f"{server.path}/infer", b""))


def no_inputs(server: Subject) -> str | None:
    return is_refused(server.post({"id": "1"}))


def unknown_input(server: Subject) -> str | None:
    return is_refused(server.post(_changed(server, name="no_such_input")))


def missing_input(server: Subject) -> str | None:
    return is_refused(server.post({"inputs": []}))


def other_datatype(server: Subject) -> str | None:
    return is_refused(server.post(_changed(server, datatype="NO_SUCH_TYPE")))


def too_little_data(server: Subject) -> str | None:
    first = server.request()["inputs"][0]
    shape = [first["shape"][0] + 1, *first["shape"][1:]] if first["shape"] else [2]
    return is_refused(server.post(_changed(server, shape=shape)))


def negative_shape(server: Subject) -> str | None:
    first = server.request()["inputs"][0]
    return is_refused(server.post(_changed(server, shape=[-1, *first["shape"][1:]])))


def unknown_output(server: Subject) -> str | None:
    return is_refused(server.post(server.request(outputs=[{"name": "no_such_output"}])))


def unknown_model(server: Subject) -> str | None:
    return is_refused(server.post(server.request(), f"/v2/models/{UNKNOWN}/infer"))


def metadata_of_an_unknown_model(server: Subject) -> str | None:
    return is_refused(server.ask("GET", f"/v2/models/{UNKNOWN}"))


def unknown_version(server: Subject) -> str | None:
    return is_refused(server.post(server.request(), f"{server.path}/versions/987654/infer"))


def still_answers(server: Subject) -> None:
    server.post(server.request()).ok()


def _refused(heading: str, what: str, run: Any) -> Check[Subject]:
    return Check(f"{_REST}, {heading}", f"{what} is refused with an error status and text", run)


CHECKS: list[Check[Subject]] = [
    _refused(
        "Model Metadata Response JSON Error Object",
        "an unknown model",
        metadata_of_an_unknown_model,
    ),
    *(
        _refused("Inference Response JSON Error Object", what, run)
        for what, run in (
            ("a body that is not JSON", not_json),
            ("an empty body", nothing),
            ("a request without inputs", no_inputs),
            ("an unknown input", unknown_input),
            ("a missing input", missing_input),
            ("an unknown datatype", other_datatype),
            ("less data than the shape says", too_little_data),
            ("a negative shape", negative_shape),
            ("an unknown output", unknown_output),
            ("an unknown model", unknown_model),
            ("an unknown version", unknown_version),
        )
    ),
    Check(
        f"{_REST}, Inference", "after all these mistakes a good request is answered", still_answers
    ),
]
