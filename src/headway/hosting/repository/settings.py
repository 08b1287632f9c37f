"""A model's `model.toml`, and the settings that a `load` request may override."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from headway.config import ModelConfig, converted, read
from headway.core.lifecycle.versions import VersionPolicy
from headway.errors import ConfigError, InvalidInput, nearest

NAME = "model.toml"
_ONLY_HERE = frozenset(
    ["name", "aliases", "target", "options"]
)  # a `load` over the API may not set these


class VersionsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`[versions]`: which ones are served. One of the three; absent: the latest."""

    latest: Annotated[int, Meta(ge=1, description="the highest numbers, this many")] | None = None
    all: Annotated[bool, Meta(description="every version")] = False
    listed: Annotated[tuple[int, ...], Meta(description="these, and no others")] = ()

    def __post_init__(self) -> None:
        if sum((self.latest is not None, self.all, bool(self.listed))) > 1:
            raise ValueError("versions: one of latest, all and listed is expected, not several")

    @property
    def policy(self) -> VersionPolicy:
        return VersionPolicy(None if self.all else self.latest or 1, self.listed)


class RepositoryModelConfig(ModelConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything a model of a configuration has; its name is its folder's, and its target is what
    is in the version's folder, unless the file says otherwise."""

    name: str = ""
    target: str = ""
    versions: VersionsConfig = VersionsConfig()


def read_settings(path: Path, *, over: Mapping[str, Any]) -> RepositoryModelConfig:
    """A `model.toml`, with these settings over it. No file says nothing. Raises ConfigError."""
    table = read(path) if path.exists() else {}
    _convert(
        table, str(path)
    )  # report mistakes in the file as such, even where a flag overrides it
    return _convert({**table, **over}, str(path))


def overridden(
    config: RepositoryModelConfig, override: Mapping[str, Any], name: str
) -> RepositoryModelConfig:
    """The settings with those of a load request in their place. Raises InvalidInput."""
    table = {**msgspec.to_builtins(config), **_ours(override, name)}
    try:
        return _convert(table, "config")
    except ConfigError as error:
        raise InvalidInput(str(error)) from error


def parse_override(text: str) -> dict[str, Any]:
    """The JSON of a load request's `config` parameter."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"config is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidInput("config: a JSON object is expected")
    return found


# ---- Triton's words for our settings


def _ours(override: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Our own names, and Triton's for the same things. What merely describes the model is taken as
    read: clients send back the whole configuration that they got."""
    ours: dict[str, Any] = {}
    known = RepositoryModelConfig.__struct_fields__
    for key, value in override.items():
        if key == "name":
            if value != name:
                raise InvalidInput(f"config: it is for {value!r}, not {name!r}")
        elif key in _ONLY_HERE:
            raise InvalidInput(f"config: {key!r} can be set in {NAME} only")
        elif key in _TRITON:
            ours |= _TRITON[key](value)
        elif key in known:
            ours[key] = value
        elif key not in _DESCRIPTIVE:
            raise InvalidInput(f"config: {key}: no such setting{nearest(key, known)}")
    return ours


_DESCRIPTIVE = frozenset(
    [
        *("platform", "backend", "input", "output", "model_transaction_policy", "response_cache"),
        *("default_model_filename", "cc_model_filenames", "metric_tags", "optimization"),
        *("parameters", "model_warmup"),
    ]
)


def _version_policy(value: Any) -> dict[str, Any]:
    match value:
        case {"latest": {"num_versions": count}}:
            return {"versions": {"latest": _whole(count)}}
        case {"latest": {}}:
            return {"versions": {"latest": 1}}
        case {"all": {}}:
            return {"versions": {"all": True}}
        case {"specific": {"versions": [*versions]}}:
            return {"versions": {"listed": [_whole(version) for version in versions]}}
    raise InvalidInput(f"config: version_policy is {value!r}, which Triton does not have")


def _dynamic_batching(value: Any) -> dict[str, Any]:
    delay_us = value.get("max_queue_delay_microseconds") if isinstance(value, dict) else None
    return {} if not delay_us else {"max_wait_ms": _whole(delay_us) / 1000}


def _instance_group(value: Any) -> dict[str, Any]:
    groups = value if isinstance(value, list) else [value]
    counts = [each.get("count", 1) for each in groups if isinstance(each, dict)]
    return {"workers": sum(map(_whole, counts))} if counts else {}


def _whole(value: Any) -> int:
    try:
        return int(value)  # Triton's JSON has 64-bit numbers as texts
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"config: {value!r} is not a whole number") from error


def _max_batch_size(value: Any) -> dict[str, Any]:
    return {"max_batch_size": _whole(value) if isinstance(value, str) else value}


_TRITON = {
    "max_batch_size": _max_batch_size,
    "version_policy": _version_policy,
    "dynamic_batching": _dynamic_batching,
    "instance_group": _instance_group,
}


def _convert(table: Mapping[str, Any], where: str) -> RepositoryModelConfig:
    return converted(RepositoryModelConfig, table, where)
