"""`GET /admin/explain` of a real server: the last batches and what went wrong."""

import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from real_server import Server


def page(server: Server, **asked: Any) -> Any:
    answer = server.http.get("/admin/explain", params=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_batch_is_explained(server: Server) -> None:
    since = page(server)["next"]
    before = time.time()
    assert server.http.post("/v1/predict/root", json=9.0).json() == 3.0
    found = page(server, since=since)
    [batch] = found["batches"]
    assert (batch["model"], batch["version"], batch["rows"], batch["count"]) == ("root", "1", 1, 1)
    assert (batch["lost"], batch["failed"], batch["reruns"]) == (None, 0, 0)
    assert batch["reason"] in ("idle", "everyone", "linger")
    [item] = batch["items"]
    moments = [
        *(before, item["arrived_at"], batch["fired_at"]),
        *(batch["finished_at"], batch["answered_at"], found["now"]),
    ]
    assert moments == sorted(moments)
    waited_ms = (batch["fired_at"] - item["arrived_at"]) * 1e3
    assert math.isclose(item["queued_ms"] + item["lingered_ms"], waited_ms, abs_tol=0.01)
    assert (item["priority"], item["tenant"], item["deadline_at"]) == ("normal", "", None)
    assert (found["left_out"], found["has_gap"], found["incidents"]) == (0, False, [])


def test_a_reader_goes_on_where_it_was(server: Server) -> None:
    since = page(server)["next"]
    for number in range(4):
        server.http.post("/v1/predict/root", json=float(number))
    first = page(server, since=since, limit=3, items=False)
    assert [batch["items"] for batch in first["batches"]] == [None] * 3
    assert first["left_out"] == 1
    assert page(server, since=first["next"])["batches"] == []
    server.http.post("/v1/predict/upper", json="a")
    assert page(server, since=first["next"], model="root")["batches"] == []
    assert len(page(server, since=first["next"], model="upper")["batches"]) == 1


def test_items_that_share_a_batch_are_in_it_and_a_full_queue_is_an_incident(
    server: Server,
) -> None:
    since = page(server)["next"]
    with ThreadPoolExecutor(3) as pool, server.closed_gate() as wait_running:
        ask: Callable[[], Any] = lambda: server.http.post("/v1/predict/gate", json=1)  # noqa: E731
        running = pool.submit(ask)
        wait_running()
        others = [pool.submit(ask) for _ in range(2)]  # one is queued, one refused
        while not [each for each in others if each.done()]:
            time.sleep(0.01)
        found = page(server, since=since, model="gate")
        assert found["batches"] == []
    [incident] = found["incidents"]
    assert (incident["kind"], incident["model"]) == ("queue_full", "gate")
    assert "full" in incident["message"]
    statuses = sorted(each.result().status_code for each in (running, *others))
    assert statuses == [200, 200, 503]
    first, second = page(server, since=since, model="gate")["batches"]
    [item] = second["items"]
    assert item["queued_ms"] > 0.9 * (first["finished_at"] - item["arrived_at"]) * 1e3


def story(server: Server, request_id: str) -> Any:
    answer = server.http.get("/admin/explain/requests", params={"id": request_id})
    assert answer.status_code == 200, answer.text
    [found] = answer.json()["requests"]
    return found


def test_a_request_is_found_by_its_id_whichever_way_it_took(server: Server) -> None:
    said = server.http.post("/v1/predict/root", json=4.0)  # directly, with an id of the server's
    body = {"items": [1.0, 4.0, 9.0]}
    named = {"X-Request-Id": "three-roots"}
    server.http.post("/v1/predict/root/batch", json=body, headers=named)
    direct = story(server, said.headers["x-request-id"])
    assert (direct["model"], direct["items"], direct["code"]) == ("root", 1, None)
    several = story(server, "three-roots")
    assert (several["what"], several["items"]) == ("POST /v1/predict/root/batch", 3)
    for found in (direct, several):
        assert list(found["parts_ms"]) == ["before", "queued", "lingered", "run", "answer"]
        assert math.isclose(sum(found["parts_ms"].values()), found["took_ms"], abs_tol=0.01)
        assert found["text"][0].startswith(f"request {found['request']}: ")
        batches = page(server, model="root", batch=found["batch"])["batches"]
        assert found["request"] in {item["request"] for item in batches[-1]["items"]}
        assert batches[-1]["reason"] in batches[-1]["text"]
        others = page(server, batch=found["batch"])
        assert (others["answers"], others["incidents"]) == ([], [])


def test_an_answer_says_in_its_head_where_the_time_went(server: Server) -> None:
    body = {"items": [1.0, 4.0]}
    direct = server.http.post("/v1/predict/root", json=4.0)
    packed = server.http.post("/v1/predict/upper", json="a" * 4000)
    several = server.http.post("/v1/predict/root/batch", json=body)
    for answer in (direct, packed, several):
        said = {
            name: float(duration.removeprefix("dur="))
            for name, _, duration in (
                each.partition(";") for each in answer.headers["server-timing"].split(", ")
            )
        }
        assert list(said) == ["queue", "linger", "run"]
        parts_ms = story(server, answer.headers["x-request-id"])["parts_ms"]
        assert math.isclose(said["linger"], parts_ms["lingered"], abs_tol=0.5)
        assert said["run"] <= parts_ms["run"] + 0.01
    refused = server.http.post("/v1/predict/root", json="no number")
    assert "server-timing" not in refused.headers


def test_over_grpc_too(server: Server) -> None:
    import numpy
    import tritonclient.grpc as triton

    given = triton.InferInput("x", [2, 16], "FP32")
    given.set_data_from_numpy(numpy.ones((2, 16), numpy.float32))
    one = triton.InferInput("x", [1, 16], "FP32")
    one.set_data_from_numpy(numpy.ones((1, 16), numpy.float32))
    with triton.InferenceServerClient(server.grpc) as client:
        client.infer("double", [given], headers={"x-request-id": "general"})
        client.infer("double", [one], headers={"x-request-id": "direct"})
        client.infer("double", [one], request_id="by-the-message")
    assert story(server, "general")["what"] == "gRPC ModelInfer"
    assert story(server, "direct")["what"] == "double, directly"
    assert story(server, "by-the-message")["items"] == 1


def test_what_failed_is_found_too(server: Server) -> None:
    server.http.post("/v1/predict/root", json=-1.0, headers={"X-Request-Id": "no-root"})
    server.http.post("/v1/predict/rot", json=1.0, headers={"X-Request-Id": "no-model"})
    assert story(server, "no-root")["code"] == "model_failed"
    server.http.get("/admin/what-if", params={"model": "rot"}, headers={"X-Request-Id": "asks"})
    assert server.http.get("/admin/explain/requests", params={"id": "asks"}).status_code == 404
    missing = story(server, "no-model")
    assert (missing["cause"], missing["model"], missing["batch"]) == ("error", None, None)
    assert "unknown_model" in missing["why"]
    assert server.http.get("/admin/explain/requests", params={"id": "never"}).status_code == 404


def test_the_slowest_come_first_and_the_command_tells_them(server: Server) -> None:
    with ThreadPoolExecutor(1) as pool, server.closed_gate() as wait_running:
        slow = pool.submit(server.http.post, "/v1/predict/gate", json=1)
        wait_running()
        time.sleep(0.1)
    slow_id = slow.result().headers["x-request-id"]
    params = {"slowest": 3, "model": "gate"}
    found = server.http.get("/admin/explain/requests", params=params).json()
    took = [each["took_ms"] for each in found["requests"]]
    assert took == sorted(took, reverse=True)
    assert slow_id in [each["request"] for each in found["requests"]]

    def headway(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "headway", "explain", server.url, *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    told = headway(slow_id)
    assert told.returncode == 0, told.stderr
    assert f"request {slow_id}: " in told.stdout
    assert "  would change it: " in told.stdout
    told = headway("--slowest", "2", "--model", "gate")
    assert told.stdout.startswith("the slowest 2 of the last ")
    told = headway("--batch", "1", "--model", "gate")
    assert told.stdout.startswith("gate, version 1: batch 1 on worker 0: 1 item")
    assert (told := headway("never")).returncode == 1
    assert told.stderr.startswith("headway: request 'never' is not among the last ")
    assert "is kept no longer" in (told := headway("--batch", "99999", "--json")).stderr
    assert (told.returncode, told.stdout) == (1, "")
    told = headway("--batch", "1", "--model", "gate", "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["batches"][0]["batch"] == 1
    for arguments in (["--trace", "trace.json", "--json"], ["--batch", "0"], ["--slowest", "51"]):
        assert (headway(*arguments).returncode, Path("trace.json").exists()) == (2, False)
    told = headway("--model", "nobody", "--trace", "trace.json")
    assert (told.returncode, "no batch of 'nobody'" in told.stderr) == (1, True)
    assert not Path("trace.json").exists()
    told = headway("--model", "nobody")
    assert told.stdout == "no request of 'nobody' has been answered yet\n"


def test_the_last_batches_are_a_trace_that_perfetto_opens(server: Server, tmp_path: Path) -> None:
    """The format's own rules: slices of a track are nested, spans begin and end in pairs."""
    for number in range(5):
        server.http.post("/v1/predict/root", json=float(number))
    path = tmp_path / "trace.json"
    command = [sys.executable, "-m", "headway", "explain", server.url]
    told = subprocess.run(
        [*command, "--trace", path, "--model", "root"], check=True, capture_output=True, text=True
    )
    assert "ui.perfetto.dev" in told.stdout
    events = json.loads(path.read_text())["traceEvents"]
    names = {each["args"]["name"] for each in events if each["ph"] == "M"}
    assert {"root version 1", "worker 0"} <= names
    slices = [each for each in events if each["ph"] == "X"]
    assert len(slices) >= 5
    for before, after in itertools.pairwise(sorted(slices, key=lambda each: each["ts"])):
        assert before["tid"] != after["tid"] or before["ts"] + before["dur"] <= after["ts"]
    assert {"reason", "batch_cap", "ran_ms"} <= set(slices[0]["args"])
    spans: dict[str, list[Any]] = {}
    for each in (each for each in events if each["ph"] in "be"):
        spans.setdefault(each["id"], []).append(each)
    for span in spans.values():
        opened: list[str] = []
        assert [each["ts"] for each in span] == sorted(each["ts"] for each in span)
        for each in span:
            if each["ph"] == "b":
                opened.append(each["name"])
            else:
                assert opened.pop() == each["name"]
        assert opened == []
    nowhere = subprocess.run(
        [*command, "--trace", tmp_path], check=False, capture_output=True, text=True
    )
    assert (nowhere.returncode, "--trace" in nowhere.stderr) == (2, True)


def test_a_wrong_query_is_refused_by_name(server: Server) -> None:
    for query, says in [
        ({"sinse": "1"}, "sinse"),
        ({"since": "yesterday"}, "since"),
        ({"limit": "100000"}, "`limit` is 0 to"),
        ({"since": "-1"}, "`since` is 0 or more"),
    ]:
        answer = server.http.get("/admin/explain", params=query)
        assert answer.status_code == 400
        assert says in answer.text
    answer = server.http.get("/admin/explain/requests", params={"slowest": 10_000})
    assert (answer.status_code, "1 to 50" in answer.text) == (400, True)
