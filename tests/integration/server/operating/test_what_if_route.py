"""`/admin/what-if`: the server's last traffic, simulated in a process beside it."""

import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from real_server import Server, served

from headway.cli.main import main

MODEL = """
import time

def wait(items: list[int]) -> list[int]:
    time.sleep(0.004)
    return items
"""

ROWS = """
import headway

class Double(headway.TensorModel):
    inputs = [headway.Tensor("x", "float32", (-1,))]
    outputs = [headway.Tensor("y", "float32", (-1,))]

    def predict(self, batch):
        return {"y": batch["x"] * 2}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("what-if")
    (folder / "wait.py").write_text(MODEL)
    with served(
        folder, "wait.py", "--port", "0", "--grpc-port", "-1", "--admin-without-key"
    ) as running:
        yield running


def children(server: Server) -> str:
    asked = ["pgrep", "-P", str(server.pid), "-f", "headway.lab.what_if"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout


def test_the_last_traffic_is_simulated(server: Server) -> None:
    few = server.http.get("/admin/what-if", params={"model": "wait"})
    assert few.status_code == 400
    assert "items are remembered" in few.json()["error"]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: server.http.post("/v1/predict/wait", json=n), range(200)))
    asked = {"model": "wait", "max_batch_size": 1, "slo_ms": 1000}
    found = server.http.get("/admin/what-if", params=asked).json()
    assert (found["items"], found["settings"]["max_batch_size"]) == (200, 64)
    assert found["changed"]["mean_rows"] == 1
    assert found["measured"]["in_time"] == 1
    assert found["simulated"]["p50_ms"] >= 4


def test_the_rows_of_the_traffic_are_bounded_as_its_items_are(tmp_path: Path) -> None:
    """Each row is simulated: items of many rows would be many times the work."""
    (tmp_path / "double.py").write_text(ROWS)
    rows = {"name": "x", "datatype": "FP32", "shape": [256], "data": [1.0] * 256}
    flags = ("--grpc-port", "-1", "--admin-without-key", "--max-batch-size", "256")
    with served(tmp_path, "double.py", "--port", "0", *flags) as running:
        for _ in range(80):
            running.http.post("/v2/models/double/infer", json={"inputs": [rows]})
        found = running.http.get("/admin/what-if", params={"model": "double"}).json()
    # If the warm-up finds that smaller batches pay, these rows are more items.
    assert found["items"] in {16_000 // rows for rows in (32, 48, 64, 96, 128, 192, 256)}


@pytest.mark.parametrize(
    ("query", "status", "word"),
    [
        ("model=other", 404, "other"),
        ("model=wait&colour=2", 400, "'colour' cannot be simulated; known are max_wait_ms, "),
        ("model=wait&max_batchsize=2", 400, "did you mean max_batch_size"),
        ("model=wait&policy=slow", 400, "policy: 'slow' is not one of 'auto'"),
        ("model=wait&workers=many", 400, "workers"),
        ("model=wait&max_batch_size=0", 400, "max_batch_size"),
        ("model=wait&slo_ms=fast", 400, "slo_ms"),
        ("model=wait&slo_ms=nan", 400, "slo_ms"),
        ("model=wait&max_wait_ms=inf", 400, "max_wait_ms"),
        ("model=wait&slo_percentile=nan", 400, "slo_percentile"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(
    server: Server, query: str, status: int, word: str
) -> None:
    answer = server.http.get(f"/admin/what-if?{query}")
    assert (answer.status_code, word in answer.text) == (status, True), answer.text


def test_the_command_tells_it(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["explain", server.url, "--what-if"]
    assert main([*command, "max_batch_size=1, workers=2"]) == 0
    first, head, *rows = capsys.readouterr().out.splitlines()[:5]
    assert first.startswith("wait, version 1: 200 items in ")
    assert head.split() == ["p50", "ms", "p99", "ms", "items/s", "rows/batch", "refused"]
    assert [row[:28].strip() for row in rows] == [
        *("as it was", "simulated as it was", "max_batch_size=1, workers=2")
    ]
    was, simulated, changed = ([float(each) for each in row.split()[-5:]] for row in rows)
    assert (changed[3:], was[4]) == ([1, 0], 0)
    assert simulated[0] >= 4
    assert main([*command, "max_batch_size=1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changed"]["mean_rows"] == 1
    for wrong, says in [
        ("max_batchsize=1", "did you mean max_batch_size"),
        ("max_batch_size", "--what-if: SETTING=VALUE,… is expected"),
        ("workers=1,workers=2", "--what-if: SETTING=VALUE,… is expected, not 'workers=2'"),
        ("model=wait", "--what-if: SETTING=VALUE,… is expected"),
    ]:
        assert main([*command, wrong]) == 2
        assert says in capsys.readouterr().err


def test_a_caller_that_leaves_takes_the_simulation_with_it(server: Server) -> None:
    with pytest.raises(httpx.TimeoutException):
        server.http.get("/admin/what-if", params={"model": "wait"}, timeout=0.2)
    end = time.monotonic() + 10
    while children(server):
        assert time.monotonic() < end
    assert server.http.get("/admin/what-if", params={"model": "wait"}).status_code == 200


def test_one_at_a_time(server: Server) -> None:
    with ThreadPoolExecutor(2) as pool:
        ask = lambda _: server.http.get("/admin/what-if?model=wait").status_code  # noqa: E731
        assert sorted(pool.map(ask, range(2))) == [200, 503]
