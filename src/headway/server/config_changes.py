"""Computes what a new configuration changes, and what takes effect without a restart. Pure."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import asdict

from headway.config import Config, KeyConfig

# New connections use these after the change; other settings are fixed at the start.
LIVE = frozenset(
    [
        *("max_header_bytes", "header_timeout_s", "body_timeout_s", "write_timeout_s"),
        *("keep_alive_s", "drain_s", "stop_delay_s", "max_connections"),
        *("max_connections_per_address", "max_held_bytes", "max_handshakes"),
        *("keys_file", "api_keys"),
    ]
)
_HIDDEN = frozenset(["api_keys"])


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting whose value has changed."""

    name: str
    what: str
    is_live: bool  # False: needs a restart

    def __str__(self) -> str:
        return f"{self.name}: {self.what}" + ("" if self.is_live else " (needs a restart)")


def changes_of(old: Config, new: Config) -> list[SettingChange]:
    """The settings that differ, apart from keys."""
    found = [
        *_differing("server", asdict(old.server), asdict(new.server), LIVE),
        *_differing("every_model", old.every_model, new.every_model, ()),
    ]
    for name, before, after in _pairs(old.models, new.models, "name"):
        where = f"model {name!r}"
        if before is None or after is None:
            found.append(SettingChange(where, "removed" if after is None else "added", True))
        else:
            settings = asdict(before)
            found += _differing(where, settings, asdict(after), settings)
    return found


def key_changes_of(
    old: Sequence[KeyConfig], new: Sequence[KeyConfig], *, has_keys: bool
) -> list[SettingChange]:
    """Keys by their ids. `has_keys`: the server was started with keys. Without, its first key needs
    a restart."""
    changes = []
    for name, before, after in _pairs(old, new, "id"):
        what = "changed" if before and after else "added" if after else "removed"
        changes.append(SettingChange(f"key {name!r}", what, has_keys))
    weights = weights_of(old)
    for tenant, after in sorted(weights_of(new).items()):
        before = weights.get(tenant, 1.0)
        if before != after:
            changes.append(
                SettingChange(f"weight of {tenant!r}", f"{before:g} → {after:g}", has_keys)
            )
    return changes


def weights_of(keys: Iterable[KeyConfig]) -> dict[str, float]:
    """Weights by tenant: all keys of one tenant have the same."""
    return {key.tenant: key.weight for key in keys}


def merged(old: Config, new: Config) -> Config:
    """The configuration after the change: models and live settings from the new one, all else from
    the old one."""
    live = {name: getattr(new.server, name) for name in LIVE}
    server = msgspec.structs.replace(old.server, **live)
    return msgspec.structs.replace(old, server=server, models=new.models)


def _pairs(old: Iterable[Any], new: Iterable[Any], by: str) -> Iterator[tuple[str, Any, Any]]:
    """The entries that differ, by name: before and after; None where there is none."""
    before: Mapping[str, Any] = {getattr(each, by): each for each in old}
    after: Mapping[str, Any] = {getattr(each, by): each for each in new}
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield name, before.get(name), after.get(name)


def _differing(
    where: str, old: Mapping[str, Any], new: Mapping[str, Any], live: Container[str]
) -> Iterator[SettingChange]:
    for name in dict.fromkeys((*old, *new)):
        before, after = old.get(name), new.get(name)
        if before != after:
            what = "changed" if name in _HIDDEN else f"{_shown(before)} → {_shown(after)}"
            yield SettingChange(f"{where}.{name}", what, name in live)


def _shown(value: object) -> str:
    return "unset" if value in (None, "", (), {}) else str(value)
