"""A real `headway serve` in a process of its own, on any free port, for the real clients."""

import os
import re
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

HERE = Path(__file__).parent
START_S = 120.0
BODY_TIMEOUT_S = 0.5
MAX_BODY_BYTES = 4 * 2**20

TOML = f"""
[server]
port = 0
grpc_port = 0
admin_without_key = true
shared_memory = true
body_timeout_s = {BODY_TIMEOUT_S}
write_timeout_s = {BODY_TIMEOUT_S}
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


class Log:
    """What a server writes, as it comes."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._waited_for = 0  # where the line ends that was last waited for
        self._added = threading.Condition()

    def add(self, line: str) -> None:
        with self._added:
            self._lines.append(line)
            self._added.notify_all()

    @property
    def text(self) -> str:
        return "".join(self._lines)

    def wait_for(self, text: str) -> None:
        """Wait until `text` is written after what was last waited for: servers say things twice."""

        def written() -> bool:
            return self.text.find(text, self._waited_for) >= 0

        with self._added:
            assert self._added.wait_for(written, START_S), self.text
            self._waited_for = self.text.index(text, self._waited_for) + len(text)


class Server(NamedTuple):
    url: str
    grpc: str  # host:port; nothing where it is not served
    http: httpx.Client
    process: "subprocess.Popen[str]"
    log: Log

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def address(self) -> str:
        """As tritonclient wants it: host:port."""
        return self.url.partition("://")[2]

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


def address(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else ""


@contextmanager
def served(
    folder: Path,
    *arguments: str,
    verify: ssl.SSLContext | bool = True,
    ends_with: int = 0,
    start_s: float = START_S,
    **variables: str,
) -> Iterator[Server]:
    ours = {name: text for name, text in os.environ.items() if not name.startswith("HEADWAY_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "headway", "serve", *arguments],
        cwd=folder,
        env={
            **ours,
            "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)]),
            **variables,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log = Log()
    said = threading.Event()

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            log.add(line)
            if "Ctrl-C stops" in line:  # the last words of its greeting
                said.set()
        said.set()  # it has ended

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        assert said.wait(start_s), "the server does not start"
        url = address(log.text, r"listening on (https?://[^\s\"]+)")
        assert url, log.text
        grpc = address(log.text, r"listening for gRPC on ([^\s\"]+)")
        with httpx.Client(base_url=url, timeout=10, verify=verify) as http:
            yield Server(url, grpc, http, process, log)
    except BaseException as error:  # whose fault it was is often in what the server said
        error.add_note(f"the server (exit code {process.poll()}) said:\n{log.text[-4000:]}")
        raise
    finally:
        if process.poll() is None:
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
    assert code == ends_with, log.text
    assert not [word for word in FORBIDDEN if word in log.text], log.text
