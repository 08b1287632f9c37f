"""All options of a batcher, and the settings of its parts that follow from them.

`Batcher` and `@batched` take these as keywords, and a server's configuration has settings of the
same names. What a person types (names, milliseconds, megabytes) is converted here to the units
of the core and the workers (enums, seconds, bytes).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, cast, get_args

from headway.core.costs import CostTable
from headway.core.faults.bisecting import MAX_RERUNS
from headway.core.faults.supervision import MAX_RESTARTS
from headway.core.policy import Compose, Firing, Order, Policy, choice, read_buckets
from headway.errors import ConfigError, nearest
from headway.runtime.calling.row_dependence import DependentRows
from headway.runtime.events import Observer

_POLICIES = ("auto", "idle", "window", "static")
_DEFAULTS = Policy()
_NO_LISTS = (str, bytes, Mapping)  # though they are iterable
# Options of other libraries, and their names here.
_WAIT = "max_wait_ms (in milliseconds)"
_ELSEWHERE = {
    "batch_size": "max_batch_size",
    "max_batch": "max_batch_size",
    "batch_max_size": "max_batch_size",
    "batch_timeout": _WAIT,
    "batch_timeout_ms": _WAIT,
    "batch_wait_timeout_s": _WAIT,
    "batch_wait_timeout_ms": _WAIT,
    "max_latency_ms": _WAIT,
    "max_latency": _WAIT,
    "max_wait": _WAIT,
    "max_wait_s": _WAIT,
    "timeout_ms": _WAIT,
    "max_queue_delay_microseconds": _WAIT,
    "timeout": "deadline_ms of a call (in milliseconds), or max_wait_ms, the wait for more items",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherOptions:
    max_batch_size: int = _DEFAULTS.max_batch_size
    max_wait_ms: float | None = None
    max_batch_cost: int | None = _DEFAULTS.max_batch_cost
    slo_ms: float | None = None
    slo_percentile: float = _DEFAULTS.slo_percentile
    max_queue: int = _DEFAULTS.max_queue
    policy: Literal["auto", "idle", "window", "static"] = "auto"
    order: Literal["fifo", "shortest"] = "fifo"
    compose: Literal["auto", "dp", "buckets", "sort", "fifo", "packed"] = "auto"
    buckets: Sequence[int] | str = "pow2"
    pad_sizes: Sequence[int] = ()
    dependent_rows: DependentRows = "alone"
    workers: int = _DEFAULTS.workers
    tenants: Mapping[str, float] | None = None
    batch_sizes: Sequence[int] = ()
    size: Callable[[Any], int] | None = None
    prepare: Callable[[Any], Any] | None = None
    max_reruns: int = MAX_RERUNS
    costs: CostTable | None = None
    observers: Sequence[Observer] = ()
    name: str | None = None
    worker: Literal["auto", "inline", "thread", "process"] = "auto"
    execute_timeout_ms: float | None = None
    load_timeout_s: float = 600.0
    heartbeat_timeout_s: float = 10.0
    max_restarts: int = MAX_RESTARTS
    worker_memory_mb: float | None = None
    pin: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.max_reruns, int) or isinstance(self.max_reruns, bool):
            raise ConfigError(
                f"must be a whole number, not {self.max_reruns!r:.40}", field="max_reruns"
            )
        if self.max_reruns < 0:
            raise ConfigError("must be at least 0", field="max_reruns")
        if self.dependent_rows not in get_args(DependentRows):
            choices = ", ".join(map(repr, get_args(DependentRows)))
            raise ConfigError(
                f"{self.dependent_rows!r:.40} is not one of {choices}", field="dependent_rows"
            )
        for name in ("pad_sizes", "batch_sizes", "observers", "pin"):
            _check_list(name, getattr(self, name), "[…]")
        if not isinstance(self.buckets, str):
            _check_list("buckets", self.buckets, "[64, 128], 'pow2' or 'quantile:4'")
        if not isinstance(self.tenants, Mapping | NoneType):
            raise ConfigError(
                f"must be a weight for each name, as in {{'acme': 2.0}}, not {self.tenants!r:.40}",
                field="tenants",
            )
        limit_s = _seconds(self.execute_timeout_ms, "execute_timeout_ms")
        if limit_s is not None and not limit_s > 0:
            given = self.execute_timeout_ms
            raise ConfigError(f"must be more than 0, not {given!r}", field="execute_timeout_ms")
        _seconds(self.max_wait_ms, "max_wait_ms")
        _seconds(self.slo_ms, "slo_ms")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "BatcherOptions":
        """Read the options from keywords. Raises TypeError that names an unknown option."""
        known = cls.__dataclass_fields__
        for name in given:
            if name not in known:
                meant = _ELSEWHERE.get(name)
                maybe = nearest(name, known) if meant is None else f"; did you mean {meant}?"
                raise TypeError(f"there is no option {name!r}{maybe}")
        return cls(**given)

    @property
    def execute_timeout_s(self) -> float | None:
        """The time limit of a batch; None: it may run for ever."""
        limit_s = _seconds(self.execute_timeout_ms, "execute_timeout_ms")
        return None if limit_s == math.inf else limit_s

    def policy_for(self, model: object) -> Policy:
        """The scheduler's policy; the model may have set some options itself. Raises ConfigError,
        naming the option."""
        buckets, quantiles = self.buckets, 0
        if isinstance(buckets, str):
            buckets, quantiles = read_buckets(buckets)
        return Policy(
            firing=self._firing(),
            max_batch_size=self.max_batch_size,
            max_wait_s=0.0 if self.policy == "idle" else _seconds(self.max_wait_ms, "max_wait_ms"),
            max_batch_cost=self.max_batch_cost,
            slo_s=_seconds(self.slo_ms, "slo_ms"),
            slo_percentile=self.slo_percentile,
            max_queue=self.max_queue,
            order=cast(Order, choice(Order, self.order, "order")),
            compose=self._compose(model),
            buckets=tuple(buckets),
            quantiles=quantiles,
            pad_sizes=tuple(self.pad_sizes) or tuple(getattr(model, "pad_sizes", ())),
            workers=self.workers,
            tenant_weights=dict(self.tenants or {}),
            batch_sizes=tuple(self.batch_sizes),
        )

    def _firing(self) -> Firing:
        """The rule that the user named; 'idle' is `auto` that never waits."""
        policy = self.policy
        if policy == "idle":
            if self.max_wait_ms:
                raise ConfigError("policy 'idle' never waits; 'auto' may", field="max_wait_ms")
            return Firing.AUTO
        if policy not in _POLICIES:
            choices = ", ".join(map(repr, _POLICIES))
            raise ConfigError(f"{policy!r} is not one of {choices}", field="policy")
        if self.slo_ms is not None and policy != "auto":
            raise ConfigError(
                f"policy {policy!r} does not follow an SLO; 'auto' and 'idle' do", field="slo_ms"
            )
        return Firing(policy)

    def _compose(self, model: object) -> Compose:
        """'auto' depends on the model."""
        if self.compose == "auto":
            return Compose.PACKED if getattr(model, "packed", False) else Compose.DP
        return cast(Compose, choice(Compose, self.compose, "compose"))


def _seconds(milliseconds: object, name: str) -> float | None:
    if milliseconds is None:
        return None
    if not isinstance(milliseconds, int | float) or isinstance(milliseconds, bool):
        raise ConfigError(f"must be a number, not {milliseconds!r:.40}", field=name)
    try:
        return milliseconds / 1e3
    except OverflowError:
        raise ConfigError("is a whole number beyond every float", field=name) from None


def _check_list(name: str, values: object, example: str) -> None:
    if not isinstance(values, Iterable) or isinstance(values, _NO_LISTS):
        raise ConfigError(f"must be a list, as in {example}, not {values!r:.40}", field=name)
