"""The settings of worker processes, and the specification that each worker gets."""

import logging
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headway.core.faults.supervision import MAX_RESTARTS, RestartPolicy
from headway.errors import ConfigError
from headway.runtime.workers.process.protocol import WorkerSpec
from headway.runtime.workers.process.recipe import Recipe

_CORES = re.compile(r"\d+(-\d+)?(\+\d+(-\d+)?)*")
_DEVICE = re.compile(r"cuda:(\w[\w\-/]*)")


class ProcessSettings(Protocol):
    """What a user sets: the options of a batcher, or a model of the configuration."""

    @property
    def max_restarts(self) -> int: ...
    @property
    def load_timeout_s(self) -> float: ...
    @property
    def execute_timeout_ms(self) -> float | None: ...
    @property
    def heartbeat_timeout_s(self) -> float: ...
    @property
    def worker_memory_mb(self) -> float | None: ...
    @property
    def pin(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    max_restarts: int = MAX_RESTARTS
    load_timeout_s: float | None = None
    execute_timeout_s: float | None = None
    heartbeat_timeout_s: float = 10.0
    memory_bytes: int | None = None
    pin: Sequence[str] = ()
    imports: Sequence[str] = ()  # slow imports, which the spare process has done already

    def __post_init__(self) -> None:
        for place in self.pin:
            placed(place)

    @classmethod
    def of(cls, settings: ProcessSettings, imports: Sequence[str] = ()) -> "ProcessOptions":
        limit_ms, memory_mb = settings.execute_timeout_ms, settings.worker_memory_mb
        return cls(
            max_restarts=settings.max_restarts,
            load_timeout_s=settings.load_timeout_s,
            execute_timeout_s=None if limit_ms is None or limit_ms == math.inf else limit_ms / 1e3,
            heartbeat_timeout_s=settings.heartbeat_timeout_s,
            memory_bytes=None if memory_mb is None else int(memory_mb * 2**20),
            pin=tuple(settings.pin),
            imports=imports,
        )

    @property
    def restarts(self) -> RestartPolicy:
        return RestartPolicy(max_restarts=self.max_restarts)

    def spec(self, name: str, recipe: Recipe, number: int) -> WorkerSpec:
        """The specification for one of the model's workers."""
        cores, environment = placed(self.pin[number % len(self.pin)]) if self.pin else ((), {})
        return WorkerSpec(
            name=name,
            recipe=recipe,
            arguments=list(sys.argv),
            path=list(sys.path),
            folder=os.getcwd(),
            main=_main_file() if recipe.needs_main else None,
            environment={**os.environ, **environment},
            cores=cores,
            memory_bytes=self.memory_bytes,
            log_level=logging.getLogger().getEffectiveLevel(),
        )


def placed(place: str) -> tuple[tuple[int, ...], dict[str, str]]:
    """`0-3`, `0+2`: cores; `cuda:1`: a device, the only one that its worker sees."""
    device = _DEVICE.fullmatch(place)
    if device is not None:
        return (), {"CUDA_VISIBLE_DEVICES": device[1]}
    if not _CORES.fullmatch(place):
        raise ConfigError(
            f"{place!r} is neither cores (0-3, 0+2) nor a device (cuda:0)", field="pin"
        )
    cores: set[int] = set()
    for part in place.split("+"):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    there = os.sched_getaffinity(0)
    if not cores <= there:
        raise ConfigError(
            f"{place!r}: there are only the cores {sorted(there)[0]} to {sorted(there)[-1]}",
            field="pin",
        )
    return tuple(sorted(cores)), {}


def _main_file() -> str | None:
    """The script that runs, where the other process can read it, too."""
    main: Any = sys.modules.get("__main__")
    file: str | None = getattr(main, "__file__", None)
    if file is None or getattr(main, "__spec__", None) is not None or not os.path.isfile(file):
        return None
    return os.path.abspath(file)
