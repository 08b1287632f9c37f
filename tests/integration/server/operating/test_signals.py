"""Signals to a real server: stop, stop at once, read again; and what systemd is told."""

import contextlib
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
from real_server import Server, served

TOML = """
[server]
port = 0
grpc_port = 0
{server}
[[models]]
name = "gate"
target = "served_models:Gate"
warm_up = false
max_batch_size = 1
[[models]]
name = "gatekeeper"
target = "served_models:Gatekeeper"
warm_up = false
max_batch_size = 1
{more}
"""
GATEKEEPER = "/v1/predict/gatekeeper"


def write(folder: Path, *, server: str = "", more: str = "") -> None:
    (folder / "headway.toml").write_text(TOML.format(server=server, more=more))


class Running:
    """A request that is under way in another thread."""

    def __init__(self, server: Server) -> None:
        server.keeper("close")
        self.outcome: httpx.Response | httpx.HTTPError | None = None
        self._server = server
        self._thread = threading.Thread(target=self._call)
        self._thread.start()
        server.keeper("wait")

    def _call(self) -> None:
        try:
            self.outcome = httpx.post(f"{self._server.url}/v1/predict/gate", json=1.0, timeout=30)
        except httpx.HTTPError as error:
            self.outcome = error

    def join(self) -> httpx.Response | httpx.HTTPError | None:
        self._thread.join()
        return self.outcome


def test_sigterm_is_not_ready_at_once_finishes_what_runs_and_ends_well(tmp_path: Path) -> None:
    write(tmp_path, server="stop_delay_s = 0.5")
    with served(tmp_path, "headway.toml") as server:
        running = Running(server)
        assert server.http.get("/v2/health/ready").status_code == 200
        server.process.send_signal(signal.SIGTERM)
        server.log.wait_for("a second signal ends the process")
        # For stop_delay_s it is not ready, and answers all the same.
        assert server.http.get("/v2/health/ready").status_code == 503
        server.keeper("open")
        answer = running.join()
        assert isinstance(answer, httpx.Response)
        assert (answer.status_code, answer.json()) == (200, 1.0)
        assert server.process.wait(30) == 0


def test_what_runs_longer_than_the_drain_is_refused_and_the_end_is_still_good(
    tmp_path: Path,
) -> None:
    write(tmp_path, server="drain_s = 0.2")
    with served(tmp_path, "headway.toml") as server:
        running = Running(server)
        server.process.send_signal(signal.SIGTERM)
        answer = running.join()
        assert isinstance(answer, httpx.Response)
        assert (answer.status_code, answer.json()) == (503, {"error": "the server is stopping"})
        assert server.process.wait(30) == 0  # though the model hangs


def test_who_is_asked_to_stop_reads_nothing_again(tmp_path: Path) -> None:
    write(tmp_path, server="stop_delay_s = 0.2")
    with served(tmp_path, "headway.toml") as server:
        server.process.send_signal(signal.SIGTERM)
        server.log.wait_for("a second signal ends the process")
        server.process.send_signal(signal.SIGHUP)
        assert server.process.wait(30) == 0
        assert "read again" not in server.log.text


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT], ids=str)
def test_a_second_signal_ends_at_once(tmp_path: Path, second: signal.Signals) -> None:
    write(tmp_path)
    with served(tmp_path, "headway.toml", ends_with=-second) as server:
        running = Running(server)
        server.process.send_signal(signal.SIGTERM)
        server.log.wait_for("a second signal ends the process")
        server.process.send_signal(second)
        assert isinstance(running.join(), httpx.HTTPError)


BLOCKING = """
import sys, time
import headway

class Blocking(headway.Model):
    async def predict(self, values):
        print("blocked", file=sys.stderr, flush=True)
        time.sleep(60)
"""


