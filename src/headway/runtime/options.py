"""What a person typed, read: names of policies, milliseconds, buckets become a `Policy`."""

from collections.abc import Mapping, Sequence
from typing import cast

from headway.core import Compose, Firing, Order, Policy
from headway.core.policy import choice, read_buckets
from headway.errors import ConfigError

_POLICIES = ("auto", "idle", "window", "static")


def policy_of(
    model: object,
    *,
    policy: str,
    max_batch_size: int,
    max_wait_ms: float | None,
    max_batch_cost: int | None,
    slo_ms: float | None,
    slo_percentile: float,
    max_queue: int,
    order: str,
    compose: str,
    buckets: Sequence[int] | str,
    pad_sizes: Sequence[int],
    workers: int,
    tenants: Mapping[str, float] | None,
    batch_sizes: Sequence[int],
) -> Policy:
    """The options of a `Batcher` that decide; some of them the model may have said itself. Raises
    ConfigError, naming the option."""
    firing = _firing(policy, max_wait_ms=max_wait_ms, slo_ms=slo_ms)
    bounds, quantiles = read_buckets(buckets) if isinstance(buckets, str) else (tuple(buckets), 0)
    return Policy(
        firing=firing,
        max_batch_size=max_batch_size,
        max_wait_s=0.0 if policy == "idle" else seconds(max_wait_ms, "max_wait_ms"),
        max_batch_cost=max_batch_cost,
        slo_s=seconds(slo_ms, "slo_ms"),
        slo_percentile=slo_percentile,
        max_queue=max_queue,
        order=cast(Order, choice(Order, order, "order")),
        compose=_compose(compose, model),
        buckets=bounds,
        quantiles=quantiles,
        pad_sizes=tuple(pad_sizes) or tuple(getattr(model, "pad_sizes", ())),
        workers=workers,
        tenant_weights=dict(tenants or {}),
        batch_sizes=tuple(batch_sizes),
    )


def _firing(policy: str, *, max_wait_ms: float | None, slo_ms: float | None) -> Firing:
    """The rule for what a person typed: 'idle' is `auto` that never waits."""
    if policy == "idle":
        if max_wait_ms:
            raise ConfigError("policy 'idle' never waits; 'auto' may", field="max_wait_ms")
        return Firing.AUTO
    if policy not in _POLICIES:
        choices = ", ".join(map(repr, _POLICIES))
        raise ConfigError(f"{policy!r} is not one of {choices}", field="policy")
    if slo_ms is not None and policy != "auto":
        raise ConfigError(
            f"policy {policy!r} knows no latency goal; 'auto' and 'idle' do", field="slo_ms"
        )
    return Firing(policy)


def _compose(name: str, model: object) -> Compose:
    """'auto': as the model takes them."""
    if name == "auto":
        return Compose.PACKED if getattr(model, "packed", False) else Compose.DP
    return cast(Compose, choice(Compose, name, "compose"))


def seconds(milliseconds: object, name: str) -> float | None:
    if milliseconds is None:
        return None
    if not isinstance(milliseconds, int | float):
        raise ConfigError(f"must be a number, not {milliseconds!r}", field=name)
    return milliseconds / 1e3
