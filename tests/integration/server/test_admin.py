"""The administrator's routes where there are no keys: for this machine only."""

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
        assert "a key with the right `admin`" in answer.text
    assert server.http.post("/v1/predict/upper", json="a", headers=headers).json() == "A"


def test_somebody_at_this_machine_is(server: Server) -> None:
    assert server.http.get("/admin/drain").json() == {"draining": False}


def test_over_grpc_a_proxy_is_not_the_administrator_either(server: Server) -> None:
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    handed_on = {"x-forwarded-for": "10.0.0.7"}
    with triton.InferenceServerClient(server.grpc) as client:
        with pytest.raises(InferenceServerException, match=r"right `admin`.*through a proxy"):
            client.unload_model("upper", headers=handed_on)
        assert client.is_model_ready("upper", headers=handed_on)
        client.unregister_system_shared_memory()


def test_a_server_that_others_can_reach_has_no_administrator_without_a_key(
    tmp_path: Path,
) -> None:
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    arguments = ("--host", "0.0.0.0", "--port", "0", "--grpc-port", "0")
    with served(tmp_path, "served_models:Upper", *arguments) as server:
        here = f"http://127.0.0.1:{server.port}"
        for method, path in ADMIN:
            answer = httpx.request(method, here + path)
            assert answer.status_code == 403, path
        assert httpx.post(f"{here}/v1/predict/upper", json="a").json() == "A"
        address = f"127.0.0.1:{server.grpc.rpartition(':')[2]}"
        with triton.InferenceServerClient(address) as client:
            assert client.is_server_ready()
            with pytest.raises(InferenceServerException, match="right `admin`"):
                client.unload_model("upper")
