"""A server in a process of its own, for commands that try a model out."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from headway.errors import ConfigError

_START_S = 300.0
_STOP_S = 20.0


@contextmanager
def served(arguments: Sequence[str]) -> Iterator[str]:
    """The URL of `headway serve` with these arguments, on any free port of this machine."""
    command = [sys.executable, "-m", "headway", "serve", *arguments]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", "0", "--grpc-port", "-1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines: list[str] = []
    ready = threading.Event()

    def listen() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if "listening on" in line:
                ready.set()
        ready.set()  # it has ended

    listener = threading.Thread(target=listen, name="headway-listen")
    listener.start()
    try:
        ready.wait(_START_S)
        found = re.search(r"listening on (https?://[^\s\"]+)", "".join(lines))
        if found is None:
            said = "".join(lines[-3:]).strip()
            raise ConfigError(f"headway serve {' '.join(arguments)} does not start: {said}")
        yield found[1]
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        listener.join()
        assert process.stdout is not None
        process.stdout.close()
