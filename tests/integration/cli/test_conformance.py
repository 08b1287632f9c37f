"""`headway conformance`, against a real server, and against one that breaks what it is told to."""

import http.server
import json
from pathlib import Path
from typing import Any

import pytest
from real_server import served

from handler_server import handled_by
from headway.cli.main import main

MODEL = """
import headway

class Sums(headway.TensorModel):
    inputs = [headway.Tensor("x", "float32", (-1, 3))]
    outputs = [headway.Tensor("y", "float32", (-1,))]

    def predict(self, batch):
        return {"y": batch["x"].sum(axis=1)}
"""


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, str]]:
    """The exit code, and the outcome of each line by what it says."""
    code = main(["conformance", *arguments, "--json"])
    lines = json.loads(capsys.readouterr().out)["lines"]
    return code, {f"{each['clause']}: {each['what']}": each["outcome"] for each in lines}


def test_headway_keeps_every_clause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sums.py").write_text(MODEL)
    with served(tmp_path, "sums.py", "--port", "0", "--grpc-port", "0") as server:
        code, outcomes = report(capsys, server.url, "--grpc", server.grpc)
    assert code == 0
    assert set(outcomes.values()) == {"kept"}
    assert len(outcomes) > 40


class Careless(http.server.BaseHTTPRequestHandler):
    """A server with a model that answers anything, in its own words."""

    protocol_version = "HTTP/1.1"

    def answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        tensor = {"name": "x", "datatype": "FP32", "shape": [-1]}
        if self.path == "/v2":
            self.answer(200, {"name": "careless", "version": "1"})
        elif self.path == "/v2/models/m":
            about = {"name": "m", "platform": "p", "inputs": [tensor], "outputs": [tensor]}
            self.answer(200, about)
        else:
            self.answer(200, {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        output = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}
        self.answer(200, {"model_name": "m", "outputs": [output]})


def test_what_a_server_breaks_is_named_by_its_clause(capsys: pytest.CaptureFixture[str]) -> None:
    with handled_by(Careless) as url:
        code, outcomes = report(capsys, url, "--model", "m")
    assert code == 1
    broken = {what for what, outcome in outcomes.items() if outcome == "broken"}
    rest = "inference_rest.md"
    error = f"{rest}, Inference Response JSON Error Object"
    assert {
        f"{rest}, Health: Model Ready: an unknown model is not ready: 4xx",
        f"{rest}, Server Metadata: name, version and extensions",
        f"{rest}, Server Metadata: the answer is declared as JSON",
        f"{rest}, Inference Response: the request's id comes back",
        f"{error}: an unknown input is refused with an error status and text",
    } <= broken
    assert outcomes[f"{rest}, Tensor Data: nested arrays are what flat ones are"] == "kept"
    assert outcomes[f"{rest}, Inference: of a version"] == "not_offered"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--shape", "x:two"], 2, "--shape: "),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["conformance", *arguments]) == code
    assert message in capsys.readouterr().err


def test_the_model_must_be_named_where_there_are_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sums.py").write_text(MODEL)
    models = "".join(f'[[models]]\nname = "{name}"\ntarget = "sums:Sums"\n' for name in "ab")
    (tmp_path / "headway.toml").write_text(models)
    with served(tmp_path, "headway.toml", "--port", "0", "--grpc-port", "-1") as server:
        assert main(["conformance", server.url]) == 2
        assert "which model? it has a, b" in capsys.readouterr().err