def test_a_second_signal_ends_a_server_whose_event_loop_hangs(tmp_path: Path) -> None:
    (tmp_path / "blocking.py").write_text(BLOCKING)
    more = '[[models]]\nname = "blocking"\ntarget = "blocking:Blocking"\nwarm_up = false'
    write(tmp_path, more=more)
    with served(tmp_path, "headway.toml", ends_with=-signal.SIGTERM) as server:
        url = f"{server.url}/v1/predict/blocking"
        asking = threading.Thread(target=lambda: post_in_vain(url))
        asking.start()
        server.log.wait_for("blocked")
        server.process.send_signal(signal.SIGTERM)
        while catches(server.process.pid, signal.SIGTERM):
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        asking.join()


def post_in_vain(url: str) -> None:
    with contextlib.suppress(httpx.HTTPError):
        httpx.post(url, json=1.0, timeout=30)


def catches(pid: int, each: signal.Signals) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    [caught] = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
    return bool(int(caught, 16) >> (each - 1) & 1)


def test_sighup_says_what_has_changed_and_changes_what_it_can(tmp_path: Path) -> None:
    write(tmp_path)
    with served(tmp_path, "headway.toml") as server:
        write(
            tmp_path,
            server="max_header_bytes = 300\ndebug = true",
            more='[[models]]\nname = "new"\ntarget = "served_models:Upper"',
        )
        server.process.send_signal(signal.SIGHUP)
        server.log.wait_for("read again: 3 changes")
        for line in (
            "server.max_header_bytes: 32768 → 300\n",
            "server.debug: False → True (needs a restart)\n",
            "model 'new': added\n",
        ):
            assert line in server.log.text
        server.log.wait_for("new version 1 is ready")
        assert server.http.post("/v1/predict/new", json="up").json() == "UP"
        headers = {"X-Long": "x" * 400}
        assert httpx.get(f"{server.url}/v2/health/live", headers=headers).status_code == 431


def test_sighup_changes_the_limits_of_grpc_too(tmp_path: Path) -> None:
    import tritonclient.grpc as triton
    from tritonclient.utils import InferenceServerException

    write(tmp_path)
    headers = {"x-long": "x" * 2000}
    with served(tmp_path, "headway.toml") as server:
        with triton.InferenceServerClient(server.grpc) as before:
            assert before.is_server_live(headers=headers)
            write(tmp_path, server="max_header_bytes = 1000")
            server.process.send_signal(signal.SIGHUP)
            server.log.wait_for("read again: 1 changes")
            assert before.is_server_live(headers=headers)  # on its old connection
        # A connection of its own, not one that the library has kept.
        own = [("grpc.use_local_subchannel_pool", 1)]
        with triton.InferenceServerClient(server.grpc, channel_args=own) as after:
            assert after.is_server_live()
            with pytest.raises(InferenceServerException):
                after.is_server_live(headers=headers)


def test_sighup_changes_a_tenants_weight(tmp_path: Path) -> None:
    key = '[[keys]]\nid = "a"\nhash = "sha256:{0}"\ntenant = "acme"\nweight = {1}'
    write(tmp_path, more=key.format("0" * 64, 1.0))
    with served(tmp_path, "headway.toml") as server:
        write(tmp_path, more=key.format("0" * 64, 3.0))
        server.process.send_signal(signal.SIGHUP)
        server.log.wait_for("read again: 2 changes")
        assert "weight of 'acme': 1 → 3\n" in server.log.text


def test_sighup_with_a_mistake_keeps_what_there_is(tmp_path: Path) -> None:
    write(tmp_path)
    with served(tmp_path, "headway.toml") as server:
        write(tmp_path, server="drain_s = -1")
        server.process.send_signal(signal.SIGHUP)
        server.log.wait_for(
            "the configuration stays as it was: headway.toml: [server] drain_s: a "
            "number >= 0 is expected, not -1"
        )
        assert server.http.get("/v2/health/ready").status_code == 200


def test_systemd_is_told_of_ready_reload_and_stop(tmp_path: Path) -> None:
    write(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(30)
        path = str(tmp_path / "notify")
        with served(tmp_path, "headway.toml", NOTIFY_SOCKET=path) as server:
            assert systemd.recv(100) == b"READY=1"
            server.process.send_signal(signal.SIGHUP)
            assert systemd.recv(100).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
            assert systemd.recv(100) == b"READY=1"
        assert systemd.recv(100) == b"STOPPING=1"
