"""A real server in a process and on a core of its own, its memory, and how it is reached."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

from benchmarks.attacks.sockets import LIMIT_S, read_all
from headway.server.auth.keys import new_key

ATTACKER = "127.0.0.2"
MIB = 2**20
BODY_TIMEOUT_S = 0.5
MODEL = """
import asyncio
import dataclasses
import weakref
from typing import Any

import headway
import pydantic
from PIL import Image

class Shout(headway.Model[str, str]):
    def predict(self, items: list[str]) -> list[str]:
        return [item.upper() for item in items]

class Form(pydantic.BaseModel):
    values: list[float] = []
    parts: list["Form"] = []

class Forms(headway.Model[Form, int]):
    def predict(self, items: list[Form]) -> list[int]:
        return [len(item.parts) for item in items]

class Photos(headway.Model[Image.Image, list[int]]):
    def predict(self, items: list[Image.Image]) -> list[list[int]]:
        return [list(item.size) for item in items]

class Trap(Exception):
    @property
    def __class__(self):
        raise SystemExit

class Mute(Exception):
    def __str__(self):
        raise KeyboardInterrupt

class Turncoat:
    def __getattribute__(self, name):
        raise SystemExit

class Gone:
    pass

LONG = "x" * 50_000_000  # made once: what it costs to make is the model's own affair
TRAPS = {
    "exit": SystemExit, "interrupt": KeyboardInterrupt, "cancelled": asyncio.CancelledError,
    "generator": GeneratorExit, "trap": Trap, "mute": Mute,
    "long": lambda: ValueError(LONG),
}

class Traps(headway.Model[str, Any]):
    async def predict(self, items: list[str]) -> list[Any]:
        for item in items:
            if item in TRAPS:
                raise TRAPS[item]()
        made = {"turncoat": Turncoat, "proxy": lambda: weakref.proxy(Gone())}
        return [made.get(item, str)() for item in items]

@dataclasses.dataclass
class Said:
    messages: list[dict[str, Any]]

class Talk(headway.Model[Said, str]):
    def stream(self, items: list[Said]):
        for _ in range(1000):
            yield ["a" * 2**20 for _ in items]
        yield [headway.END for _ in items]
"""
TOML = """
[server]
port = 0
grpc_port = 0
shared_memory = true
keys_file = "keys.toml"
max_body_bytes = 1048576
max_held_bytes = 8388608
max_header_bytes = 8192
header_timeout_s = 0.5
body_timeout_s = {body_timeout_s}
write_timeout_s = 0.5
max_connections_per_address = 64
[[models]]
name = "shout"
target = "attacked:Shout"
[[models]]
name = "forms"
target = "attacked:Forms"
[[models]]
name = "photos"
target = "attacked:Photos"
[[models]]
name = "traps"
target = "attacked:Traps"
warm_up = false
[[models]]
name = "talk"
target = "attacked:Talk"
warm_up = false
"""
CHAT_TOML = """
[[models]]
name = "tiny"
target = "{folder}"
dtype = "float32"
max_sequences = 8
max_context = 256
"""
MOUNTED = """
import headway
from starlette.applications import Starlette
from starlette.routing import Mount

