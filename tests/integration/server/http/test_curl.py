"""`curl`, on every route, typed as the README would have it."""

import json
import shlex
import shutil
import subprocess
from typing import Any

import pytest
from real_server import Server

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")

X16 = json.dumps([float(each) for each in range(16)])


def curl(server: Server, line: str) -> str:
    """`curl -s URL/v2 …`, run as a shell would."""
    arguments = shlex.split(line.replace("URL", server.url))
    done = subprocess.run(arguments, capture_output=True, check=True, timeout=20)
    return done.stdout.decode()


def at(found: Any, path: str) -> Any:
    for step in filter(None, path.split(".")):
        found = found[int(step) if isinstance(found, list) else step]
    return found


@pytest.mark.parametrize(
    ("line", "path", "expected"),
    [
        ("curl -s URL/v2", "name", "headway"),
        ("curl -s URL/v2/", "name", "headway"),
        ("curl -s URL/v2/health/live", "live", True),
        ("curl -s URL/v2/health/ready", "ready", True),
        ("curl -s URL/v2/models", "models.0", "arithmetic"),
        ("curl -s URL/v2/models/double", "inputs.0.datatype", "FP32"),
        ("curl -s URL/v2/models/double/versions/1", "versions", ["1"]),
        ("curl -s URL/v2/models/double/ready", "ready", True),
        ("curl -s URL/v2/models/double/config", "max_batch_size", 64),
        ("curl -s URL/v2/models/double/stats", "model_stats.0.name", "double"),
        ("curl -s URL/v2/models/stats", "model_stats.0.name", "arithmetic"),
        (
            "curl -s URL/v2/models/upper/infer -d '"
            '{"inputs": [{"name": "input", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}]}'
            "'",
            "outputs.0.data",
            ["A", "B"],
        ),
        (
            "curl -s URL/v2/models/double/versions/1/infer -d '"
            f'{{"inputs": [{{"name": "x", "shape": [1, 16], "datatype": "FP32", "data": {X16}}}]}}'
            "'",
            "outputs.0.data.15",
            30.0,
        ),
        ("curl -s --compressed URL/v2/models/double", "name", "double"),
        (
            "curl -s --compressed URL/v2/models/upper/infer -d '"
            '{"inputs": [{"name": "input", "shape": [1], "datatype": "BYTES", "data": '
            f'["{"a" * 2000}"]}}]}}'
            "'",
            "outputs.0.data.0",
            "A" * 2000,
        ),
        (
            'curl -s URL/v2/models/upper/generate -d \'{"text_input": "a"}\'',
            "text_output",
            "A",
        ),
        (
            'curl -s URL/v2/models/letters/generate -d \'{"text_input": "abc"}\'',
            "text_output",
            "abc",
        ),
        ("curl -s -X POST URL/v2/repository/index", "0.state", "READY"),
        ("curl -s URL/v2/systemsharedmemory/status", "", []),
        ("curl -s URL/v2/cudasharedmemory/status", "", []),
        ("curl -s URL/v2/logging", "log_info", True),
        ("curl -s URL/v2/trace/setting", "trace_level", ["OFF"]),
        ("curl -s URL/v1/models", "data.0.id", "arithmetic"),
        ("curl -s URL/v1/models/upper", "id", "upper"),
        ("curl -s URL/v1/predict/upper -d '\"hello\"'", "", "HELLO"),
        ('curl -s URL/v1/predict/upper --json \'{"items": ["a", "b"]}\'', "results", ["A", "B"]),
        ("curl -s URL/openapi.json", "info.title", "Headway"),
        ("curl -s URL/v2/models/nothing", "error", None),
        ("curl -s URL/nowhere", "error", "Not Found; /docs lists the routes"),
        ("curl -s -X DELETE URL/v2", "error", "Method Not Allowed; this route takes GET or HEAD"),
        ("curl -s URL/v1/predict/upper", "error", "Method Not Allowed; this route takes POST"),
    ],
    ids=lambda each: each if isinstance(each, str) and len(each) < 60 else "",
)
def test_a_route(server: Server, line: str, path: str, expected: Any) -> None:
    found = at(json.loads(curl(server, line)), path)
    assert found == expected if expected is not None else isinstance(found, str)


def test_events_come_one_by_one(server: Server) -> None:
    line = 'curl -sN URL/v2/models/letters/generate_stream -d \'{"text_input": "abc"}\''
    events = [each for each in curl(server, line).split("\n\n") if each]
    assert all(each.startswith("data: ") for each in events)
    assert [json.loads(each[6:])["text_output"] for each in events] == ["a", "b", "c"]


def test_a_stream_that_breaks_ends_with_an_error_event(server: Server) -> None:
    line = 'curl -sN URL/v2/models/letters/generate_stream -d \'{"text_input": "ab!c"}\''
    events = [json.loads(each[6:]) for each in curl(server, line).split("\n\n") if each]
    assert [each.get("text_output") for each in events] == ["a", "b", None]
    assert "letters" in events[-1]["error"]


def test_headers(server: Server) -> None:
    head = curl(server, "curl -sI URL/v2/health/live").lower()
    assert head.startswith("http/1.1 200")
    assert "x-request-id: " in head
    head = curl(server, "curl -si -X DELETE URL/v2").lower()
    assert "allow: get, head" in head


def test_a_large_body_that_waits_for_permission(server: Server) -> None:
    """curl sends `Expect: 100-continue` with a body over a megabyte."""
    text = "a" * 2_000_000
    done = subprocess.run(
        [
            *("curl", "-s", f"{server.url}/v1/predict/upper"),
            *("-H", "Expect: 100-continue", "--data-binary", "@-"),
        ],
        input=json.dumps(text).encode(),
        capture_output=True,
        check=True,
        timeout=20,
    )
    assert json.loads(done.stdout) == "A" * 2_000_000


def test_embeddings(minilm: Server) -> None:
    body = '{"model": "minilm", "input": ["hello", "world"]}'
    found = json.loads(curl(minilm, f"curl -s URL/v1/embeddings -d '{body}'"))
    assert [len(each["embedding"]) for each in found["data"]] == [384, 384]
    assert found["usage"]["total_tokens"] == 6
