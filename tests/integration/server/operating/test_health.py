"""Health says what is: a model that hangs, has crashed or could not be loaded, on every stack."""

import asyncio
import queue
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

pytest.importorskip("grpc")
pytest.importorskip("uvicorn")
pytest.importorskip("grpc_health.v1.health_pb2")

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from real_server import Server, served
from served_models import MOST_S, Gate, Words
from stacks import Stacks, Watched

from compiling import replace_in_scheduler
from headway.core.lifecycle.health import Health
from headway.errors import ModelFailed
from headway.hosting.registry import Ask
from headway.runtime.events import BatchFinished, Event
from headway.server import notify
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc.calls import SERVICE

LIMIT_MS = 100.0
STACKS = ["http", "asgi", "grpc"]
on_every_stack = pytest.mark.parametrize("stack", STACKS)


class Told(NamedTuple):
    """What a stack says: of the server, of model `gate`, and (gRPC) in the health protocol."""

    live: bool
    ready: bool
    model: bool


WELL = Told(live=True, ready=True, model=True)
STUCK = Told(live=True, ready=False, model=False)
DEAD = Told(live=False, ready=False, model=False)


def told(stacks: Stacks, stack: str) -> Told:
    address = stacks.addresses.of(stack)
    return _told_http(f"http://{address}") if stack in ("http", "asgi") else _told_grpc(address)


def _told_http(url: str) -> Told:
    paths = ("health/live", "health/ready", "models/gate/ready")
    found = [httpx.get(f"{url}/v2/{path}").status_code for path in paths]
    assert set(found) <= {200, 503}
    return Told(*(status == 200 for status in found))