inside = headway.asgi("headway.toml")
app = Starlette(routes=[Mount("/ml", inside)], lifespan=inside.lifespan)
"""
KEYS = """
[[keys]]
id = "honest"
hash = "{honest}"
tenant = "honest"
[[keys]]
id = "attacker"
hash = "{attacker}"
tenant = "attacker"
"""


_UVICORN = ("uvicorn", "mounted:app", "--port", "0", "--no-access-log")


class Outcome(NamedTuple):
    tried: str
    happened: str
    is_refused: bool


class Target:
    """The server, as an attacker knows it."""

    def __init__(self, port: int, grpc_port: int, key: str, folder: Path) -> None:
        self.port = port
        self.grpc_port = grpc_port
        self.key = key  # of a tenant that may infer and turns bad; empty: it has none
        self.folder = folder
        self.prefix = ""  # that the server is mounted under
        self.chat_model = "talk"
        self.seconds = 2.0  # for a flood
        self.patience_s = 15.0  # more, where nobody has been cut yet: the machine may be busy

    def without_key(self) -> "Target":
        found = Target(self.port, self.grpc_port, "", self.folder)
        found.seconds, found.patience_s = self.seconds, self.patience_s
        found.prefix, found.chat_model = self.prefix, self.chat_model
        return found

    def connect(self, port: int | None = None) -> socket.socket:
        """From an address of its own, so that limits can tell it from the honest."""
        return socket.create_connection(
            ("127.0.0.1", port or self.port), timeout=LIMIT_S, source_address=(ATTACKER, 0)
        )

    def head(self, path: str, *lines: str, method: str = "POST", key: str | None = None) -> bytes:
        key = self.key if key is None else key
        known = [f"X-Api-Key: {key}"] if key else []
        return "\r\n".join(
            [f"{method} {self.prefix}{path} HTTP/1.1", "Host: x", *known, *lines, "", ""]
        ).encode()

    def ask(
        self, path: str, body: bytes, *lines: str, method: str = "POST", key: str | None = None
    ) -> bytes:
        """The whole answer."""
        lines = (f"Content-Length: {len(body)}", "Connection: close", *lines)
        with self.connect() as connection:
            with contextlib.suppress(OSError):  # refused before all is sent: the answer is there
                connection.sendall(self.head(path, *lines, method=method, key=key) + body)
            return read_all(connection)


Attack: TypeAlias = Callable[[Target], Outcome]


class Server(NamedTuple):
    port: int
    grpc_port: int  # 0: it has none
    pid: int


class Scene(NamedTuple):
    target: Target
    server: Server
    honest_key: str


@contextlib.contextmanager
def attacked(stack: str = "headway", chat: Path | None = None) -> Iterator[Scene]:
    """`stack`: `headway`; or `mounted`, below a prefix of an application on uvicorn, without gRPC.
    `chat`: the folder of a language model, which is served beside the others."""
    is_mounted = stack == "mounted"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        honest, attacker = new_key(), new_key()
        (folder / "attacked.py").write_text(MODEL)
        (folder / "mounted.py").write_text(MOUNTED)
        toml = TOML.format(body_timeout_s=BODY_TIMEOUT_S)
        toml += "" if chat is None else CHAT_TOML.format(folder=chat)
        (folder / "headway.toml").write_text(toml)
        (folder / "keys.toml").write_text(KEYS.format(honest=honest.hash, attacker=attacker.hash))
        serving = _UVICORN if is_mounted else ("headway", "serve", "headway.toml")
        with running(folder, *serving) as server:
            target = Target(server.port, server.grpc_port, attacker.key, folder)
            target.prefix = "/ml" if is_mounted else ""
            target.chat_model = "talk" if chat is None else "tiny"
            yield Scene(target, server, honest.key)


@contextlib.contextmanager
def running(folder: Path, *command: str) -> Iterator[Server]:
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        server = _wait_ports(process)
        # Read what it logs, so that it never waits for us.
        reader = threading.Thread(target=lambda: process.stderr and process.stderr.read())
        reader.daemon = True
        reader.start()
        yield server
    finally:
        process.terminate()
        process.wait(LIMIT_S)
        if process.stderr is not None:
            process.stderr.close()


def _wait_ports(process: "subprocess.Popen[str]") -> Server:
    said, grpc_port = "", 0
    for line in process.stderr or ():
        said += line
        if found := re.search(r"listening for gRPC on \S+:(\d+)", line):
            grpc_port = int(found[1])
        elif found := re.search(r"(?:listening|running) on https?://\S+:(\d+)", line):
            return Server(int(found[1]), grpc_port, process.pid)
    raise RuntimeError(f"the server does not start: {said}")


# ---- cores


@contextlib.contextmanager
def apart(server: Server) -> Iterator[None]:
    """The server on one core; attackers and honest clients, who are ours, on another."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        yield
        return
    for thread in os.listdir(f"/proc/{server.pid}/task"):
        os.sched_setaffinity(int(thread), {cores[0]})
    os.sched_setaffinity(0, {cores[1]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def behind_honest_clients() -> Iterator[None]:
    """The attacker shares a core with them and runs while they wait: so what they wait for is the
    server, and not their own core."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):  # it stays there, where it may not come back
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


# ---- memory


class Memory:
    """What a process takes at most, over what it took when we began."""

    def __init__(self, pid: int) -> None:
        self._folder = Path(f"/proc/{pid}")
        self._before = 0

    def start_over(self) -> None:
        self._before = self._read("VmRSS")
        (self._folder / "clear_refs").write_text("5")  # the peak is what it is now

    @property
    def growth_mib(self) -> float:
        return max(0, self._read("VmHWM") - self._before) / MIB

    def _read(self, name: str) -> int:
        for line in (self._folder / "status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError(f"{name} is not known here")
