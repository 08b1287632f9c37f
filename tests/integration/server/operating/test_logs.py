"""Log lines of a real server: one for each request where access logs are on, ids end to end."""

import json
import logging
import re
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from real_server import Server, served

from headway.observe import logs
from headway.observe.logs import JsonFormatter, TextFormatter

TOML = """
[server]
port = 0
grpc_port = 0
access_log = true
log_format = "json"

[[models]]
name = "double"
target = "served_models:Double"

[[models]]
name = "root"
target = "served_models:Root"

[[models]]
name = "letters"
target = "served_models:Letters"

[[models]]
name = "gate"
target = "served_models:Gate"
warm_up = false

[[models]]
name = "gatekeeper"
target = "served_models:Gatekeeper"
warm_up = false
max_batch_size = 1
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("logs")
    (folder / "headway.toml").write_text(TOML)
    with served(folder, "headway.toml") as running:
        yield running


def objects(server: Server) -> list[dict[str, Any]]:
    """What it logs; its greeting is in between, for people."""
    return [json.loads(line) for line in server.log.text.splitlines() if line.startswith("{")]


def lines_of(server: Server, request_id: str) -> list[dict[str, Any]]:
    """All that is said of this request. (A line follows its answer: each look is a round trip.)"""
    for _ in range(1000):
        found = objects(server)
        mine = [line for line in found if line.get("id") == request_id]
        if any(line["logger"] == "headway.access" for line in mine):
            return mine
        server.http.get("/v2/health/live")
    raise AssertionError(f"nothing is logged of {request_id}")


def access_of(server: Server, request_id: str) -> dict[str, Any]:
    [line] = [line for line in lines_of(server, request_id) if line["logger"] == "headway.access"]
    return line


def test_every_line_is_an_object(server: Server) -> None:
    found = objects(server)
    assert {"time", "level", "logger", "message"} <= set(found[0])
    assert any(line["message"].startswith("listening on http://") for line in found)


def test_a_request_is_one_line_with_its_batch(server: Server) -> None:
    answer = server.http.post("/v1/predict/root", json=9.0, headers={"X-Request-Id": "mine-1"})
    assert answer.headers["x-request-id"] == "mine-1"
    line = access_of(server, "mine-1")
    assert line["batch"] >= 1
    parts_ms = [line[name] for name in ("queued_ms", "lingered_ms", "ran_ms")]
    assert min(parts_ms) >= 0
    assert 0 < sum(parts_ms) < line["ms"]
    assert {name: line[name] for name in ("method", "path", "model", "status", "level")} == {
        "method": "POST",
        "path": "/v1/predict/root",
        "model": "root",
        "status": 200,
        "level": "info",
    }
    assert "code" not in line


def test_an_id_that_was_made_up_for_the_caller_is_the_one_in_the_log(server: Server) -> None:
    answer = server.http.post("/v1/predict/root", json=4.0)
    assert access_of(server, answer.headers["x-request-id"])["status"] == 200


def test_a_models_error_is_logged_with_the_requests_id(server: Server) -> None:
    server.http.post("/v1/predict/root", json=-1.0, headers={"X-Request-Id": "bad-1"})
    error, line = sorted(lines_of(server, "bad-1"), key=lambda each: each["level"])
    assert (line["status"], line["code"], line["model"]) == (500, "model_failed", "root")
    assert error["level"] == "error"
    assert "root raised ValueError: -1.0" in error["error"]


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/predict/absent", 404, "unknown_model"),
        ("/nowhere", 404, "not_found"),
        ("/v2/models/double/infer", 400, "invalid_input"),
    ],
)
def test_a_refusal_has_its_word(server: Server, path: str, status: int, code: str) -> None:
    answer = server.http.post(path, content=b"{}")
    line = access_of(server, answer.headers["x-request-id"])
    assert (line["status"], line["code"]) == (status, code)
    assert "batch" not in line


def test_who_leaves_is_logged_as_499(server: Server) -> None:
    with server.closed_gate() as wait_entered:
        client = socket.create_connection(("127.0.0.1", server.port))
        head = "POST /v1/predict/gate HTTP/1.1\r\nHost: x\r\nX-Request-Id: left-1\r\n"
        client.sendall(f"{head}Content-Length: 3\r\n\r\n2.0".encode())
        wait_entered()
        client.close()
        line = access_of(server, "left-1")
    assert (line["status"], line["code"]) == (499, "cancelled")


def test_a_stream_is_one_line_at_its_end(server: Server) -> None:
    path = "/v2/models/letters/generate_stream"
    with server.http.stream(
        "POST", path, json={"text_input": "abc"}, headers={"X-Request-Id": "stream-1"}
    ) as answer:
        assert len(answer.read()) > 10
    line = access_of(server, "stream-1")
    assert (line["status"], line["model"]) == (200, "letters")
    assert line["batch"] >= 1


def test_calls_over_grpc_have_their_line_too(server: Server) -> None:
    triton = pytest.importorskip("tritonclient.grpc")
    tensor = triton.InferInput("x", [1, 16], "FP32")
    tensor.set_data_from_numpy(numpy.ones((1, 16), numpy.float32))
    with triton.InferenceServerClient(server.grpc) as client:
        client.infer("double", [tensor], request_id="call-1")
        client.infer("double", [tensor], headers={"x-request-id": "call-2"})
        with pytest.raises(Exception, match="no model 'absent'"):
            client.infer("absent", [tensor], request_id="call-3")
    line = access_of(server, "call-1")
    assert (line["method"], line["status"], line["model"]) == ("gRPC", "OK", "double")
    assert line["path"] == "/inference.GRPCInferenceService/ModelInfer"
    assert line["batch"] >= 1
    assert access_of(server, "call-2")["status"] == "OK"
    line = access_of(server, "call-3")
    assert (line["status"], line["code"]) == ("NOT_FOUND", "unknown_model")


def test_a_models_error_over_grpc_is_logged_with_the_calls_id(server: Server) -> None:
    triton = pytest.importorskip("tritonclient.grpc")
    tensor = triton.InferInput("input", [1, 1], "FP64")
    tensor.set_data_from_numpy(numpy.full((1, 1), -1.0))
    with triton.InferenceServerClient(server.grpc) as client:
        names = [each.name for each in client.get_model_metadata("root").inputs]
        tensor._input.name = names[0]
        with pytest.raises(Exception, match="root raised"):
            client.infer("root", [tensor], request_id="call-4")
    assert {line["level"] for line in lines_of(server, "call-4")} == {"info", "error"}


def test_a_call_over_grpc_that_is_given_up_is_logged_as_cancelled(server: Server) -> None:
    triton = pytest.importorskip("tritonclient.grpc")
    client = triton.InferenceServerClient(server.grpc)
    done = threading.Event()
    with client, server.closed_gate() as wait_entered:
        name = client.get_model_metadata("gate").inputs[0].name
        tensor = triton.InferInput(name, [1, 1], "FP64")
        tensor.set_data_from_numpy(numpy.ones((1, 1)))
        call = client.async_infer(
            "gate", [tensor], lambda result, error: done.set(), request_id="call-5"
        )
        wait_entered()
        call.cancel()
        assert done.wait(5)
        assert access_of(server, "call-5")["status"] == "CANCELLED"


def test_without_access_logs_nothing_is_said_of_a_request(tmp_path: Path) -> None:
    with served(
        tmp_path, "served_models:Root", "--port", "0", "--grpc-port", "-1", "--log-level", "debug"
    ) as server:
        server.http.post("/v1/predict/root", json=4.0, headers={"X-Request-Id": "mine-2"})
        server.http.post("/v1/predict/root", json=-4.0, headers={"X-Request-Id": "bad-2"})
        server.log.wait_for("id=bad-2")
        assert "mine-2" not in server.log.text


def test_less_severe_lines_are_left_out_but_for_those_of_requests(
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    root.handlers.clear()
    try:
        logs.configure(format="text", level="warning")
        logging.getLogger("headway.server").info("not this")
        logging.getLogger("headway.server").warning("but this")
        logs.LoggedRequest(request_id="1", method="GET", path="/").log(200)
    finally:
        root.handlers[:], root.level = before
    first, second = capsys.readouterr().err.splitlines()
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} "
    assert re.fullmatch(when + "WARNING headway.server: but this", first)
    line = "INFO headway.access: request id=1 method=GET path=/ status=200 ms="
    assert re.match(when + line, second)


# ---- formats


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("headway.x", logging.WARNING, "x.py", 1, message, (), None)
    vars(made).update(extra)
    return made


def test_what_a_client_sent_cannot_pass_for_a_line_of_its_own() -> None:
    evil = record("a request failed", path="/a\nERROR root: all is lost id=7", id="7 code=x")
    text = TextFormatter().format(evil)
    assert text.count("\n") == 0
    assert ' WARNING headway.x: a request failed path="/a\\nERROR' in text
    assert json.loads(JsonFormatter().format(evil))["path"] == "/a\nERROR root: all is lost id=7"
    assert JsonFormatter().format(evil).count("\n") == 0


def test_an_error_is_told_with_its_traceback_in_one_line_of_json() -> None:
    try:
        raise ValueError("ünlike")
    except ValueError:
        failed = record("it failed", value={1, 2})
        failed.exc_info = sys.exc_info()
    line = JsonFormatter().format(failed)
    assert line.count("\n") == 0
    assert json.loads(line)["error"].endswith("ValueError: ünlike")
    assert TextFormatter().format(failed).splitlines()[-1] == "ValueError: ünlike"
