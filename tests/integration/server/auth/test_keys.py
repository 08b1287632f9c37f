"""A real server with keys, and the real clients with and without theirs."""

import contextlib
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy
import openai
import pytest
from real_server import Server, served

from headway.cli.keys import stanza_of
from headway.server.auth.keys import new_key

TOML = """
[server]
port = 0
grpc_port = 0
keys_file = "keys.toml"
""" + "".join(
    f'[[models]]\nname = "{name}"\ntarget = "served_models:{kind}"\n{more}\n'
    for name, kind, more in [
        ("double", "Double", ""),
        ("upper", "Upper", ""),
        ("letters", "Letters", ""),
        ("gate", "Gate", "warm_up = false\nmax_batch_size = 1"),
        ("gatekeeper", "Gatekeeper", "warm_up = false\nmax_batch_size = 1"),
    ]
)
RIGHTS: dict[str, dict[str, Any]] = {
    "free": {},
    "upper-only": {"models": ["upper"]},
    "slow": {"requests_per_s": 0.001},
    "narrow": {"rows_per_s": 3.0},
    "single": {"concurrent": 1},
    "watcher": {"rights": ["metrics"]},
    "boss": {"rights": ["admin"]},
    "upper-boss": {"rights": ["admin"], "models": ["upper"]},
}


class Keyed(NamedTuple):
    server: Server
    keys: dict[str, str]
    file: Path

    @contextlib.contextmanager
    def http(self, name: str) -> Iterator[httpx.Client]:
        headers = {"Authorization": f"Bearer {self.keys[name]}"}
        with httpx.Client(base_url=self.server.url, headers=headers, timeout=10) as client:
            yield client


def write_keys(file: Path, rights: dict[str, dict[str, Any]], keys: dict[str, str]) -> None:
    from headway.server.auth.keys import hash_of

    tables = [
        {"id": name, "hash": hash_of(keys[name]), "tenant": name, **settings}
        for name, settings in rights.items()
    ]
    file.write_text("\n".join(map(stanza_of, tables)))


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "headway.toml").write_text(TOML)
    keys = {name: new_key().key for name in RIGHTS}
    write_keys(folder / "keys.toml", RIGHTS, keys)
    with served(folder, "headway.toml") as server:
        yield Keyed(server, keys, folder / "keys.toml")


# --- who one is


def test_without_a_key_there_is_health_and_nothing_else(keyed: Keyed) -> None:
    http = keyed.server.http
    assert http.get("/v2/health/ready").status_code == 200
    assert http.get("/v2/models/upper/ready").status_code == 200
    for method, path in [
        ("POST", "/v1/predict/upper"),
        ("POST", "/v1/embeddings"),
        ("GET", "/v2/models"),
        ("GET", "/openapi.json"),
        ("POST", "/admin/drain"),
        ("POST", "/v2/repository/models/upper/unload"),
    ]:
        answer = http.request(method, path, content=b'"a"' if method == "POST" else None)
        assert answer.status_code == 401, path
        assert answer.headers["WWW-Authenticate"] == 'Bearer realm="headway"'
        assert "key" in answer.text


def test_the_page_is_open_and_what_it_describes_takes_a_key(keyed: Keyed) -> None:
    page = keyed.server.http.get("/docs")
    assert (page.status_code, "upper" in page.text) == (200, False)
    assert keyed.server.http.get("/openapi.json").status_code == 401
    with keyed.http("upper-only") as client:
        document = client.get("/openapi.json").json()
    assert document["security"] == [{"bearer": []}, {"header": []}]
    assert {"401", "403"} <= set(document["paths"]["/v1/predict/upper"]["post"]["responses"])
    assert document["paths"]["/v2/health/live"]["get"]["security"] == []
    assert "/v1/predict/double" not in document["paths"]


@pytest.mark.parametrize(
    "path", ["absent/ready", "upper/versions/9/ready", "absent/versions/1/ready"]
)
def test_without_a_key_no_model_is_named_that_was_not_asked_for(keyed: Keyed, path: str) -> None:
    answer = keyed.server.http.get(f"/v2/models/{path}")
    assert answer.status_code == 404
    name, version = path.split("/")[0], " version" if "versions" in path else ""
    told = answer.json()["error"]
    assert told.startswith(f"Request for unknown model: no model '{name}'{version}")
    assert not any(other in answer.text for other in ("double", "letters", "gate"))


UNKNOWN = (
    "Request for unknown model: no model 'upper' version 9; the model's metadata list its versions"
)


