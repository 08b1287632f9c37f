"""The configurations of HAProxy and nginx in `deploy/`, run by the real programs in front of real
servers: one drains, one is stopped or killed, and no request fails."""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from real_server import Server, served

DEPLOY = Path(__file__).parents[4] / "deploy"
TOML = """
[server]
port = 0
grpc_port = -1
load_port = 0
stop_delay_s = 2.5
admin_without_key = true

[[models]]
name = "root"
target = "served_models:Root"
"""


def load_port_of(server: Server) -> int:
    found = re.search(r"saying the load on [\d.]+:(\d+)", server.log.text)
    assert found is not None, server.log.text
    return int(found[1])


def said(port: int, sent: bytes = b"") -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        if sent:
            connection.sendall(sent)
        parts = []
        while part := connection.recv(4096):
            parts.append(part)
        return b"".join(parts)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "headway.toml").write_text(TOML)
    with served(tmp_path, "headway.toml") as running:
        yield running


def test_the_load_port_tells_haproxy_a_weight_and_others_the_page(server: Server) -> None:
    port = load_port_of(server)
    assert said(port) == b"up ready 100%\n"
    page = said(port, b"GET /metrics/load HTTP/1.1\r\nHost: x\r\n\r\n")
    assert page.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\nheadway_load_queue_seconds 0" in page
    assert server.http.post("/admin/drain", json={"draining": True}).status_code == 200
    assert said(port) == b"drain\n"
    assert server.http.post("/admin/drain", json={"draining": False}).status_code == 200
    assert said(port) == b"up ready 100%\n"


def test_a_balancer_does_not_wait_behind_clients_that_say_nothing(server: Server) -> None:
    port = load_port_of(server)
    with ExitStack() as silent:
        for _ in range(600):  # more than may wait at once
            silent.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
        assert said(port) == b"up ready 100%\n"  # one after the other, this would take 30 s


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def running(command: list[str], url: str) -> Iterator[httpx.Client]:
    with subprocess.Popen(command) as process:
        try:
            with httpx.Client(base_url=url, timeout=20) as http:
                for _ in range(200):
                    assert process.poll() is None, command
                    try:
                        if http.get("/v2/health/ready").status_code == 200:
                            break
                    except httpx.TransportError:
                        pass
                    time.sleep(0.05)
                yield http
        finally:
            process.terminate()


@contextmanager
def two_servers(folder: Path, first_ends_with: int) -> Iterator[tuple[Server, Server]]:
    with ExitStack() as stack:
        found = []
        for name, ends_with in (("one", first_ends_with), ("two", 0)):
            (folder / name).mkdir()
            (folder / name / "headway.toml").write_text(TOML)
            made = served(folder / name, "headway.toml", ends_with=ends_with)
            found.append(stack.enter_context(made))
        yield found[0], found[1]


def survives(http: httpx.Client, victim: Server, how: signal.Signals) -> None:
    """No request fails while one server ends, nor after it has."""
    after = 0
    for number in range(10_000):
        if number == 100:
            os.kill(victim.pid, how)
        if number > 100 and victim.process.poll() is not None:
            after += 1
        if after > 100:
            break
        answer = http.post("/v1/predict/root", json=4.0)
        assert (answer.status_code, answer.json()) == (200, 2.0), (number, answer.text)


def answered(server: Server) -> float:
    text = server.http.get("/metrics").text
    found = re.search(r'nv_inference_request_success\{model="root"[^}]*\} (\d+)', text)
    return float(found[1]) if found else 0.0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("haproxy") is None, reason="HAProxy is not installed")
def test_haproxy_follows_drains_and_loses_nothing_with_a_server_that_stops(tmp_path: Path) -> None:
    with two_servers(tmp_path, 0) as (one, two):
        port = free_port()
        text = (DEPLOY / "haproxy" / "haproxy.cfg").read_text()
        text = text.replace(":8080", f"127.0.0.1:{port}")
        for number, each in ((1, one), (2, two)):
            text = re.sub(
                rf"10\.0\.0\.{number}:8000(.*)agent-port 8003",
                rf"127.0.0.1:{each.port}\g<1>agent-port {load_port_of(each)}",
                text,
            )
        (tmp_path / "haproxy.cfg").write_text(text)
        command = ["haproxy", "-db", "-q", "-f", str(tmp_path / "haproxy.cfg")]
        with running(command, f"http://127.0.0.1:{port}") as http:
            two.http.post("/admin/drain", json={"draining": True})
            wait_until_unused(http, two)
            two.http.post("/admin/drain", json={"draining": False})
            wait_until_used(http, two)
            survives(http, one, signal.SIGTERM)


def wait_until_unused(http: httpx.Client, server: Server) -> None:
    for _ in range(100):
        before = answered(server)
        for _ in range(10):
            assert http.post("/v1/predict/root", json=4.0).status_code == 200
        if answered(server) == before:
            return
        time.sleep(0.1)
    raise AssertionError("a server that drains still gets requests")


def wait_until_used(http: httpx.Client, server: Server) -> None:
    before = answered(server)
    for _ in range(1000):
        assert http.post("/v1/predict/root", json=4.0).status_code == 200
        if answered(server) > before:
            return
        time.sleep(0.01)
    raise AssertionError("a server that is back gets no request")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_loses_nothing_with_a_killed_server(tmp_path: Path) -> None:
    with two_servers(tmp_path, -signal.SIGKILL) as (one, two):
        port = free_port()
        text = (DEPLOY / "nginx" / "headway.conf").read_text()
        text = text.replace("listen 8080", f"listen 127.0.0.1:{port}")
        for number, each in ((1, one), (2, two)):
            text = text.replace(f"10.0.0.{number}:8000", f"127.0.0.1:{each.port}")
        paths = "".join(
            f"{kind}_temp_path {tmp_path}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (tmp_path / "nginx.conf").write_text(
            f"daemon off;\npid {tmp_path}/nginx.pid;\nerror_log {tmp_path}/error.log;\n"
            f"events {{}}\nhttp {{\naccess_log off;\n{paths}{text}\n}}\n"
        )
        command = ["nginx", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf")]
        with running(command, f"http://127.0.0.1:{port}") as http:
            survives(http, one, signal.SIGKILL)
