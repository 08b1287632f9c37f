"""Every lever of the scheduler, checked once. All have defaults that need no tuning."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from headway.errors import ConfigError


class Firing(StrEnum):
    AUTO = "auto"
    WINDOW = "window"
    STATIC = "static"


class Order(StrEnum):
    FIFO = "fifo"
    SHORTEST = "shortest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    firing: Firing = Firing.AUTO
    max_batch_size: int = 64  # rows
    max_wait_s: float | None = None  # auto: caps the learned linger; window: the window
    max_batch_cost: int | None = None  # rows × largest size, e.g. padded tokens
    slo_s: float | None = None
    slo_percentile: float = 99.0
    max_queue: int = 4096  # rows
    order: Order = Order.FIFO
    workers: int = 1
    tenant_weights: Mapping[str, float] = field(default_factory=dict)  # absent: 1
    batch_sizes: tuple[int, ...] = ()  # the only sizes the model runs at; empty: any
    ageing_s: float = 1.0  # waited longer: a share of every batch is yours, whatever your class

    def __post_init__(self) -> None:
        _at_least("max_batch_size", self.max_batch_size, 1)
        _at_least("workers", self.workers, 1)
        _at_least("max_queue", self.max_queue, 1)
        _at_least("max_batch_cost", self.max_batch_cost, 1)
        _at_least("max_wait_ms", self.max_wait_s, 0)
        _more_than_zero("slo_ms", self.slo_s)
        _more_than_zero("ageing_s", self.ageing_s)
        for tenant, weight in self.tenant_weights.items():
            _more_than_zero(f"tenants[{tenant!r}]", weight)
        if not 0 < self.slo_percentile < 100:
            raise ConfigError(
                f"must lie between 0 and 100, not {self.slo_percentile}", field="slo_percentile"
            )
        for name in ("max_batch_size", "workers", "max_queue", "max_batch_cost"):
            if not isinstance(getattr(self, name), int | None):
                raise ConfigError(f"must be whole, not {getattr(self, name)}", field=name)
        self._check_firing()
        self._check_batch_sizes()

    def _check_firing(self) -> None:
        if self.firing is Firing.WINDOW and self.max_wait_s is None:
            raise ConfigError("policy 'window' needs its window", field="max_wait_ms")
        if self.firing is Firing.STATIC and self.max_wait_s is not None:
            raise ConfigError(
                "policy 'static' waits for a full batch; a window needs policy 'window'",
                field="max_wait_ms",
            )
        if self.firing is Firing.STATIC and self.max_queue < self.max_batch_size:
            raise ConfigError(
                f"policy 'static' never fills a batch of {self.max_batch_size} rows "
                f"from a queue of {self.max_queue}",
                field="max_queue",
            )

    def _check_batch_sizes(self) -> None:
        sizes = self.batch_sizes
        if not sizes:
            return
        if sorted(set(sizes)) != list(sizes) or sizes[0] < 1:
            raise ConfigError(f"must be positive and ascending, not {sizes}", field="batch_sizes")
        if sizes[-1] != self.max_batch_size:
            raise ConfigError(
                f"must end with max_batch_size ({self.max_batch_size}), not {sizes[-1]}",
                field="batch_sizes",
            )


def choice(enum: type[Enum], value: str, name: str) -> Enum:
    """The enum's member for what a person typed, or an error that lists the choices."""
    try:
        return enum(value)
    except ValueError:
        choices = ", ".join(repr(member.value) for member in enum)
        raise ConfigError(f"{value!r} is not one of {choices}", field=name) from None


def _at_least(name: str, value: float | None, least: float) -> None:
    if value is not None and not (value >= least and math.isfinite(value)):
        raise ConfigError(f"must be at least {least}, not {value}", field=name)


def _more_than_zero(name: str, value: float | None) -> None:
    if value is not None and not (value > 0 and math.isfinite(value)):
        raise ConfigError(f"must be more than 0, not {value}", field=name)