def _told_grpc(address: str) -> Told:
    with grpc.insecure_channel(address) as channel:

        def ask(method: str, request: Any, answer: Any) -> Any:
            call = channel.unary_unary(
                f"/{SERVICE.full_name}/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
            return call(request, timeout=MOST_S)

        found = Told(
            ask("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse).live,
            ask("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse).ready,
            ask("ModelReady", pb.ModelReadyRequest(name="gate"), pb.ModelReadyResponse).ready,
        )
        check = health_pb2_grpc.HealthStub(channel).Check
        for service, is_ready in (("", found.ready), ("gate", found.model)):
            status = check(health_pb2.HealthCheckRequest(service=service), timeout=MOST_S).status
            assert (status == health_pb2.HealthCheckResponse.SERVING) is is_ready
    return found


class Sick(Stacks):
    """One model with a gate, and perhaps a healthy one beside it."""

    def __init__(self, *, has_others: bool) -> None:
        super().__init__()
        self._has_others = has_others
        self._finished: queue.Queue[None] = queue.Queue()

    @asynccontextmanager
    async def _models(self) -> AsyncIterator[None]:
        models = [Watched("gate", Words(Gate()), execute_timeout_ms=LIMIT_MS)]
        if self._has_others:
            models.append(Watched("words", Words()))
        for model in models:
            self.registry.add(model)
            await model.start()
            model.batcher.observe(self._note)
        yield
        await asyncio.gather(*(model.close(drain_s=1) for model in models))

    def _note(self, event: Event) -> None:
        if isinstance(event, BatchFinished) and event.model == "gate":
            self._finished.put(None)

    @contextmanager
    def stuck(self) -> Iterator[None]:
        model = self.model("gate")
        assert model.gate is not None
        with model.gate.closed():
            with pytest.raises(ModelFailed, match=r"did not answer within 0\.1 s"):
                self.run(lambda: model.predict("first", Ask())).result(MOST_S)
            yield

    def wait_back(self) -> None:
        """Until the stuck batch has come back."""
        self._finished.get(timeout=MOST_S)


@pytest.fixture(scope="module")
def several() -> Iterator[Sick]:
    with Sick(has_others=True) as stacks:
        yield stacks


@pytest.fixture(scope="module")
def alone() -> Iterator[Sick]:
    with Sick(has_others=False) as stacks:
        yield stacks


@on_every_stack
def test_a_stuck_model_is_not_ready_and_the_server_lives_while_others_answer(
    several: Sick, stack: str
) -> None:
    assert told(several, stack) == WELL
    with several.stuck():
        assert told(several, stack) == STUCK
    several.wait_back()
    assert told(several, stack) == WELL


@on_every_stack
def test_where_nothing_completes_any_more_the_server_is_not_live(alone: Sick, stack: str) -> None:
    assert told(alone, stack) == WELL
    with alone.stuck():
        assert told(alone, stack) == DEAD
    alone.wait_back()
    assert told(alone, stack) == WELL


@on_every_stack
def test_a_crashed_scheduler_is_not_live(stack: str) -> None:
    with Sick(has_others=False) as stacks:
        model = stacks.model("gate")

        async def crash() -> None:
            def broken(*_: Any) -> None:
                raise RuntimeError("a bug")

            replace_in_scheduler(model.batcher, next_action=broken)
            with pytest.raises(Exception, match="crashed"):
                await model.predict("a", Ask())

        stacks.run(crash).result(MOST_S)
        assert model.health is Health.DEAD
        assert "a bug" in model.trouble
        assert told(stacks, stack) == DEAD


@pytest.mark.parametrize("service", ["", "gate", SERVICE.full_name])
def test_whoever_watches_is_told_of_each_change(several: Sick, service: str) -> None:
    serving, not_serving = (
        health_pb2.HealthCheckResponse.SERVING,
        health_pb2.HealthCheckResponse.NOT_SERVING,
    )
    with grpc.insecure_channel(several.addresses.of("grpc")) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        watch = health_pb2_grpc.HealthStub(channel).Watch(request, timeout=MOST_S)
        assert next(watch).status == serving
        with several.stuck():
            assert next(watch).status == not_serving
        several.wait_back()
        assert next(watch).status == serving
        watch.cancel()
        unknown = health_pb2.HealthCheckRequest(service="absent")
        watch = health_pb2_grpc.HealthStub(channel).Watch(unknown, timeout=MOST_S)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        watch.cancel()


def test_health_names_no_model_that_was_not_asked_for(several: Sick) -> None:
    with grpc.insecure_channel(several.addresses.of("grpc")) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        with pytest.raises(grpc.RpcError) as refused:
            check(health_pb2.HealthCheckRequest(service="absent"), timeout=MOST_S)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert refused.value.details() == "no model 'absent'"


# ---- real servers


TOML = """
[server]
port = 0
grpc_port = 0
admin_without_key = true
drain_s = 0.5
"""


def write(folder: Path, *models: tuple[str, str, str]) -> None:
    tables = (
        f'[[models]]\nname = "{name}"\ntarget = "served_models:{kind}"\nwarm_up = false\n{more}\n'
        for name, kind, more in models
    )
    (folder / "headway.toml").write_text(TOML + "".join(tables))


def ready_metrics(server: Server) -> dict[str, str]:
    lines = server.http.get("/metrics").text.splitlines()
    found = (line.partition("} ") for line in lines if line.startswith("headway_model_ready{"))
    return {head.partition('model="')[2].partition('"')[0]: value for head, _, value in found}


def index(server: Server) -> dict[str, tuple[str, str]]:
    entries = server.http.post("/v2/repository/index").json()
    return {each["name"]: (each["state"], each["reason"]) for each in entries}


def _load_v2(server: Server, name: str) -> None:
    assert server.http.post(f"/v2/repository/models/{name}/load").status_code == 200


def _load_admin(server: Server, name: str) -> None:
    assert server.http.post(f"/admin/models/{name}/load").status_code == 200


def _load_grpc(server: Server, name: str) -> None:
    triton = pytest.importorskip("tritonclient.grpc")
    with triton.InferenceServerClient(server.grpc) as client:
        client.load_model(name)


LOADS: dict[str, Callable[[Server, str], None]] = {
    "v2": _load_v2,
    "admin": _load_admin,
    "grpc": _load_grpc,
}


def test_a_stuck_model_shows_everywhere_and_load_heals_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        ("stubborn", "Stubborn", f"execute_timeout_ms = {LIMIT_MS}"),
        ("double", "Double", ""),
    )
    with served(tmp_path, "headway.toml") as server:
        for load in LOADS.values():
            with ThreadPoolExecutor() as threads:
                asked = [
                    threads.submit(
                        httpx.post, f"{server.url}/v1/predict/stubborn", json=-1.0, timeout=30
                    )
                    for _ in range(3)
                ]
                assert {each.result().status_code for each in asked} <= {500, 503}
            assert server.http.get("/v2/health/live").status_code == 200
            assert server.http.get("/v2/health/ready").status_code == 503
            assert server.http.get("/v2/models/stubborn/ready").status_code == 503
            assert server.http.post("/v1/predict/stubborn", json=1.0).status_code == 503
            assert server.http.post("/v1/predict/double", json=[1.0] * 16).status_code == 200
            state, reason = index(server)["stubborn"]
            assert state == "UNAVAILABLE"
            assert "is stuck: a batch has been running for more than 0.1 s" in reason
            assert ready_metrics(server) == {"stubborn": "0", "double": "1"}
            load(server, "stubborn")
            assert server.http.post("/v1/predict/stubborn", json=1.0).json() == 1.0
            assert server.http.get("/v2/health/ready").status_code == 200
            assert index(server)["stubborn"] == ("READY", "")
            assert ready_metrics(server) == {"stubborn": "1", "double": "1"}


def test_a_crashed_scheduler_ends_the_process_with_an_error(tmp_path: Path) -> None:
    write(tmp_path, ("crashing", "Crashing", ""), ("double", "Double", ""))
    with served(tmp_path, "headway.toml", ends_with=1) as server:
        assert server.http.post("/v1/predict/crashing", json=1.0).json() == 1.0
        server.http.post("/v1/predict/crashing", json=-1.0)
        assert server.process.wait(30) == 1
        server.log.wait_for("headway: crashing crashed: RuntimeError: a bug")


def test_a_model_of_the_configuration_that_cannot_be_loaded_shows(tmp_path: Path) -> None:
    write(tmp_path, ("torn", "Unloadable", ""), ("double", "Double", ""))
    with served(tmp_path, "headway.toml") as server:
        assert server.http.get("/v2/health/live").status_code == 200
        assert server.http.get("/v2/health/ready").status_code == 503
        assert server.http.get("/v2/models").json() == {"models": ["double"]}
        assert ready_metrics(server) == {"torn": "0", "double": "1"}
        assert index(server)["torn"] == ("UNAVAILABLE", "OSError: torn")
        assert server.http.post("/v1/predict/torn", json=1.0).status_code == 503
        assert "Serving double\n" in server.log.text
        # An administrator unloads it: the server is ready with the others.
        assert server.http.post("/v2/repository/models/torn/unload").status_code == 200
        assert server.http.get("/v2/health/ready").status_code == 200


def test_a_worker_that_was_given_up_is_not_live_and_load_heals_it(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import os, headway\n"
        "class Frail(headway.Model[int, int]):\n"
        "    def predict(self, items: list[int]) -> list[int]:\n"
        "        if min(items) < 0: os._exit(1)\n"
        "        return items\n"
    )
    (tmp_path / "headway.toml").write_text(
        TOML + '[[models]]\nname = "frail"\ntarget = "app:Frail"\nworker = "process"\n'
        "warm_up = false\nmax_restarts = 0\n"
    )
    with served(tmp_path, "headway.toml") as server:
        assert server.http.post("/v1/predict/frail", json=1).json() == 1
        assert server.http.post("/v1/predict/frail", json=-1).status_code == 503
        assert server.http.get("/v2/health/live").status_code == 503
        assert server.http.get("/v2/health/ready").status_code == 503
        assert index(server)["frail"][0] == "UNAVAILABLE"
        assert ready_metrics(server) == {"frail": "0"}
        _load_v2(server, "frail")
        assert server.http.post("/v1/predict/frail", json=1).json() == 1
        assert server.http.get("/v2/health/live").status_code == 200
        assert ready_metrics(server) == {"frail": "1"}


# ---- systemd


async def test_systemds_watchdog_is_told_while_work_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On virtual time."""
    is_live = True
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "30000000")
        watchdog = notify.SystemdWatchdog(lambda: is_live)
        watchdog.start()
        await asyncio.sleep(25.0)
        assert [systemd.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        is_live = False
        await asyncio.sleep(100.0)
        with pytest.raises(BlockingIOError):
            systemd.recv(100)
        watchdog.stop()


@pytest.mark.parametrize("variables", [{}, {"WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}])
async def test_a_watchdog_that_is_not_for_this_process_is_not_told(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    watchdog = notify.SystemdWatchdog(pytest.fail)  # type: ignore[arg-type]
    watchdog.start()
    await asyncio.sleep(1.0)
