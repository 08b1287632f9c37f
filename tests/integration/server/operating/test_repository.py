"""`headway serve ./models`: models that come, change and go under real clients."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy
import pytest
from real_server import Server, served
from repositories import write_settings, write_version

grpcclient = pytest.importorskip("tritonclient.grpc")
httpclient = pytest.importorskip("tritonclient.http")
grpcaio = pytest.importorskip("tritonclient.grpc.aio")
from tritonclient.utils import InferenceServerException  # noqa: E402 - once we know it is there

WAIT_S = 20.0
BODY: dict[str, Any] = {
    "inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [0.0]}]
}
COMMAND = [sys.executable, "-m", "headway", "serve"]


@contextmanager
def repository(root: Path, *arguments: str) -> Iterator[Server]:
    with served(
        root.parent, str(root), "--port", "0", "--grpc-port", "0", "--admin-without-key", *arguments
    ) as server:
        yield server


@pytest.fixture
def models(tmp_path: Path) -> Path:
    root = tmp_path / "models"
    root.mkdir()
    return root


class Client:
    """The same calls through Triton's HTTP and gRPC clients."""

    def __init__(self, server: Server, kind: str) -> None:
        module = httpclient if kind == "http" else grpcclient
        self._module = module
        self.as_json = {} if kind == "http" else {"as_json": True}
        address = server.address if kind == "http" else server.grpc
        self.triton = module.InferenceServerClient(address)

    def mark(self, name: str = "m", version: str = "", **more: Any) -> int:
        value = self._module.InferInput("x", [1, 1], "FP32")
        value.set_data_from_numpy(numpy.zeros((1, 1), numpy.float32))
        answer = self.triton.infer(name, [value], model_version=version, **more)
        return int(answer.as_numpy("mark")[0, 0])

    def index(self) -> dict[tuple[str, str], tuple[str, str]]:
        found = self.triton.get_model_repository_index(**self.as_json)
        found = found["models"] if isinstance(found, dict) else found
        return {
            (each["name"], each.get("version", "")): (each["state"], each.get("reason", ""))
            for each in found
        }