def test_a_key_learns_only_names_that_it_may_use(keyed: Keyed) -> None:
    with keyed.http("upper-only") as client:
        for method, path in [
            ("GET", "/v2/models/upper/versions/9"),
            ("GET", "/v2/models/upper/versions/9/ready"),
            ("POST", "/v2/models/upper/versions/9/infer"),
            ("GET", "/v2/models/upper/versions/9/stats"),
            ("GET", "/v2/models/upper/versions/9/config"),
        ]:
            answer = client.request(method, path, content=b"{}" if method == "POST" else None)
            assert answer.status_code == 404, path
            assert answer.json() == {"error": UNKNOWN}


def test_over_grpc_a_key_learns_only_names_that_it_may_use(keyed: Keyed) -> None:
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    mine = {"authorization": f"Bearer {keyed.keys['upper-only']}"}
    with triton.InferenceServerClient(keyed.server.grpc) as client:
        for ask in (client.get_model_metadata, client.get_model_config):
            with pytest.raises(InferenceServerException) as refused:
                ask("upper", "9", headers=mine)
            assert refused.value.message() == UNKNOWN
        assert not client.is_model_ready("absent")


def test_a_key_changes_only_models_that_it_may_use(keyed: Keyed) -> None:
    with keyed.http("upper-boss") as client:
        for what in ("load", "reload", "unload"):
            answer = client.post(f"/admin/models/double/{what}")
            assert answer.status_code == 403
            assert "may not use model 'double'" in answer.text
        assert client.post("/admin/models/upper/load").status_code == 200


def test_a_wrong_key_is_refused(keyed: Keyed) -> None:
    for headers in ({"Authorization": "Bearer hw-wrong"}, {"X-Api-Key": "x"}):
        answer = keyed.server.http.post("/v1/predict/upper", json="a", headers=headers)
        assert (answer.status_code, answer.json()) == (401, {"error": "the API key is not known"})


def test_a_key_in_either_header_is_served(keyed: Keyed) -> None:
    key = keyed.keys["free"]
    for headers in ({"Authorization": f"Bearer {key}"}, {"X-Api-Key": key}):
        answer = keyed.server.http.post("/v1/predict/upper", json="a", headers=headers)
        assert (answer.status_code, answer.json()) == (200, "A")


def test_a_long_body_of_nobody_is_not_read(keyed: Keyed) -> None:
    head = "POST /v1/predict/upper HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n"
    for more in ("", "Expect: 100-continue\r\n", "X-Api-Key: wrong\r\n"):
        with socket.create_connection(("127.0.0.1", keyed.server.port), timeout=10) as client:
            client.sendall(f"{head}{more}\r\n".encode())  # and not one byte of the body
            answer = client.makefile("rb").read()
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b"WWW-Authenticate: Bearer" in answer


