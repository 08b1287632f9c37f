"""The server under chaos: `headway serve headway.toml` as a process of its own, and its admin."""

import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
START_S = 60.0
STOP_S = 45.0
# What must never be in its log, whatever the models and the clients do.
FORBIDDEN = (
    *("never retrieved", "never awaited", "internal error", "exception in callback"),
    *("a job raised", "its worker broke"),
)


class Server:
    """A running one. Its log is read as it comes."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.pid = process.pid
        self.lines: list[str] = []
        self.http_port = 0
        self.grpc = ""
        self.exit_code: int | None = None
        self._started = time.monotonic()
        self._said = threading.Event()
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(f"{time.monotonic() - self._started:8.3f} {line}")
            if found := re.search(r"listening for gRPC on (\S+)", line):
                self.grpc = found[1]
            if found := re.search(r"listening on http://\S+:(\d+)", line):
                self.http_port = int(found[1])
                self._said.set()
        self._said.set()  # it has ended

    def wait_listening(self) -> None:
        if not self._said.wait(START_S) or not self.http_port:
            raise RuntimeError("the server does not start:\n" + "".join(self.lines))

    def stop(self) -> None:
        """As an operator does; at once where that does not help."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.exit_code = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._listener.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    # ---- what an operator asks

    def workers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._ask("/admin/workers")["workers"]
        return found

    def reload(self, model: str) -> None:
        self._ask(f"/admin/models/{model}/reload", method="POST")

    def metrics(self) -> str:
        return self._read("/metrics", "GET").decode()

    def _ask(self, path: str, *, method: str = "GET") -> Any:
        return json.loads(self._read(path, method))

    def _read(self, path: str, method: str) -> bytes:
        request = urllib.request.Request(f"http://127.0.0.1:{self.http_port}{path}", method=method)
        with urllib.request.urlopen(request, timeout=START_S) as answer:
            content: bytes = answer.read()
        return content

    def complaints(self) -> list[str]:
        return [line.strip() for line in self.lines if any(word in line for word in FORBIDDEN)]


@contextmanager
def served(folder: Path, toml: str) -> Iterator[Server]:
    """Until the block ends; then it is stopped with SIGTERM."""
    file = folder / "headway.toml"
    file.write_text(toml)
    ours = {name: text for name, text in os.environ.items() if not name.startswith("HEADWAY_")}
    server = Server(
        subprocess.Popen(
            [sys.executable, "-m", "headway", "serve", file.name],
            cwd=folder,
            env={
                **ours,
                "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
                "OPENBLAS_NUM_THREADS": "1",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
    )
    try:
        server.wait_listening()
        yield server
    finally:
        server.stop()
