"""TLS over HTTP and gRPC, with certificates of our own making and the real clients."""

import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy
import pytest
import trustme
from real_server import Server, served

from headway.cli.main import main
from headway.config import ServerConfig
from headway.errors import ConfigError
from headway.server.auth.guard import certificates_of


class Authority:
    """One that signs servers, and one that signs clients."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers = trustme.CA()
        self.clients = trustme.CA()
        self.clients.cert_pem.write_to_path(str(folder / "clients.pem"))
        self.issue()

    def issue(self) -> None:
        made = self.servers.issue_cert("localhost", "127.0.0.1")
        key, chain = self.folder / "key.pem", self.folder / "cert.pem"
        made.private_key_pem.write_to_path(str(key))
        chain.write_bytes(b"".join(each.bytes() for each in made.cert_chain_pems))

    def trust(self, *, as_client: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.servers.configure_trust(context)
        if as_client:
            self.clients.issue_cert("somebody").configure_cert(context)
        return context

    @property
    def arguments(self) -> tuple[str, ...]:
        return (
            *("served_models:Double", "--port", "0", "--grpc-port", "0"),
            *("--tls-cert", "cert.pem", "--tls-key", "key.pem"),
        )


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[Server]:
    with served(authority.folder, *authority.arguments, verify=authority.trust()) as running:
        yield running


# What a client says first, and is answered.
HELLO = {
    "http": b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "grpc": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]),
}


def grpc_client(server: Server, ca: bytes, pair: tuple[bytes, bytes] | None = None) -> Any:
    import grpc
    import tritonclient.grpc as triton

    key, chain = pair or (None, None)
    return triton.InferenceServerClient(
        server.grpc,
        ssl=True,
        creds=grpc.ssl_channel_credentials(ca, key, chain),
    )


def infer(client: Any, triton: Any) -> Any:
    x = triton.InferInput("x", [1, 16], "FP32")
    x.set_data_from_numpy(numpy.ones((1, 16), numpy.float32))
    return client.infer("double", [x]).as_numpy("y").tolist()


def test_httpx_is_served_over_https(server: Server) -> None:
    assert server.url.startswith("https://")
    assert server.http.post("/v1/predict/double", json=[1.0] * 16).json() == [2.0] * 16


def test_a_large_answer_arrives_whole(server: Server) -> None:
    rows = numpy.arange(4000 * 16, dtype=numpy.float32).reshape(4000, 16)
    inputs = [{"name": "x", "datatype": "FP32", "shape": [4000, 16], "data": rows.tolist()}]
    answer = server.http.post("/v2/models/double/infer", json={"inputs": inputs})
    assert answer.json()["outputs"][0]["data"] == (rows * 2).ravel().tolist()


@pytest.mark.filterwarnings("ignore:ssl.match_hostname:DeprecationWarning")  # geventhttpclient's
def test_tritonclient_http_is_served(server: Server, authority: Authority) -> None:
    import tritonclient.http as triton

    with triton.InferenceServerClient(
        server.address, ssl=True, ssl_context_factory=authority.trust
    ) as client:
        assert infer(client, triton) == [[2.0] * 16]


def test_tritonclient_grpc_is_served(server: Server, authority: Authority) -> None:
    import tritonclient.grpc as triton

    with grpc_client(server, authority.servers.cert_pem.bytes()) as client:
        assert client.is_server_ready()
        assert infer(client, triton) == [[2.0] * 16]


def test_who_does_not_speak_tls_is_not_served(server: Server) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(server.url.replace("https", "http") + "/v2/health/live")
    assert server.http.get("/v2/health/live").status_code == 200


def test_old_tls_is_not_spoken(server: Server, authority: Authority) -> None:
    context = authority.trust()
    with pytest.warns(DeprecationWarning, match="TLSVersion"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSVersion"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(plain, server_hostname="localhost")


def test_the_health_command_asks_over_https(server: Server, authority: Authority) -> None:
    ca = authority.folder / "ca.pem"
    authority.servers.cert_pem.write_to_path(str(ca))
    assert main(["health", server.url, "--ca", str(ca)]) == 0
    assert main(["health", server.url, "--insecure"]) == 0
    assert main(["health", server.url]) == 1


def test_a_new_certificate_is_for_new_connections_and_old_ones_live_on(tmp_path: Path) -> None:
    import tritonclient.grpc as triton

    authority = Authority(tmp_path)
    with (
        served(tmp_path, *authority.arguments, verify=authority.trust()) as server,
        grpc_client(server, authority.servers.cert_pem.bytes()) as old_grpc,
    ):
        assert server.http.get("/v2/health/live").status_code == 200
        assert infer(old_grpc, triton) == [[2.0] * 16]
        old = authority.trust()
        authority.servers = trustme.CA()
        authority.issue()
        with httpx.Client(base_url=server.url, verify=authority.trust()) as new:
            assert new.get("/v2/health/live").status_code == 200
        server.log.wait_for("the certificate has changed")
        with (
            httpx.Client(base_url=server.url, verify=old) as late,
            pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"),
        ):
            late.get("/v2/health/live")
        with grpc_client(server, authority.servers.cert_pem.bytes()) as new_grpc:
            assert infer(new_grpc, triton) == [[2.0] * 16]
        assert server.http.get("/v2/health/live").status_code == 200  # on its old connection
        assert infer(old_grpc, triton) == [[2.0] * 16]


def test_half_a_change_is_not_taken_and_sighup_looks_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with served(tmp_path, *authority.arguments, verify=authority.trust()) as server:
        key = (tmp_path / "key.pem").read_bytes()
        authority.issue()
        new_key = (tmp_path / "key.pem").read_bytes()
        (tmp_path / "key.pem").write_bytes(key)  # the new chain with the old key
        server.process.send_signal(signal.SIGHUP)
        server.log.wait_for("the old certificate stays")
        with httpx.Client(base_url=server.url, verify=authority.trust()) as client:
            assert client.get("/v2/health/live").status_code == 200
        (tmp_path / "key.pem").write_bytes(new_key)
        server.process.send_signal(signal.SIGHUP)
        server.log.wait_for("the certificate has changed")
        with httpx.Client(base_url=server.url, verify=authority.trust()) as client:
            assert client.get("/v2/health/live").status_code == 200


def test_mutual_tls_serves_only_whom_the_authority_signed(tmp_path: Path) -> None:
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    authority = Authority(tmp_path)
    mutual = (*authority.arguments, "--tls-client-ca", "clients.pem")
    with served(tmp_path, *mutual, verify=authority.trust(as_client=True)) as server:
        assert server.http.post("/v1/predict/double", json=[1.0] * 16).json() == [2.0] * 16
        (tmp_path / "stranger").mkdir()
        stranger = Authority(tmp_path / "stranger")
        stranger.servers = authority.servers
        for context in (authority.trust(), stranger.trust(as_client=True)):
            with (
                httpx.Client(base_url=server.url, verify=context) as client,
                pytest.raises(httpx.TransportError),
            ):
                client.get("/v2/health/live")
        ca, me = authority.servers.cert_pem.bytes(), authority.clients.issue_cert("me")
        pair = (me.private_key_pem.bytes(), b"".join(pem.bytes() for pem in me.cert_chain_pems))
        with grpc_client(server, ca, pair) as client:
            assert infer(client, triton) == [[2.0] * 16]
        with grpc_client(server, ca) as client, pytest.raises(InferenceServerException):
            infer(client, triton)


@pytest.mark.parametrize("broken", ["cert.pem", "key.pem"])
def test_a_certificate_that_cannot_be_used_stops_the_start(tmp_path: Path, broken: str) -> None:
    Authority(tmp_path)
    (tmp_path / broken).write_text("not PEM")
    config = ServerConfig(tls_cert=str(tmp_path / "cert.pem"), tls_key=str(tmp_path / "key.pem"))
    with pytest.raises(ConfigError, match="tls_cert"):
        certificates_of(config)


def test_an_encrypted_key_is_refused_and_not_asked_for_at_the_terminal(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as kind

    Authority(tmp_path)
    key = kind.load_pem_private_key((tmp_path / "key.pem").read_bytes(), None)
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(
            kind.Encoding.PEM, kind.PrivateFormat.PKCS8, kind.BestAvailableEncryption(b"secret")
        )
    )
    config = ServerConfig(tls_cert=str(tmp_path / "cert.pem"), tls_key=str(tmp_path / "key.pem"))
    with pytest.raises(ConfigError, match="encrypted"):
        certificates_of(config)


@pytest.mark.parametrize("port", ["http", "grpc"])
def test_a_session_is_not_resumed_after_the_client_authority_was_replaced(
    tmp_path: Path, port: str
) -> None:
    authority = Authority(tmp_path)
    mutual = (*authority.arguments, "--tls-client-ca", "clients.pem")
    with served(tmp_path, *mutual, verify=authority.trust(as_client=True)) as server:
        context = authority.trust(as_client=True)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1" if port == "http" else "h2"])
        number = server.port if port == "http" else int(server.grpc.rpartition(":")[2])

        said = HELLO[port]

        def shake(session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool]:
            with (
                socket.create_connection(("127.0.0.1", number), timeout=10) as plain,
                context.wrap_socket(plain, server_hostname="localhost", session=session) as tls,
            ):
                tls.sendall(said)
                assert tls.recv(100)
                with suppress(OSError):  # a session that ends without a farewell is forgotten
                    tls.unwrap()
                return tls.session, bool(tls.session_reused)

        session, _ = shake(None)
        _, is_resumed = shake(session)
        assert is_resumed  # so that there is something to forget
        authority.clients = trustme.CA()
        authority.clients.cert_pem.write_to_path(str(tmp_path / "clients.pem"))
        with pytest.raises((ssl.SSLError, ConnectionError)):
            shake(session)


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_bench_measures_over_tls(
    server: Server, authority: Authority, scheme: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may find that this machine was too busy, and then says so with 3."""
    authority.servers.cert_pem.write_to_path(str(authority.folder / "servers.pem"))
    url = f"{scheme}://{server.grpc if scheme == 'grpcs' else server.address}"
    load = ("--concurrency", "2", "--seconds", "0.3", "--warm-up", "0.1")
    trust = ("--ca", str(authority.folder / "servers.pem"))
    assert main(["bench", url, *load, *trust]) in (0, 3)
    assert "0.00%" in capsys.readouterr().out
    assert main(["bench", url, *load]) == 1  # nobody it trusts has signed this
    said = capsys.readouterr().err
    assert "its certificate is not trusted" in said or "CERTIFICATE_VERIFY_FAILED" in said, said
