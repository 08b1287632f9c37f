"""A model as it is on disk: its settings, its versions, how to make each."""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headway.config import ModelConfig
from headway.core.lifecycle.versions import Offer, VersionPolicy
from headway.errors import InvalidInput
from headway.hosting.repository.building import build_version
from headway.hosting.repository.folder import ModelFolder
from headway.hosting.repository.settings import overridden
from headway.hosting.tables import ModelOrigin
from headway.models import catalogue, source_versions
from headway.models.catalogue import AnyModel


@dataclass(frozen=True, slots=True)
class Listing:
    config: ModelConfig
    policy: VersionPolicy
    offers: tuple[Offer, ...]
    origins: Mapping[int, ModelOrigin]
    error: str | None = None  # why nothing of it can be used


def of_folder(
    folder: ModelFolder,
    *,
    override: Mapping[str, Any] | None = None,
    attempt: int = 0,
    cache_dir: Path | None = None,
) -> Listing:
    """Raise `attempt` to have unchanged files loaded again."""
    config, error = folder.config, folder.error
    if override and error is None:
        try:
            config = overridden(config, override, folder.name)
        except InvalidInput as problem:  # the folder's settings have changed: it no longer fits
            error = str(problem)
    seal = json.dumps([override or {}, attempt], sort_keys=True, default=str)

    def maker(version: int) -> Callable[[], AnyModel]:
        return functools.partial(build_version, folder.name, config, folder.versions[version])

    return Listing(
        config=msgspec.structs.replace(config, name=folder.name, target=config.target or "folder"),
        policy=config.versions.policy,
        offers=tuple(
            Offer(each.version, f"{each.fingerprint} {seal}") for each in folder.versions.values()
        ),
        origins={
            each.version: ModelOrigin(
                make=maker(each.version),
                folder=each.path,
                files=each.files,
                samples=folder.samples,
                cache_dir=cache_dir,
            )
            for each in folder.versions.values()
        },
        error=error,
    )


def of_config(
    config: ModelConfig,
    *,
    attempt: int = 0,
    cache_dir: Path | None = None,
    make: Callable[[], AnyModel] | None = None,
) -> Listing:
    """A model of the configuration: one version. `make`: of a program's own, which no target
    names."""
    edition = source_versions.read(config.target, attempt) if make is None else None
    digest = "" if edition is None else edition.digest
    seal = hashlib.sha256(repr((config, attempt, digest)).encode()).hexdigest()
    if make is None:
        make = functools.partial(catalogue.build, config.target, config.options, edition)
    return Listing(
        config=config,
        policy=VersionPolicy(),
        offers=(Offer(1, seal),),
        origins={1: ModelOrigin(make=make, cache_dir=cache_dir)},
    )