def test_the_openai_client_works_and_hears_what_is_wrong(keyed: Keyed) -> None:
    base = f"{keyed.server.url}/v1"
    with openai.OpenAI(base_url=base, api_key=keyed.keys["free"], max_retries=0) as client:
        assert "upper" in [model.id for model in client.models.list()]
    with (
        openai.OpenAI(base_url=base, api_key="hw-wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()
    with (
        openai.OpenAI(base_url=base, api_key=keyed.keys["watcher"], max_retries=0) as client,
        pytest.raises(openai.PermissionDeniedError),
    ):
        client.embeddings.create(model="upper", input="a")


# --- what one may


def test_a_key_sees_and_uses_its_models_only(keyed: Keyed) -> None:
    with keyed.http("upper-only") as http:
        assert http.get("/v2/models").json() == {"models": ["upper"]}
        assert http.post("/v1/predict/upper", json="a").json() == "A"
        for path in ("/v1/predict/double", "/v1/predict/absent"):
            answer = http.post(path, json="a")
            assert answer.status_code == 403
            assert "'upper-only' may not use model" in answer.text


def test_only_admin_administrates(keyed: Keyed) -> None:
    for name, status in (("free", 403), ("watcher", 403), ("boss", 200)):
        with keyed.http(name) as http:
            assert http.get("/admin/drain").status_code == status


def test_metrics_take_a_right_of_their_own(keyed: Keyed) -> None:
    assert keyed.server.http.get("/metrics").status_code == 401
    for name, status in (("free", 403), ("watcher", 200), ("boss", 200)):
        with keyed.http(name) as http:
            assert http.get("/metrics").status_code == status


def test_draining_is_not_ready_and_answers_all_the_same(keyed: Keyed) -> None:
    with keyed.http("boss") as boss:
        assert boss.post("/admin/drain").json() == {"draining": True}
        try:
            unready = boss.get("/v2/health/ready")
            assert (unready.status_code, unready.json()["error"]) == (503, "the server is draining")
            assert boss.get("/v2/health/live").status_code == 200
            with keyed.http("free") as http:
                assert http.post("/v1/predict/upper", json="a").json() == "A"
        finally:
            boss.post("/admin/drain", json={"draining": False})
        assert boss.get("/v2/health/ready").status_code == 200
        assert boss.post("/admin/drain", json={"drain": 1}).status_code == 400


# --- how much


def test_too_many_requests_a_second_are_429_with_an_honest_time(keyed: Keyed) -> None:
    with keyed.http("slow") as http:
        assert http.post("/v1/predict/upper", json="a").status_code == 200
        answer = http.post("/v1/predict/upper", json="a")
        assert answer.status_code == 429
        assert 900 <= int(answer.headers["Retry-After"]) <= 1000
        assert "0.001 requests a second" in answer.text
        assert http.get("/v2/models").status_code == 200  # looking is free


def test_rows_are_counted_whatever_the_route(keyed: Keyed) -> None:
    with keyed.http("narrow") as http:
        items = {"items": ["a", "b", "c", "d", "e", "f", "g"]}
        results = http.post("/v1/predict/upper", json=items).json()["results"]
        assert results == ["A", "B", "C", "D", "E", "F", "G"]  # and a debt of four
        inputs = [{"name": "x", "datatype": "FP32", "shape": [9, 16], "data": [0.0] * 144}]
        answer = http.post("/v2/models/double/infer", json={"inputs": inputs})
        assert answer.status_code == 429
        assert "3 rows a second" in answer.text


def test_too_many_at_once_are_429_until_one_ends(keyed: Keyed) -> None:
    with keyed.http("free") as free, keyed.http("single") as http, keyed.http("single") as second:
        assert free.post("/v1/predict/gatekeeper", json="close").json() is True
        answers: list[httpx.Response] = []
        one = threading.Thread(
            target=lambda: answers.append(http.post("/v1/predict/gate", json=1.0))
        )
        one.start()
        assert free.post("/v1/predict/gatekeeper", json="wait").json() is True
        try:
            refused = second.post("/v1/predict/upper", json="a")
            assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        finally:
            free.post("/v1/predict/gatekeeper", json="open")
            one.join()
        assert [answer.status_code for answer in answers] == [200]
        assert second.post("/v1/predict/upper", json="a").status_code == 200


def test_a_stream_counts_until_it_ends_and_no_longer(keyed: Keyed) -> None:
    with keyed.http("single") as http:
        for _ in range(3):
            body = {"text_input": "abc"}
            answer = http.post("/v2/models/letters/generate_stream", json=body)
            assert answer.text.count("data:") == 3


# --- gRPC


def grpc_double(keyed: Keyed, name: str | None, rows: int = 1, model: str = "double") -> Any:
    import tritonclient.grpc as triton

    headers = {} if name is None else {"authorization": f"Bearer {keyed.keys[name]}"}
    with triton.InferenceServerClient(keyed.server.grpc) as client:
        x = triton.InferInput("x", [rows, 16], "FP32")
        x.set_data_from_numpy(numpy.ones((rows, 16), numpy.float32))
        return client.infer(model, [x], headers=headers).as_numpy("y")


@pytest.mark.parametrize(
    ("name", "model", "status"),
    [
        (None, "double", "UNAUTHENTICATED"),
        ("watcher", "double", "PERMISSION_DENIED"),
        ("upper-only", "double", "PERMISSION_DENIED"),
        ("free", "absent", "NOT_FOUND"),
    ],
)
def test_grpc_says_the_same(keyed: Keyed, name: str | None, model: str, status: str) -> None:
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException) as refused:
        grpc_double(keyed, name, model=model)
    assert status in str(refused.value.status())


def test_grpc_serves_whoever_may_and_health_is_open(keyed: Keyed) -> None:
    import tritonclient.grpc as triton

    assert grpc_double(keyed, "free", rows=2).tolist() == [[2.0] * 16] * 2
    with triton.InferenceServerClient(keyed.server.grpc) as client:
        assert client.is_server_ready()
        assert client.is_model_ready("double")


def test_grpc_counts_requests_and_rows(keyed: Keyed) -> None:
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException) as refused:
        [grpc_double(keyed, "slow") for _ in range(2)]
    assert "RESOURCE_EXHAUSTED" in str(refused.value.status())


def test_grpc_streams_carry_the_key_too(keyed: Keyed) -> None:
    import queue

    import tritonclient.grpc as triton

    for name, is_served in (("free", True), ("upper-only", False)):
        answers: queue.Queue[Any] = queue.Queue()
        with triton.InferenceServerClient(keyed.server.grpc) as client:
            client.start_stream(
                lambda result, error, answers=answers: answers.put((result, error)),
                headers={"x-api-key": keyed.keys[name]},
            )
            x = triton.InferInput("x", [1, 16], "FP32")
            x.set_data_from_numpy(numpy.ones((1, 16), numpy.float32))
            client.async_stream_infer("double", [x])
            result, error = answers.get(timeout=10)
            client.stop_stream()
        assert (error is None) is is_served, error
        assert is_served or "may not use model" in str(error)
        assert not is_served or result.as_numpy("y").tolist() == [[2.0] * 16]


