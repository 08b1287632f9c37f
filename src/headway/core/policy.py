"""Every option of the scheduler, checked once. All have defaults that need no tuning."""

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

from headway.errors import ConfigError


class Firing(StrEnum):
    AUTO = "auto"
    WINDOW = "window"
    STATIC = "static"


class Order(StrEnum):
    FIFO = "fifo"
    SHORTEST = "shortest"


class Compose(StrEnum):
    """Which items share a batch if sizes differ."""

    DP = "dp"  # the partition by size with the least time, computed anew for every batch
    BUCKETS = "buckets"  # only items of one bucket of sizes
    SORT = "sort"  # full batches in the order of sizes
    FIFO = "fifo"  # in order of arrival, however much padding that needs
    PACKED = "packed"  # in order of arrival; the model takes items without padding


MOST_ROWS = 2**20  # in a batch: tables have an entry for each number of rows
MOST_COUNT = 2**53  # for every count: above it, a float cannot represent every whole number
_MOST_WORKERS = 4096
_WINDOW_BATCHES = 4  # of one large request queued per worker: one runs, the next are planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    firing: Firing = Firing.AUTO
    max_batch_size: int = 64  # rows
    max_wait_s: float | None = None  # auto: the longest learned wait; window: the window
    max_batch_cost: int | None = None  # rows × largest size, e.g. padded tokens
    slo_s: float | None = None
    slo_percentile: float = 99.0
    max_queue: int = 4096  # rows
    order: Order = Order.FIFO
    compose: Compose = Compose.DP
    buckets: tuple[int, ...] = ()  # the largest size of each; empty, no quantiles: powers of two
    quantiles: int = 0  # the number of buckets with equally many items; 0: not used
    workers: int = 1
    tenant_weights: Mapping[str, float] = field(default_factory=dict)  # absent: 1
    batch_sizes: tuple[int, ...] = ()  # the only numbers of rows the model runs at; empty: any
    pad_sizes: tuple[int, ...] = ()  # the only sizes it runs at: items are padded up to the next
    ageing_s: float = 1.0  # items that waited longer get a share of every batch, in any class

    def __post_init__(self) -> None:
        for name in ("buckets", "batch_sizes", "pad_sizes"):
            object.__setattr__(self, name, tuple_of(name, getattr(self, name)))
        _check_count("max_batch_size", self.max_batch_size, most=MOST_ROWS)
        _check_count("workers", self.workers, most=_MOST_WORKERS)
        _check_count("max_queue", self.max_queue)
        if self.max_batch_cost is not None:
            _check_count("max_batch_cost", self.max_batch_cost)
        if self.max_wait_s is not None:
            _check_number("max_wait_ms", self.max_wait_s, least=0.0, shown_times=1e3)
        if self.slo_s is not None:
            _check_number("slo_ms", self.slo_s, above=0.0, shown_times=1e3)
        _check_number("ageing_s", self.ageing_s, above=0.0)
        _check_number("slo_percentile", self.slo_percentile, above=0.0, below=100.0)
        for tenant, weight in self.tenant_weights.items():
            _check_number(f"tenants[{tenant!r}]", weight, above=0.0)
        _check_ascending("buckets", self.buckets)
        _check_ascending("pad_sizes", self.pad_sizes)
        if self.quantiles < 0 or (self.quantiles and self.buckets):
            raise ConfigError(
                "are either given or learned from arrivals, not both", field="buckets"
            )
        self._check_firing()
        self._check_batch_sizes()

    @property
    def fan_out_rows(self) -> int:
        """How far requests of many values may fill the queue; other callers get the rest."""
        return max(self.max_queue // 2, min(self.max_queue, self.max_batch_size))

    @property
    def window_rows(self) -> int:
        """The rows of one such request that are queued at a time: enough for all workers."""
        return min(_WINDOW_BATCHES * self.max_batch_size * self.workers, self.fan_out_rows)

    def _check_firing(self) -> None:
        if self.firing is Firing.WINDOW and self.max_wait_s is None:
            raise ConfigError("policy 'window' needs this time", field="max_wait_ms")
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
        _check_ascending("batch_sizes", sizes, most=MOST_ROWS)
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


def read_buckets(text: str) -> tuple[tuple[int, ...], int]:
    """Parse what a person typed into `Policy.buckets` and `Policy.quantiles`."""
    kind, colon, number = text.partition(":")
    try:
        if text == "pow2":
            return (), 0
        if kind == "quantile" and colon:
            count = int(number)
            if count >= 2:
                return (), count
            raise ValueError
        return tuple(int(part) for part in text.split(",")), 0
    except ValueError:
        raise ConfigError(
            f"{text!r} is not one of 64,128,256 (the largest size of each), pow2, quantile:N "
            "(N from 2)",
            field="buckets",
        ) from None


def buckets_text(policy: Policy) -> str:
    """As a person types them: the inverse of `read_buckets`."""
    if policy.quantiles:
        return f"quantile:{policy.quantiles}"
    return ",".join(map(str, policy.buckets)) or "pow2"


def tuple_of(name: str, values: object) -> tuple[Any, ...]:
    """Convert `values`, e.g. a list, because compiled code accepts only a tuple."""
    if not isinstance(values, Iterable):
        raise ConfigError(f"must be a list, not {type(values).__name__}", field=name)
    return tuple(values)


def _check_ascending(name: str, values: tuple[int, ...], *, most: int = MOST_COUNT) -> None:
    for value in values:
        _check_count(name, value, most=most)
    if sorted(set(values)) != list(values):
        raise ConfigError(f"must be ascending, not {values}", field=name)


def _check_count(name: str, value: object, *, most: int = MOST_COUNT) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"must be a whole number, not {value!r}", field=name)
    if value < 1:
        raise ConfigError(f"must be at least 1{_not_given(value)}", field=name)
    if value > most:
        raise ConfigError(f"must be at most {most}{_not_given(value)}", field=name)


def _not_given(value: int) -> str:
    return f", not {value}" if abs(value) < 10**20 else ""  # a longer number is left out


def _check_number(
    name: str,
    value: object,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    shown_times: float = 1.0,
) -> None:
    """`shown_times`: the value is shown in the unit that a person gave it in."""
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise ConfigError("is a whole number beyond every float", field=name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ConfigError(f"must be a number, not {value!r}", field=name)
    shown = value * shown_times
    if value < least:
        raise ConfigError(f"must be at least {least:g}, not {shown:g}", field=name)
    if value <= above or value >= below:
        range_ = f"more than {above:g}" + (f" and less than {below:g}" if below < math.inf else "")
        raise ConfigError(f"must be {range_}, not {shown:g}", field=name)
