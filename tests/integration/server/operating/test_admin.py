"""The administrator's routes where there are no keys: shut, unless the operator opens them."""

import asyncio
from pathlib import Path

import httpx
import pytest
from real_server import Server, served

ADMIN = [
    ("GET", "/admin/drain"),
    ("POST", "/admin/drain"),
    ("POST", "/v2/repository/models/upper/load"),
    ("POST", "/v2/repository/models/upper/unload"),
    ("POST", "/v2/systemsharedmemory/unregister"),
]
FOREIGN = [
    {"Host": "rebound.example.org"},
    {"Origin": "https://evil.example.org"},
    {"Sec-Fetch-Site": "cross-site"},
    {"X-Forwarded-For": "10.0.0.7"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_web_page_or_a_proxy_is_not_the_administrator(
    server: Server, headers: dict[str, str]
) -> None:
    for method, path in ADMIN:
        answer = server.http.request(method, path, headers=headers)
        assert answer.status_code == 403, path
        assert any(
            each in answer.text
            for each in ("a key that has the right 'admin'", "--cors-origins", "--allowed-hosts")
        )
    answer = server.http.post("/v1/predict/upper", json="a", headers=headers)
    assert answer.status_code == (200 if "X-Forwarded-For" in headers else 403)


def test_where_the_operator_said_so_it_takes_no_key(server: Server) -> None:
    assert server.http.get("/admin/drain").json() == {"draining": False}


def test_over_grpc_a_proxy_is_not_the_administrator_either(server: Server) -> None:
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    handed_on = {"x-forwarded-for": "10.0.0.7"}
    with triton.InferenceServerClient(server.grpc) as client:
        with pytest.raises(InferenceServerException, match=r"right 'admin'.*through a proxy"):
            client.unload_model("upper", headers=handed_on)
        assert client.is_model_ready("upper", headers=handed_on)
        client.unregister_system_shared_memory()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_without_a_key_there_is_no_administrator_unless_the_operator_says_so(
    tmp_path: Path, host: str
) -> None:
    """Whatever the address says: a plain proxy on this machine hands on anybody's requests."""
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    arguments = ("--host", host, "--port", "0", "--grpc-port", "0")
    with served(tmp_path, "served_models:Upper", *arguments) as server:
        here = f"http://127.0.0.1:{server.port}"
        for method, path in ADMIN:
            answer = httpx.request(method, here + path)
            assert answer.status_code == 403, path
            assert any(
                each in answer.text
                for each in (
                    "a key that has the right 'admin'",
                    "--cors-origins",
                    "--allowed-hosts",
                )
            )
            assert "started with --admin-without-key" in answer.text
        assert httpx.post(f"{here}/v1/predict/upper", json="a").json() == "A"
        address = f"127.0.0.1:{server.grpc.rpartition(':')[2]}"
        with triton.InferenceServerClient(address) as client:
            assert client.is_server_ready()
            with pytest.raises(InferenceServerException, match="right 'admin'"):
                client.unload_model("upper")


def test_an_operator_may_open_a_server_that_others_can_reach(tmp_path: Path) -> None:
    import tritonclient.grpc as triton

    arguments = ("--host", "0.0.0.0", "--port", "0", "--grpc-port", "0")
    with served(tmp_path, "served_models:Upper", *arguments, "--admin-without-key") as server:
        server.log.wait_for("every client that reaches 0.0.0.0 may administrate without a key")
        here = f"http://127.0.0.1:{server.port}"
        by_name = {"Host": "headway.internal", "X-Forwarded-For": "10.0.0.7"}
        assert httpx.get(f"{here}/admin/drain", headers=by_name).status_code == 200
        page = {"Origin": "https://evil.example.org"}
        assert httpx.post(f"{here}/admin/drain", headers=page).status_code == 403
        with triton.InferenceServerClient(f"127.0.0.1:{server.grpc.rpartition(':')[2]}") as client:
            client.load_model("upper")


def test_the_app_in_another_server_has_no_administrator_without_a_key() -> None:
    """As ASGI, where the address is somebody else's."""
    from headway.config import ServerConfig
    from headway.hosting.registry import Registry
    from headway.server.run import make_app
    from headway.wire.asgi import AsgiApp

    async def statuses(config: ServerConfig) -> list[int]:
        transport = httpx.ASGITransport(AsgiApp(make_app(Registry(), config)))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return [(await client.request(*each)).status_code for each in ADMIN]

    assert asyncio.run(statuses(ServerConfig())) == [403] * len(ADMIN)
    assert 200 in asyncio.run(statuses(ServerConfig(admin_without_key=True)))


def test_keys_and_an_open_door_contradict_each_other() -> None:
    from headway.config import KeyConfig, ServerConfig
    from headway.errors import ConfigError
    from headway.server.auth.guard import Guard
    from headway.server.auth.keys import new_key

    key = KeyConfig(id="a", tenant="a", hash=new_key().hash)
    with pytest.raises(ConfigError, match="give one of them the right 'admin'"):
        Guard(ServerConfig(admin_without_key=True), [key])
