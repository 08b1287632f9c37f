"""A served model, as its keeper sees it: started, watched, retired."""

from collections.abc import Mapping
from typing import Any, Protocol

from headway.core.costs import CostTable
from headway.hosting.registry import ServedModel
from headway.hosting.warm_up import Beside
from headway.runtime.events import Observer


class ManagedModel(ServedModel, Protocol):
    @property
    def model(self) -> Any: ...

    @property
    def costs(self) -> CostTable | None: ...

    @property
    def trouble(self) -> str:
        """The reason why nothing completes any more; empty: it does, or will."""
        ...

    @property
    def is_busy(self) -> bool: ...

    @property
    def is_asked(self) -> bool:
        """Whether it has requests now, or had some a moment ago."""
        ...

    @property
    def idle_s(self) -> float: ...

    def observe(self, observer: Observer) -> None: ...

    def weigh(self, weights: Mapping[str, float]) -> None: ...

    def looks_like(self, other: Any) -> bool: ...

    async def load(self) -> None: ...

    async def warm(self, beside: Beside | None = None) -> None: ...

    async def retire(self, *, drain_s: float) -> None: ...

    async def close(self, *, drain_s: float = 30.0) -> None: ...
