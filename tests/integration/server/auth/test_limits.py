"""How much one request and one address may have, over HTTP and gRPC."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import numpy
import pytest
from http_client import Client, on_both_loops, serving
from real_server import Server, served

from headway.server.app import App
from headway.server.service.routes import Route
from headway.wire.messages import Request, Response

TOML = """
[server]
port = 0
grpc_port = 0
max_request_rows = 10
max_tensor_elements = 400
[[models]]
name = "double"
target = "served_models:Double"
[[models]]
name = "upper"
target = "served_models:Upper"
[[models]]
name = "gate"
target = "served_models:Gate"
warm_up = false
max_batch_size = 1
timeout_ms = 300
[[models]]
name = "gatekeeper"
target = "served_models:Gatekeeper"
warm_up = false
max_batch_size = 1
"""


HANGING = """
[server]
port = 0
grpc_port = -1
[[models]]
name = "hanging"
target = "served_models:Gate"
warm_up = false
execute_timeout_ms = 200
[[models]]
name = "gatekeeper"
target = "served_models:Gatekeeper"
warm_up = false
"""


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("limited")
    (folder / "headway.toml").write_text(TOML)
    with served(folder, "headway.toml") as server:
        yield server


def infer(server: Server, rows: int) -> httpx.Response:
    data = [0.0] * (rows * 16)
    inputs = [{"name": "x", "datatype": "FP32", "shape": [rows, 16], "data": data}]
    return server.http.post("/v2/models/double/infer", json={"inputs": inputs})


def test_as_many_rows_as_are_allowed_and_no_more(limited: Server) -> None:
    assert infer(limited, 10).status_code == 200
    answer = infer(limited, 11)
    assert answer.status_code == 413
    assert answer.json() == {"error": "11 rows in one request; at most 10 are allowed"}


def test_a_list_of_items_is_rows_too(limited: Server) -> None:
    path = "/v1/predict/upper"
    assert limited.http.post(path, json={"items": ["a"] * 10}).json()["results"] == ["A"] * 10
    assert limited.http.post(path, json={"items": ["a"] * 11}).status_code == 413


def test_more_elements_than_allowed_are_refused_by_shape_and_by_data(limited: Server) -> None:
    message = {"error": "the tensors have more than 400 elements"}
    for shape, count in ([26, 16], 416), ([1, 16], 1000), ([1, 100_000_000_000], 500):
        body = {"name": "x", "datatype": "FP32", "shape": shape, "data": [0] * count}
        answer = limited.http.post("/v2/models/double/infer", json={"inputs": [body]})
        assert (answer.status_code, answer.json()) == (413, message)


def test_grpc_has_the_same_limits(limited: Server) -> None:
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    with triton.InferenceServerClient(limited.grpc) as client:
        for rows, message in ((10, ""), (11, "11 rows in one request"), (26, "400 elements")):
            x = triton.InferInput("x", [rows, 16], "FP32")
            x.set_data_from_numpy(numpy.zeros((rows, 16), numpy.float32))
            if not message:
                assert client.infer("double", [x]).as_numpy("y").shape == (10, 16)
                continue
            with pytest.raises(InferenceServerException, match=message):
                client.infer("double", [x])


def test_what_waits_too_long_is_refused_and_never_runs(limited: Server) -> None:
    path = "/v1/predict/gate"
    with limited.closed_gate() as wait_running, ThreadPoolExecutor() as threads:
        first = threads.submit(httpx.post, limited.url + path, json=1.0, timeout=30)
        wait_running()
        late = limited.http.post(path, json=2.0)
        assert late.status_code == 504
        # The first one's time is up, too, although its batch runs on.
        assert first.result().status_code == 504
        limited.keeper("open")
        assert limited.http.post(path, json=3.0).json() == 3.0
    stats = limited.http.get("/v2/models/gate/stats").json()["model_stats"][0]
    assert stats["execution_count"] == 2  # the first and the third


def test_a_batch_that_runs_too_long_fails_and_the_model_is_not_ready_until_it_is_back(
    tmp_path: Path,
) -> None:
    (tmp_path / "headway.toml").write_text(HANGING)
    with served(tmp_path, "headway.toml") as server:
        with server.closed_gate():
            answer = server.http.post("/v1/predict/hanging", json=1.0)
            assert answer.status_code == 500
            assert answer.json() == {"error": "hanging did not answer within 0.2 s"}
            assert server.http.get("/v2/models/hanging/ready").status_code == 503
            assert server.http.get("/v2/health/ready").status_code == 503
        server.log.wait_for("hanging answers again")
        assert server.http.post("/v1/predict/hanging", json=1.0).json() == 1.0


async def answer(request: Request) -> Response:
    return Response(b"1")


def small_app() -> App:
    app = App()
    app.add(Route("GET", "/x", answer))
    return app


async def connect(port: int, source: str) -> Client:
    return Client(
        *await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0)),
    )


@on_both_loops
async def test_one_address_cannot_take_all_connections() -> None:
    async with serving(small_app(), max_connections_per_address=2) as server:
        greedy = [await connect(server.port, "127.0.0.2") for _ in range(3)]
        other = await connect(server.port, "127.0.0.1")
        assert [(await each.get("/x")).status for each in (*greedy[:2], other)] == [200] * 3
        refused = await greedy[2].reply()
        assert refused.status == 503
        assert refused.headers["retry-after"] == "1"
        assert b"one address may have 2" in refused.body
        for each in greedy:
            await each.leave()
        for _ in range(10):  # a few turns of the loop, in which it notices
            await other.get("/x")
        again = await connect(server.port, "127.0.0.2")
        assert (await again.get("/x")).status == 200
        for each in (again, other):
            await each.leave()


@on_both_loops
async def test_far_too_many_are_cut_without_a_word() -> None:
    async with serving(small_app(), max_connections=1) as server:
        clients = [await connect(server.port, "127.0.0.1") for _ in range(300)]
        assert (await clients[0].get("/x")).status == 200
        with suppress(ConnectionError):
            assert await clients[-1].rest() == b""
        for each in clients:
            await each.leave()
