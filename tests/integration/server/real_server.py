"""A real `headway serve` in a process of its own, on any free port, for the real clients."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

HERE = Path(__file__).parent
START_S = 30.0
BODY_TIMEOUT_S = 0.5
MAX_BODY_BYTES = 4 * 2**20

TOML = f"""
[server]
port = 0
grpc_port = 0
shared_memory = true
body_timeout_s = {BODY_TIMEOUT_S}
max_body_bytes = {MAX_BODY_BYTES}
""" + "".join(
    f'[[models]]\nname = "{name}"\ntarget = "served_models:{kind}"\n{more}\n'
    for name, kind, more in [
        ("double", "Double", ""),
        ("arithmetic", "Arithmetic", ""),
        ("half", "Half", ""),
        ("upper", "Upper", ""),
        ("root", "Root", ""),
        ("letters", "Letters", ""),
        ("gate", "Gate", "warm_up = false\nmax_queue = 1\nmax_batch_size = 1"),
        ("gatekeeper", "Gatekeeper", "warm_up = false\nmax_batch_size = 1"),
    ]
)
# What must never be logged, whatever the clients do.
FORBIDDEN = ("never retrieved", "never awaited", "internal error", "Fatal", "exception in callback")


class Server(NamedTuple):
    url: str
    grpc: str  # host:port; nothing where it is not served
    http: httpx.Client
    pid: int = 0
    log: Sequence[str] = ()  # as it grows

    @property
    def address(self) -> str:
        """As tritonclient wants it: host:port."""
        return self.url.removeprefix("http://")

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def keeper(self, what: str) -> None:
        assert self.http.post("/v1/predict/gatekeeper", json=what).json() is True

    @contextmanager
    def closed_gate(self) -> Iterator[Callable[[], None]]:
        """`gate` runs until the block ends. Call what you get to wait until a batch runs."""
        self.keeper("close")
        try:
            yield lambda: self.keeper("wait")
        finally:
            self.keeper("open")


def address(lines: list[str], pattern: str) -> str:
    return next((found[1] for found in (re.search(pattern, line) for line in lines) if found), "")


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[Server]:
    ours = {name: text for name, text in os.environ.items() if not name.startswith("HEADWAY_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "headway", "serve", *arguments],
        cwd=folder,
        env={**ours, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    said = threading.Event()

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if "Ctrl-C stops" in line:  # the last words of its greeting
                said.set()
        said.set()  # it has ended

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        assert said.wait(START_S), "the server does not start"
        url = address(lines, r"listening on (http://[^\s\"]+)")
        assert url, "".join(lines)
        with httpx.Client(base_url=url, timeout=10) as http:
            grpc = address(lines, r"listening for gRPC on ([^\s\"]+)")
            yield Server(url, grpc, http, process.pid, lines)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            listener.join()
            assert process.stdout is not None
            process.stdout.close()
    log = "".join(lines)
    assert code == 0, log
    assert not [word for word in FORBIDDEN if word in log], log
