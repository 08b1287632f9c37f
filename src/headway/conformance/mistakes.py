"""Requests that are wrong, each in one way: `inference_rest.md`, the error responses."""

from collections.abc import Callable
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


def _longer(server: Subject) -> SubjectAnswer:
    first = server.request()["inputs"][0]
    shape = [first["shape"][0] + 1, *first["shape"][1:]] if first["shape"] else [2]
    return server.post(_changed(server, shape=shape))


def _negative(server: Subject) -> SubjectAnswer:
    first = server.request()["inputs"][0]
    return server.post(_changed(server, shape=[-1, *first["shape"][1:]]))


def _of(heading: str, what: str, ask: Callable[[Subject], SubjectAnswer]) -> Check[Subject]:
    told = f"{what} is refused with an error status and text"
    return Check(f"{_REST}, {heading}", told, lambda server: is_refused(ask(server)))


_MISTAKES: dict[str, Callable[[Subject], SubjectAnswer]] = {
    "a body that is not JSON": lambda server: server.ask(
        "POST", f"{server.path}/infer", b'{"inputs": ['
    ),
    "an empty body": lambda server: server.ask("POST", f"{server.path}/infer", b""),
    "a request without inputs": lambda server: server.post({"id": "1"}),
    "an unknown input": lambda server: server.post(_changed(server, name="no_such_input")),
    "a missing input": lambda server: server.post({"inputs": []}),
    "an unknown datatype": lambda server: server.post(_changed(server, datatype="NO_SUCH_TYPE")),
    "less data than the shape says": _longer,
    "a negative shape": _negative,
    "an unknown output": lambda server: server.post(
        server.request(outputs=[{"name": "no_such_output"}])
    ),
    "an unknown model": lambda server: server.post(server.request(), f"/v2/models/{UNKNOWN}/infer"),
    "an unknown version": lambda server: server.post(
        server.request(), f"{server.path}/versions/987654/infer"
    ),
}
CHECKS: list[Check[Subject]] = [
    _of(
        *("Model Metadata Response JSON Error Object", "an unknown model"),
        lambda server: server.ask("GET", f"/v2/models/{UNKNOWN}"),
    ),
    *(_of("Inference Response JSON Error Object", *each) for each in _MISTAKES.items()),
    Check(
        *(f"{_REST}, Inference", "after all these mistakes a good request is answered"),
        lambda server: server.post(server.request()).ok() and None,
    ),
]
