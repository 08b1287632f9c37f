"""What runs a model's batches: its threads or processes, and the devices that they run on."""

import os
from collections.abc import Sequence
from typing import Any

from headway.hosting.registry import WorkerLine
from headway.runtime.batching.batcher import Batcher


def lines_of(name: str, version: str, batcher: Batcher[Any, Any]) -> list[WorkerLine]:
    """One for each worker; threads share this process."""
    processes = batcher.worker_processes
    if processes:
        return [
            WorkerLine(name, version, each.pid, each.state, each.restarts, each.last_error)
            for each in processes
        ]
    state = "ready" if batcher.is_open else "stopped"
    return [WorkerLine(name, version, os.getpid(), state, 0, "")] * batcher.policy.workers


def devices_of(model: object, pin: Sequence[str], workers: int) -> list[str]:
    """What each worker runs on (`cpu`, `cuda:1`), as the model says it; empty: not known."""
    said = getattr(model, "device", "cpu")
    own = "" if callable(said) else str(said)
    pins = [each for each in pin if each.startswith("cuda")] or [own]
    return [pins[index % len(pins)] for index in range(workers)]
