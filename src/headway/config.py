"""Everything configurable, once. Files, environment variables and flags all come from these structs.

A typo fails at start, by name: unknown fields are errors, and every field has a limit and a line of
description, which becomes its `--help`.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from headway.errors import ConfigError


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One model: what it is, and the levers of its scheduler. All but `name` and `target` optional."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][\w.\-]*$", description="what clients call it")]
    target: Annotated[
        str, Meta(description="`module:Class`, a .onnx file, or a name from `headway models`")
    ]
    max_batch_size: Annotated[int, Meta(ge=1, description="most rows in one batch")] = 64
    max_wait_ms: (
        Annotated[float, Meta(ge=0, description="longest wait for company; absent: learned")] | None
    ) = None
    max_batch_cost: (
        Annotated[int, Meta(ge=1, description="most rows × largest size in a batch")] | None
    ) = None
    slo_ms: (
        Annotated[float, Meta(gt=0, description="answer within this; refuse early what cannot be")]
        | None
    ) = None
    slo_percentile: Annotated[float, Meta(gt=0, lt=100, description="share the SLO holds for")] = (
        99.0
    )
    max_queue: Annotated[int, Meta(ge=1, description="most rows waiting")] = 4096
    policy: Annotated[
        Literal["auto", "idle", "window", "static"], Meta(description="when batches leave")
    ] = "auto"
    order: Annotated[Literal["fifo", "shortest"], Meta(description="who is next in a class")] = (
        "fifo"
    )
    worker: Annotated[
        Literal["auto", "inline", "thread"], Meta(description="where the model runs")
    ] = "auto"
    workers: Annotated[int, Meta(ge=1, description="batches that run at once")] = 1
    tenants: Annotated[dict[str, float], Meta(description="weight by tenant; absent: 1")] = {}
    batch_sizes: Annotated[
        tuple[int, ...], Meta(description="the only batch sizes the model runs at")
    ] = ()
    warm_up: Annotated[
        bool, Meta(description="time the model on typical batches before traffic")
    ] = True
    options: Annotated[
        dict[str, Any], Meta(description="handed to the model's own constructor")
    ] = {}


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where to listen, and what to accept."""

    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="HTTP; 0: any free one")] = 8000
    grpc_port: Annotated[
        int, Meta(ge=-1, le=65535, description="gRPC; 0: any free one, -1: none")
    ] = 8001
    max_body_bytes: Annotated[int, Meta(ge=1, description="largest request body")] = 64 * 2**20
    max_header_bytes: Annotated[int, Meta(ge=256, description="largest request head")] = 32 * 2**10
    header_timeout_s: Annotated[float, Meta(gt=0, description="time to send a request's head")] = (
        10.0
    )
    body_timeout_s: Annotated[float, Meta(gt=0, description="time to send a request's body")] = 60.0
    keep_alive_s: Annotated[float, Meta(gt=0, description="idle time before a hang-up")] = 75.0
    drain_s: Annotated[float, Meta(ge=0, description="time to finish when asked to stop")] = 30.0
    debug: Annotated[bool, Meta(description="tracebacks in error answers")] = False


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole `headway.toml`: `[server]`, and one `[[models]]` table for each model."""

    server: ServerConfig = ServerConfig()
    models: tuple[ModelConfig, ...] = ()

    def __post_init__(self) -> None:
        names = [model.name for model in self.models]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"two models are named {sorted(twice)[0]!r}")


def load(path: Path) -> Config:
    """Read a TOML file. Every mistake is a ConfigError that says where it is."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), Config)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{path}: {error}") from error
