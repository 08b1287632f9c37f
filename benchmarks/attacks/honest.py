"""Honest clients beside an attack: how they are started in a process of their own, and asked how
they were served."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, Self

LIMIT_S = 30.0
_ROOT = Path(__file__).parents[2]
LEAST = 50  # requests of each kind, beside each attack
CALM_STRETCHES = 5
PROBES = ("HTTP health", "gRPC health")
LARGE = "large body"


class Figures(NamedTuple):
    served: int
    failures: list[str]
    p99_ms: float


class HonestClients:
    """`with HonestClients(port, grpc_port, key) as clients:`; `figures()` whenever one likes."""

    def __init__(self, port: int, grpc_port: int, key: str, prefix: str = "") -> None:
        arguments = (str(port), str(grpc_port), key, prefix)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.attacks.asking", *arguments],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        self.figures()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(LIMIT_S)
        self._process.stdout.close()

    def start_over(self) -> None:
        """What was until now does not count."""
        self._asked("start over")

    def figures(self, least: int = LEAST) -> dict[str, Figures]:
        """Of each kind of client, since the last time. Waits until there are at least `least`."""
        found = self._asked(str(least))
        return {name: Figures(*each) for name, each in found.items()}

    def figures_of(self, seconds: float) -> dict[str, Figures]:
        """What clients see in that many seconds from now on."""
        self.start_over()
        time.sleep(seconds)
        return self.figures()

    def calm_figures(self) -> dict[str, Figures]:
        """The lowest p99 of some stretches: while the machine is held up, all would pass."""
        stretches = [self.figures() for _ in range(CALM_STRETCHES)]
        return {
            name: min((each[name] for each in stretches), key=lambda figures: figures.p99_ms)
            for name in stretches[0]
        }

    def _asked(self, line: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())
