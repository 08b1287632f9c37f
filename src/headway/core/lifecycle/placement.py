"""Decide where a model runs: in the event loop, in threads, or in processes of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from headway.errors import ConfigError

WorkerKind: TypeAlias = Literal["inline", "thread", "process"]


@dataclass(frozen=True, slots=True)
class Placement:
    kind: WorkerKind
    reason: str  # for the log


def process_setting(worker_memory_mb: float | None, pin: Sequence[str]) -> str:
    """The setting that only a process of its own can keep; empty: none."""
    return "worker_memory_mb" if worker_memory_mb is not None else "pin" if pin else ""


def place(
    name: str,
    asked: str,
    *,
    is_async: bool,
    workers: int,
    is_python: bool,  # the user's own code, which holds the interpreter's lock while it runs
    needs_process: str,  # see `process_setting`
    has_processes: bool = True,  # does this system support processes of its own?
) -> Placement:
    """Place a model. Raises ConfigError for settings that contradict each other."""
    if not has_processes and (asked == "process" or needs_process):
        raise ConfigError("processes of its own need Linux", field=needs_process or "worker")
    if asked != "auto":
        if asked == "inline" and workers > 1 and not is_async:
            raise ConfigError(
                f"{name} blocks the event loop while it runs inline, so it has one worker, not "
                f"{workers}: write it as `async def`, or use threads or processes",
                field="workers",
            )
        return _granted(name, asked, is_async=is_async, needs_process=needs_process)
    if needs_process:
        return Placement("process", f"{needs_process} is set")
    if is_async:
        return Placement("inline", "it is async")
    if workers > 1 and is_python and has_processes:
        return Placement("process", f"{workers} workers in one process would share its Python lock")
    return Placement("thread", "its calls would block the event loop")


def place_engine(
    name: str, asked: str, *, needs_process: str, has_processes: bool = True
) -> Placement:
    """Place a language model: in a process of its own, if supported. Raises ConfigError."""
    if not has_processes and (asked == "process" or needs_process):
        raise ConfigError("processes of its own need Linux", field=needs_process or "worker")
    if asked == "inline":
        raise ConfigError(
            f"{name} is a language model: its engine runs in a process or a thread", field="worker"
        )
    if asked != "auto":
        return _granted(name, asked, is_async=False, needs_process=needs_process)
    if has_processes:
        return Placement("process", "a crash of its engine does not end the server")
    return Placement("thread", "processes of its own need Linux")


def _granted(name: str, asked: str, *, is_async: bool, needs_process: str) -> Placement:
    if asked not in ("inline", "thread", "process"):
        raise ConfigError(
            f"{asked!r} is not one of 'auto', 'inline', 'thread', 'process'", field="worker"
        )
    if needs_process and asked != "process":
        raise ConfigError(f"{needs_process} needs worker 'process'", field="worker")
    if asked == "thread" and is_async:
        raise ConfigError(f"{name} is async: it runs in the event loop", field="worker")
    return Placement(cast(WorkerKind, asked), "as it was asked to")