def test_only_admin_loads_models_over_grpc(keyed: Keyed) -> None:
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    with (
        triton.InferenceServerClient(keyed.server.grpc) as client,
        pytest.raises(InferenceServerException, match="lacks the right 'admin'"),
    ):
        client.unload_model("upper", headers={"x-api-key": keyed.keys["free"]})


# --- keys come and go


def test_a_new_key_works_after_sighup_and_a_taken_one_does_not(tmp_path: Path) -> None:
    (tmp_path / "headway.toml").write_text(TOML)
    keys = {name: new_key().key for name in ("old", "new", "kept")}
    file = tmp_path / "keys.toml"
    write_keys(file, {"old": {}, "kept": {"requests_per_s": 0.001}}, keys)

    def status(name: str) -> int:
        headers = {"X-Api-Key": keys[name]}
        return server.http.post("/v1/predict/upper", json="a", headers=headers).status_code

    with served(tmp_path, "headway.toml") as server:
        assert [status("old"), status("new"), status("kept")] == [200, 401, 200]
        write_keys(file, {"new": {}, "kept": {"requests_per_s": 0.001}}, keys)
        server.process.send_signal(signal.SIGHUP)
        server.log.wait_for("read again: 2 changes")
        assert [status("old"), status("new"), status("kept")] == [401, 200, 429]
        file.write_text("[[keys]]\nid = 3")
        server.process.send_signal(signal.SIGHUP)
        server.log.wait_for("the configuration stays as it was")
        assert status("new") == 200


def test_a_key_file_that_was_emptied_leaves_no_key_valid(tmp_path: Path) -> None:
    (tmp_path / "headway.toml").write_text(TOML)
    keys = {name: new_key().key for name in ("old", "new")}
    file = tmp_path / "keys.toml"
    write_keys(file, {"old": {}}, keys)

    def status(name: str) -> int:
        headers = {"X-Api-Key": keys[name]}
        return server.http.post("/v1/predict/upper", json="a", headers=headers).status_code

    with served(tmp_path, "headway.toml") as server:
        assert status("old") == 200
        file.write_text("")
        server.process.send_signal(signal.SIGHUP)
        server.log.wait_for("no keys are left")
        assert status("old") == 401
        assert server.http.post("/v1/predict/upper", json="a").status_code == 401
        write_keys(file, {"new": {}}, keys)
        server.process.send_signal(signal.SIGHUP)
        server.log.wait_for("read again: 1 changes")
        assert [status("old"), status("new")] == [401, 200]


def test_keys_from_the_environment(tmp_path: Path) -> None:
    key = new_key()
    arguments = ("served_models:Upper", "--port", "0", "--grpc-port", "-1")
    with served(tmp_path, *arguments, HEADWAY_API_KEYS=f"acme={key.hash}") as server:
        assert server.http.post("/v1/predict/upper", json="a").status_code == 401
        headers = {"Authorization": f"Bearer {key.key}"}
        assert server.http.post("/v1/predict/upper", json="a", headers=headers).json() == "A"


def test_the_command_makes_keys_that_the_server_takes(tmp_path: Path) -> None:
    def headway(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "headway", *arguments],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout

    said = headway("keys", "new", "--tenant", "acme", "--weight", "2", "--file", "keys.toml")
    key = next(line.strip() for line in said.splitlines() if line.startswith("  hw-"))
    assert key not in (tmp_path / "keys.toml").read_text()
    assert (tmp_path / "keys.toml").stat().st_mode & 0o077 == 0
    headway("keys", "new", "--tenant", "ops", "--rights", "admin", "--file", "keys.toml")
    assert "acme ×2; infer; all models; no quota" in headway("keys", "list", "keys.toml")
    (tmp_path / "headway.toml").write_text(TOML)
    with served(tmp_path, "headway.toml") as server:
        headers = {"Authorization": f"Bearer {key}"}
        assert server.http.post("/v1/predict/upper", json="a", headers=headers).json() == "A"
        config = server.http.get("/v2/models/upper/config", headers=headers)
        assert config.status_code == 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no [[keys]]"),
        (
            '[[keys]]\nid = "a"\nhash = "plain"\ntenant = "t"',
            "hash: a hash as `headway keys new` prints it is expected",
        ),
        ('[[keys]]\nid = "a"\ntenant = "t"', "hash is missing"),
    ],
)
def test_a_file_of_keys_that_is_wrong_stops_the_start(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "keys.toml").write_text(text)
    (tmp_path / "headway.toml").write_text(TOML)
    done = subprocess.run(
        [sys.executable, "-m", "headway", "serve", "headway.toml"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert message in done.stderr
