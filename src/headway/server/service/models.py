"""The models as a caller may see them: what every front end asks instead of the registry.

The caller is the first argument: None where the server has no keys: then every client sees all.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headway.errors import UnknownModel
from headway.hosting.registry import Registry, ServedModel, VersionEntry, unknown_model
from headway.server.auth.keys import Caller

if TYPE_CHECKING:
    from headway.hosting.repository.keeper import Keeper


class VisibleModels:
    """A key's models only; an error names no others."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry  # for what concerns no single model: health, draining

    def find_ready(self, caller: Caller | None, name: str, version: str = "") -> ServedModel | None:
        """Finds a model as the registry does; also raises Forbidden. Called for every request."""
        if caller is None:
            return self.registry.find_ready(name, version)
        name = self.registry.aliases.get(name, name)
        caller.check_model(name)
        try:
            return self.registry.find_ready(name, version)
        except UnknownModel:
            raise self._unknown(caller, name, version) from None

    def get(self, caller: Caller | None, name: str, version: str = "") -> ServedModel:
        name = self.registry.aliases.get(name, name)
        with self._allowed(caller, name, version):
            return self.registry.get(name, version)

    async def wait_ready(
        self, caller: Caller | None, name: str, version: str, *, timeout_s: float | None
    ) -> ServedModel:
        name = self.registry.aliases.get(name, name)
        with self._allowed(caller, name, version):
            return await self.registry.wait_ready(name, version, timeout_s=timeout_s)

    # ---- names and states

    def names(self, caller: Caller | None) -> list[str]:
        names = self.registry.names()
        return names if caller is None else caller.names_among(names)

    def aliases(self, caller: Caller | None) -> dict[str, str]:
        """Other names of models: each with its model's."""
        names = set(self.names(caller))
        found = sorted(self.registry.aliases.items())
        return {alias: name for alias, name in found if name in names}

    def adapters(self, caller: Caller | None) -> dict[str, str]:
        """The adapters of language models: each name with its model's."""
        found = self.registry.adapters()
        names = found if caller is None else caller.names_among(list(found))
        return {name: found[name] for name in names}

    def answering(self, caller: Caller | None) -> list[ServedModel]:
        """Every model, in the version that answers requests without a version."""
        return _of(caller, self.registry.answering())

    def versions(self, caller: Caller | None, name: str = "") -> list[ServedModel]:
        """Every version that answers, of one model or of all."""
        return _of(caller, self.registry.models(name))

    def of_statistics(
        self, caller: Caller | None, name: str = "", version: str = ""
    ) -> list[ServedModel]:
        """The models whose statistics are asked for: one version, all of one model's, or all.
        Raises the reason if there is none."""
        if version:
            return [self.get(caller, name, version)]
        if name:
            self.get(caller, name)
        return self.versions(caller, name)

    def index(self, caller: Caller | None) -> list[VersionEntry]:
        found = self.registry.index()
        return found if caller is None else [each for each in found if caller.may_use(each.name)]

    # ---- what changes

    async def load(
        self, caller: Caller | None, name: str, override: Mapping[str, Any] | None = None
    ) -> None:
        with self._may_change(caller, name) as keeper:
            await keeper.load(name, override)

    async def reload(self, caller: Caller | None, name: str) -> None:
        with self._may_change(caller, name) as keeper:
            await keeper.reload(name)

    async def unload(self, caller: Caller | None, name: str) -> None:
        with self._may_change(caller, name) as keeper:
            await keeper.unload(name)

    @contextmanager
    def _may_change(self, caller: Caller | None, name: str) -> Iterator["Keeper"]:
        keeper = self.registry.may_change()
        with self._allowed(caller, name):
            yield keeper

    @contextmanager
    def _allowed(self, caller: Caller | None, name: str, version: str = "") -> Iterator[None]:
        """Raises Forbidden, and names no models but the caller's own."""
        if caller is None:
            yield
            return
        caller.check_model(name)
        try:
            yield
        except UnknownModel:
            raise self._unknown(caller, name, version) from None

    def _unknown(self, caller: Caller, name: str, version: str) -> UnknownModel:
        return unknown_model(name, version, caller.names_among(self.registry.names()))


def _of(caller: Caller | None, models: Sequence[ServedModel]) -> list[ServedModel]:
    return [each for each in models if caller is None or caller.may_use(each.name)]
