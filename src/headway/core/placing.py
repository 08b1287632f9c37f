"""Decide where a model runs: in the event loop, in threads, or in processes of its own."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from headway.errors import ConfigError

WorkerKind: TypeAlias = Literal["inline", "thread", "process"]


@dataclass(frozen=True, slots=True)
class Placement:
    kind: WorkerKind
    reason: str  # for the log


def place(
    asked: str,
    *,
    is_async: bool,
    workers: int,
    is_python: bool,  # the user's own code, which holds the interpreter's lock while it runs
    needs_process: str,  # the setting that only a process can keep; "": none
) -> Placement:
    """Raises ConfigError for a wish that cannot be."""
    if asked not in ("auto", "inline", "thread", "process"):
        raise ConfigError(
            f"{asked!r} is not one of 'auto', 'inline', 'thread', 'process'", field="worker"
        )
    if asked != "auto":
        if needs_process and asked != "process":
            raise ConfigError(f"{needs_process} needs worker 'process'", field="worker")
        if asked == "thread" and is_async:
            raise ConfigError("it is async: it runs in the event loop", field="worker")
        return Placement(asked, "as it was asked to")  # type: ignore[arg-type]  # seen above
    if needs_process:
        return Placement("process", f"{needs_process} is set")
    if is_async:
        return Placement("inline", "it is async")
    if workers > 1 and is_python:
        return Placement("process", f"{workers} workers in one process would share its Python lock")
    return Placement("thread", "its calls would block the event loop")