@pytest.fixture(params=["http", "grpc"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def until(is_so: Callable[[], bool]) -> None:
    """For what the server does by itself, in its own time."""
    give_up_at = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < give_up_at, "it never happens"
        threading.Event().wait(0.02)


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(InferenceServerException) as caught:
        call()
    return f"{caught.value.status()} {caught.value.message()}"


# ---- load and unload


def test_unload_and_load_through_tritons_clients(models: Path, kind: str) -> None:
    write_version(models, "m", 1, 11)
    with repository(models) as server:
        client = Client(server, kind)
        assert client.mark() == 11
        assert client.index() == {("m", "1"): ("READY", "")}
        client.triton.unload_model("m", unload_dependents=True)
        assert "no model 'm'" in refused(client.mark)
        assert not client.triton.is_model_ready("m")
        assert client.triton.is_server_ready()
        until(lambda: client.index() == {("m", "1"): ("UNAVAILABLE", "unloaded")})
        write_version(models, "m", 2, 22)
        client.triton.load_model("m")
        assert client.mark() == 22
        assert client.index()["m", "1"] == ("UNAVAILABLE", "not chosen by the version policy")
        write_version(models, "later", 1, 33)  # it came after the start
        client.triton.load_model("later")
        assert client.mark("later") == 33
        assert "no model 'nobody'" in refused(lambda: client.triton.unload_model("nobody"))


def test_models_are_controlled_as_tritons_own_examples_do_it(models: Path, kind: str) -> None:
    """They look for Triton's words in our errors."""
    write_version(models, "simple", 1, 11)
    with repository(models, "--server-name", "triton") as server:
        client = Client(server, kind)
        triton = client.triton
        assert triton.get_server_metadata(**client.as_json)["name"] == "triton"
        triton.load_model("simple")
        assert triton.is_model_ready("simple")
        wrong = '"parameters": {"config": {{"max_batch_size": "16"}}}'
        told = refused(lambda: triton.load_model("simple", config=wrong))
        assert "failed to load 'simple': config is not JSON" in told
        (models / "simple" / "1" / "model.py").write_text("1 +\n")
        assert refused(lambda: triton.load_model("simple")).count("failed to load") == 1
        write_version(models, "simple", 1, 11)
        triton.load_model("simple", config='{"max_batch_size":"16"}')
        found = triton.get_model_config("simple", **client.as_json)
        assert found.get("config", found)["max_batch_size"] == 16
        triton.unload_model("simple")
        assert not triton.is_model_ready("simple")
        told = refused(lambda: triton.load_model("wrong_model_name"))
        assert "failed to load 'wrong_model_name': no model 'wrong_model_name'" in told
        assert "unknown model" not in told  # once is enough
        for ask in (triton.get_model_metadata, triton.get_model_config, client.mark):
            told = refused(lambda ask=ask: ask("wrong_model_name"))
            assert "Request for unknown model: no model 'wrong_model_name'" in told


def test_what_is_tritons_alone_is_told(models: Path) -> None:
    write_version(models, "m", 1, 11)
    (models / "m" / "config.pbtxt").write_text("max_batch_size: 8")
    write_version(models, "theirs", 1, 11)
    (models / "theirs" / "1" / "model.py").write_text("import triton_python_backend_utils")
    with repository(models) as server:
        server.log.wait_for("m: config.pbtxt is not read: settings are in model.toml")
        server.log.wait_for("a model of Triton's becomes a headway.TensorModel: docs/guides/from-")


def test_a_load_may_bring_settings_but_no_files(models: Path, kind: str) -> None:
    write_version(models, "m", 1, 11)
    write_version(models, "m", 2, 22)
    with repository(models) as server:
        client = Client(server, kind)

        def load(**config: Any) -> None:
            client.triton.load_model("m", config=json.dumps(config))

        load(max_batch_size=4, version_policy={"all": {}})
        config = server.http.get("/v2/models/m/config").json()
        assert config["max_batch_size"] == 4
        assert (client.mark(version="1"), client.mark(version="2")) == (11, 22)
        load(**config)  # what a client got, it may send back
        load(version_policy={"specific": {"versions": ["1"]}})
        assert client.mark() == 11
        assert "max_bach_size: no such setting; did you mean max_batch_size?" in refused(
            lambda: load(max_bach_size=4)
        )
        assert "a whole number >= 0 is expected, not -1" in refused(lambda: load(max_batch_size=-1))
        assert "in model.toml only" in refused(lambda: load(target="os:system"))
        text = refused(lambda: client.triton.load_model("m", config="{}", files={"file:1/x": b"x"}))
        assert "files are not taken" in text
        assert client.mark() == 11  # whatever was refused has changed nothing
        client.triton.load_model("m")  # and without, it is as its file says
        assert client.mark() == 22


def test_a_version_that_fails_says_why_and_the_old_one_serves_on(models: Path, kind: str) -> None:
    write_version(models, "m", 1, 11)
    with repository(models) as server:
        client = Client(server, kind)
        write_version(models, "m", 2, 22, load="raise OSError('the weights are torn')")
        assert "the weights are torn" in refused(lambda: client.triton.load_model("m"))
        assert client.mark() == 11
        state, reason = client.index()["m", "2"]
        assert state == "UNAVAILABLE"
        assert "the weights are torn" in reason
        assert client.index()["m", "1"] == ("READY", "")
        write_version(models, "m", 2, 22)
        client.triton.load_model("m")
        assert client.mark() == 22


def test_one_model_that_fails_does_not_keep_the_others_back(models: Path) -> None:
    write_version(models, "good", 1, 11)
    write_version(models, "bad", 1, 22, load="raise ValueError('no')")
    write_version(models, "typo", 1, 33)
    write_settings(models, "typo", "max_bach_size = 4")
    (models / "empty").mkdir()
    write_settings(models, "empty", "")
    (models / "notes").mkdir()
    with repository(models) as server:
        assert server.http.get("/v2/health/ready").status_code == 503
        assert Client(server, "http").mark("good") == 11
        answer = server.http.post("/v1/predict/bad", json=[1.0])
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        index = Client(server, "http").index()
        assert index["bad", "1"] == ("UNAVAILABLE", "ValueError: no")
        assert "max_bach_size: no such setting" in index["typo", ""][1]
        assert index["empty", ""][1] == "it has no version: 1, 2, …"
        assert not any(name == "notes" for name, _ in index)
        log = server.log.text
        assert "bad version 1 cannot be loaded: ValueError: no" in log


@pytest.mark.parametrize(("more", "status"), [((), 503), (("--no-strict-readiness",), 200)])
def test_a_server_with_a_model_that_failed_is_ready_only_where_that_is_allowed(
    models: Path, more: tuple[str, ...], status: int
) -> None:
    write_version(models, "good", 1, 11)
    write_version(models, "bad", 1, 22, load="raise ValueError('no')")
    with repository(models, *more) as server:
        assert server.http.get("/v2/health/ready").status_code == status
        assert server.http.get("/v2/health/live").status_code == 200
        write_version(models, "late", 1, 22, load="raise ValueError('no')")
        refused(lambda: Client(server, "http").triton.load_model("late"))
        assert server.http.get("/v2/health/ready").status_code == status
        assert server.http.post("/v2/repository/models/bad/unload").status_code == 200
        assert server.http.get("/v2/health/ready").status_code == 200


def test_each_version_is_there_by_its_number(models: Path, kind: str) -> None:
    for version in (1, 2, 10):
        write_version(models, "m", version, version * 11)
    write_settings(models, "m", "[versions]\nlatest = 2")
    with repository(models) as server:
        client = Client(server, kind)
        assert (client.mark(), client.mark(version="10"), client.mark(version="2")) == (
            110,
            110,
            22,
        )
        assert "no model 'm' version 1" in refused(lambda: client.mark(version="1"))
        server.log.wait_for("Ctrl-C stops")
        assert "not served" not in server.log.text  # version 1 is left out on purpose
        get = server.http.get
        assert get("/v2/models/m").json()["versions"] == ["10", "2"]
        statistics = get("/v2/models/m/stats").json()["model_stats"]
        assert {each["version"]: each["inference_count"] for each in statistics} == {
            "10": 2,
            "2": 1,
        }
        [one] = get("/v2/models/m/versions/2/stats").json()["model_stats"]
        assert one["version"] == "2"
        assert get("/v2/models/m/versions/2/ready").status_code == 200
        assert get("/v2/models/m/versions/1/ready").status_code == 404


def test_an_operator_lists_reloads_and_unloads(models: Path) -> None:
    write_version(models, "m", 1, 11)
    with repository(models) as server:
        post = server.http.post
        [line] = server.http.get("/admin/models").json()["models"]
        assert line == {"name": "m", "version": "1", "state": "READY", "reason": ""}
        assert post("/admin/models/m/reload").json()["models"][0]["state"] == "READY"
        assert post("/admin/models/m/unload").status_code == 200
        assert post("/v1/predict/m", json=[1.0]).status_code == 404
        assert (
            post("/admin/models/m/load", json={"config": {"max_batch_size": 2}}).status_code == 200
        )
        assert server.http.get("/v2/models/m/config").json()["max_batch_size"] == 2
        assert post("/admin/models/m/load", json={"confg": {}}).status_code == 400
        assert post("/admin/models/nobody/reload").status_code == 404


# ---- under load


async def _ask_over_http(server: Server, marks: list[int], stop: asyncio.Event) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=WAIT_S) as client:
        while not stop.is_set():
            answer = await client.post("/v2/models/m/infer", json=BODY)
            assert answer.status_code == 200, answer.text
            marks.append(answer.json()["outputs"][0]["data"][0])


async def _ask_over_grpc(server: Server, marks: list[int], stop: asyncio.Event) -> None:
    value = grpcaio.InferInput("x", [3, 1], "FP32")
    value.set_data_from_numpy(numpy.zeros((3, 1), numpy.float32))
    client = grpcaio.InferenceServerClient(server.grpc)
    try:
        while not stop.is_set():
            answer = await client.infer("m", [value])
            [mark] = set(answer.as_numpy("mark")[:, 0].tolist())  # all rows from one version
            marks.append(mark)
    finally:
        await client.close()


@pytest.mark.real_time
async def test_reloads_under_load_lose_nobody_and_answer_only_when_ready(models: Path) -> None:
    write_version(models, "m", 1, 1)
    with repository(models) as server:
        stop = asyncio.Event()
        marks: list[int] = []
        async with asyncio.TaskGroup() as asking:
            for ask in (_ask_over_http, _ask_over_grpc):
                for _ in range(4):
                    asking.create_task(ask(server, marks, stop))
            good = {1}
            async with httpx.AsyncClient(base_url=server.url, timeout=WAIT_S) as operator:
                for number in range(2, 14):
                    is_bad = number % 3 == 0
                    write_version(models, "m", number, number, load="1 / 0" if is_bad else "pass")
                    answer = await operator.post("/v2/repository/models/m/load")
                    assert answer.status_code == (400 if is_bad else 200), answer.text
                    if is_bad:
                        (models / "m" / str(number) / "model.py").unlink()
                        (models / "m" / str(number)).rmdir()
                    else:
                        good.add(number)
                        now = await operator.post("/v2/models/m/infer", json=BODY)
                        assert now.json()["outputs"][0]["data"] == [number]  # from now on
            stop.set()
        assert set(marks) == good
        assert marks[-1] == max(good)


ITEMS = """
import headway

class Slow(headway.Model[str, str]):
    def prepare(self, raw: str) -> str:
        return raw.strip()

    def predict(self, items: list[str]) -> list[str]:
        return [f"{item} {mark}" for item in items]

    def stream(self, items: list[str]):
        for letter in range(3):
            yield [str(letter) for item in items]
        yield [headway.END for item in items]
"""


@pytest.mark.real_time
async def test_items_prepared_elsewhere_many_at_once_and_streams_survive_reloads(
    models: Path,
) -> None:
    def write(mark: int) -> None:
        folder = models / "m" / "1"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.py").write_text(ITEMS.replace("{mark}", str(mark)))

    write(0)
    with repository(models) as server:
        stop = asyncio.Event()
        seen: set[str] = set()

        async def ask(path: str, body: Any) -> None:
            async with httpx.AsyncClient(base_url=server.url, timeout=WAIT_S) as client:
                while not stop.is_set():
                    answer = await client.post(path, json=body)
                    assert answer.status_code == 200, answer.text
                    assert "error" not in answer.text, answer.text
                    seen.add(answer.text)

        many = {"items": [f"{number}" for number in range(100)]}
        inputs = [{"name": "item", "shape": [40], "datatype": "BYTES", "data": ["a"] * 40}]
        name = server.http.get("/v2/models/m").json()["inputs"][0]["name"]
        inputs[0]["name"] = name
        async with asyncio.TaskGroup() as asking:
            asking.create_task(ask("/v1/predict/m", many))
            asking.create_task(ask("/v1/predict/m", " one "))
            asking.create_task(ask("/v2/models/m/infer", {"inputs": inputs}))
            asking.create_task(ask("/v2/models/m/generate_stream", {"text_input": "x"}))
            async with httpx.AsyncClient(base_url=server.url, timeout=WAIT_S) as operator:
                for mark in range(1, 9):
                    write(mark)
                    answer = await operator.post("/admin/models/m/reload")
                    assert answer.status_code == 200, answer.text
            stop.set()
        assert any("one 8" in text for text in seen) or any('"one 7' in text for text in seen)


# ---- on request


def test_a_sleeping_model_is_loaded_once_for_all_who_ask_and_sleeps_again(
    models: Path, tmp_path: Path, kind: str
) -> None:
    loads = tmp_path / "loads"
    count = f"pathlib.Path({str(loads)!r}).open('a').write('x')"
    write_version(models, "m", 1, 11, load=count)
    write_settings(models, "m", 'load = "on-request"\nunload_after_s = 0.3\nwarm_up = false')
    with repository(models) as server:
        client = Client(server, kind)
        assert client.triton.is_server_ready()
        assert client.triton.is_model_ready("m")
        assert client.index() == {("m", "1"): ("UNAVAILABLE", "loads on the first request")}
        assert not loads.exists()
        marks: list[int] = []
        callers = [
            threading.Thread(target=lambda: marks.append(Client(server, kind).mark()))
            for _ in range(8)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert marks == [11] * 8
        assert loads.read_text() == "x"
        until(lambda: client.index()["m", "1"][0] == "UNAVAILABLE")
        assert client.mark() == 11
        assert loads.read_text() == "xx"
        metadata = server.http.get("/v2/models/m").json()
        assert metadata["inputs"][0]["name"] == "x"


def test_who_cannot_wait_for_the_load_is_told_so(models: Path, tmp_path: Path) -> None:
    gate = tmp_path / "open"
    os.mkfifo(gate)
    write_version(models, "m", 1, 11, load=f"open({str(gate)!r}).close()")  # waits for a writer
    write_settings(models, "m", 'load = "on-request"\nmax_queue = 64')
    with repository(models) as server:
        body = BODY | {"parameters": {"timeout": 100_000}}
        assert server.http.post("/v2/models/m/infer", json=body).status_code == 504
        for path in ("/v1/predict/m", "/v1/embeddings"):
            sent: Any = [0.0] if "predict" in path else {"model": "m", "input": "x"}
            headers = {"Headway-Timeout-Ms": "50"}
            assert server.http.post(path, json=sent, headers=headers).status_code == 504
        triton = Client(server, "grpc")
        assert "DEADLINE_EXCEEDED" in refused(lambda: triton.mark(client_timeout=0.2))
        assert "DEADLINE_EXCEEDED" in refused(lambda: triton.mark(timeout=50_000))
        gate.open("w").close()
        assert triton.mark() == 11


def test_a_sleeping_model_that_cannot_be_loaded_says_so_and_when_to_come_back(
    models: Path, kind: str
) -> None:
    write_version(models, "m", 1, 11, load="raise ValueError('never')")
    write_settings(models, "m", 'load = "on-request"')
    with repository(models) as server:
        client = Client(server, kind)
        for _ in range(3):
            assert "could not be loaded" in refused(client.mark)
        assert client.index()["m", "1"] == ("UNAVAILABLE", "ValueError: never")
        server.log.wait_for("cannot be loaded")
        assert server.log.text.count("cannot be loaded") == 1


# ---- watching


def test_watching_follows_what_happens_in_the_folder(models: Path) -> None:
    write_version(models, "m", 1, 11)
    with repository(models, "--watch", "--watch-every-s", "0.05") as server:
        client = Client(server, "http")
        assert client.mark() == 11
        write_version(models, "m", 2, 22)
        until(lambda: client.mark() == 22)
        write_version(models, "m", 2, 23)
        until(lambda: client.mark() == 23)
        write_version(models, "m", 3, 33, load="1 / 0")
        until(lambda: "ZeroDivisionError" in client.index().get(("m", "3"), ("", ""))[1])
        assert client.mark() == 23
        (models / "m" / "3").rename(models.parent / "gone")
        until(lambda: ("m", "3") not in client.index())
        assert client.mark() == 23
        write_settings(models, "m", "versions.listed = [1]")
        until(lambda: client.mark() == 11)
        write_settings(models, "m", "versions.listed = 1")
        until(lambda: "[versions] listed: a list is expected, not 1" in client.index()["m", "1"][1])
        assert client.mark() == 11  # a mistake changes nothing
        write_version(models, "new", 1, 44)
        until(lambda: ("new", "1") in client.index())
        until(lambda: client.index()["new", "1"][0] == "READY")
        assert client.mark("new") == 44
        (models / "new").rename(models.parent / "taken")
        until(lambda: ("new", "1") not in client.index())
        assert "no model 'new'" in refused(lambda: client.mark("new"))


# ---- doors


def test_nothing_outside_the_repository_is_served(models: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write_version(outside, "m", 1, 11)
    write_version(models, "good", 1, 22)
    (models / "linked").symlink_to(outside / "m")
    (models / "version").mkdir()
    (models / "version" / "1").symlink_to(outside / "m" / "1")
    (models / "file" / "1").mkdir(parents=True)
    (models / "file" / "1" / "model.py").symlink_to(outside / "m" / "1" / "model.py")
    (models / "inside" / "1").mkdir(parents=True)
    (models / "inside" / "1" / "model.py").symlink_to(models / "good" / "1" / "model.py")
    with repository(models) as server:
        client = Client(server, "http")
        assert client.mark("good") == client.mark("inside") == 22
        index = client.index()
        for name, version in (("linked", ""), ("version", "1"), ("file", "1")):
            state, reason = index[name, version]
            assert state == "UNAVAILABLE"
            assert "leads outside the repository" in reason
        over_grpc = Client(server, "grpc").triton
        for name in ("../outside/m", "..", ".", "good/../good", "/etc", "good/1", "goo\0d"):
            path = f"/v2/repository/models/{quote(name, safe='')}/load"
            assert server.http.post(path).status_code == 404
            assert "no model" in refused(lambda name=name: over_grpc.load_model(name))


def test_pickles_are_refused_with_a_way_out(models: Path) -> None:
    (models / "p" / "1").mkdir(parents=True)
    (models / "p" / "1" / "model.pkl").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    write_version(models, "good", 1, 1)
    with repository(models) as server:
        reason = Client(server, "http").index()["p", "1"][1]
        assert "reads no pickles" in reason
        assert "safetensors" in reason
    assert not (models.parent / "pwned").exists()


# ---- starting and stopping


@contextmanager
def starting(root: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A server whose ports are open, whatever its models do."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [*COMMAND, str(root), "--port", str(port), "--grpc-port", "-1", "--admin-without-key"],
        stderr=subprocess.PIPE,
        text=True,
    )
    url = f"http://127.0.0.1:{port}"

    def is_live() -> bool:
        try:
            return httpx.get(f"{url}/v2/health/live").status_code == 200
        except httpx.TransportError:
            return False

    try:
        until(is_live)
        yield process, url
    finally:
        process.kill()
        process.communicate(timeout=30)


def test_live_at_once_ready_when_loaded_and_stopped_in_the_middle_of_a_load(models: Path) -> None:
    write_version(models, "m", 1, 11, load="import threading; threading.Event().wait()")
    with starting(models) as (process, url):
        assert httpx.get(f"{url}/v2/health/ready").status_code == 503
        answer = httpx.post(f"{url}/v1/predict/m", json=[0.0])
        assert answer.status_code == 503
        assert "retry-after" in answer.headers
        until(lambda: httpx.get(f"{url}/admin/models").json()["models"][0]["state"] == "LOADING")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=WAIT_S) == 0


def test_a_chat_without_model_is_told_to_come_back_while_the_only_one_loads(models: Path) -> None:
    write_version(models, "m", 1, 11, load="import threading; threading.Event().wait()")
    chat = {"messages": [{"role": "user", "content": "Hello"}]}
    with starting(models) as (_, url):
        for more in ({}, {"model": "m"}):
            answer = httpx.post(f"{url}/v1/chat/completions", json={**chat, **more})
            assert (answer.status_code, "retry-after" in answer.headers) == (503, True), answer.text


def test_killed_in_the_middle_of_a_load_it_starts_again_as_if_nothing_had_been(
    models: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "open"
    line = f"import threading\n        if not pathlib.Path({str(gate)!r}).exists(): "
    write_version(models, "m", 1, 11, load=line + "threading.Event().wait()")
    with starting(models) as (process, url):
        until(lambda: httpx.get(f"{url}/admin/models").json()["models"][0]["state"] == "LOADING")
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=WAIT_S)
    gate.touch()
    with repository(models) as server:
        assert Client(server, "http").mark() == 11
