"""`headway.ray.deployment`: models as a deployment of Ray Serve.

A replica is `headway.asgi` with its batchers inside. Serve's own limits would starve them (5 open
requests at a time), so they are set here; replicas are chosen by when they are expected to answer
(`routing.py`), and their number follows work and queued seconds (`scaling.py`).
"""

import functools
import inspect
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from headway.errors import ConfigError, nearest
from headway.ray.ingress import with_grpc
from headway.wiring import MountedApplication, asgi

if TYPE_CHECKING:
    from ray import serve as _serve

_log = logging.getLogger(__name__)
_LEAST_ONGOING: Final = 512
_BATCHES: Final = 4  # open requests a replica, in batches: one runs, one is ready, two arrive
_ROUTER: Final = "headway.ray.routing:FinishFirst"
_SCALING: Final = "headway.ray.scaling:WorkPolicy"
_STATS_S: Final = 1.0


class Replica:
    """One replica: an ASGI application for Serve's proxies, and methods for handles."""

    def __init__(self, target: Any, name: str | None, settings: dict[str, Any]) -> None:
        self.headway: MountedApplication = asgi(target, name=name, **settings)

    @functools.cached_property
    def grpc(self) -> Any:
        """Its methods of v2 over gRPC, which `ingress.py` puts here by name."""
        return self.headway.grpc()

    def __serve_build_asgi_app__(self) -> MountedApplication:
        return self.headway  # Serve runs its lifespan: a replica is ready once its models are

    async def predict(self, value: Any, *, model: str | None = None, **options: Any) -> Any:
        """The result for one value: `handle.predict.remote(value)`. `model`: which, if there are
        several; `options` are `deadline_ms`, `priority` and `parameters`."""
        return await self.headway.models[self._name(model)](value, **options)

    async def predict_many(
        self, values: Sequence[Any], *, model: str | None = None, **options: Any
    ) -> list[Any]:
        """The results of several values, in order, in one call of the handle."""
        return await self.headway.models[self._name(model)].many(values, **options)

    def _name(self, model: str | None) -> str:
        names = list(self.headway.models)
        if model is None and len(names) > 1:
            raise ConfigError(f"which model? There are {', '.join(names)}", field="model")
        return names[0] if model is None else model

    async def check_health(self) -> None:
        """Called by Serve; raises if nothing can complete here, and Serve replaces the replica."""
        self.headway.check()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        load, utilization = self.headway.load()
        return {"work": utilization, "queued_s": load.queue_s}

    async def record_routing_stats(self) -> dict[str, float]:
        pace = self.headway.pace()
        return {} if pace is None else pace._asdict()


def deployment(target: Any, *, name: str | None = None, **settings: Any) -> "_serve.Deployment":
    """A deployment of Ray Serve: `serve.run(headway.ray.deployment("app:Model").bind())`.

    `target`: what `headway.asgi` takes. `settings`: those of `serve.deployment` and those of a
    server or model of ours, side by side. `name`: of the model, and of the deployment.
    """
    serve = _ray_serve()
    known = {*inspect.signature(serve.deployment).parameters} - {"_func_or_class", "name"}
    theirs = {key: settings.pop(key) for key in sorted(known & settings.keys())}
    try:
        asgi(target, name=name, **settings)  # a mistake shows here, not in every replica
    except ConfigError as error:
        if error.field in settings and "no such setting" in str(error):
            close = nearest(str(error.field), known)
            raise ConfigError(
                f"neither Serve nor Headway knows it{close}", field=error.field
            ) from None
        raise

    class HeadwayReplica(Replica):
        def __init__(self) -> None:
            super().__init__(target, name, settings)

    theirs.setdefault("name", name or "headway")
    replica = with_grpc(HeadwayReplica)
    return serve.deployment(serve.ingress()(replica), **_limits(theirs, settings))


def _limits(theirs: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Serve's settings with those that a batcher needs."""
    from ray.serve.config import RequestRouterConfig

    most = int(settings.get("max_batch_size", 64)) * int(settings.get("workers", 1))
    ongoing = theirs.setdefault("max_ongoing_requests", max(_LEAST_ONGOING, _BATCHES * most))
    if ongoing < 2 * most:
        _log.warning(
            "max_ongoing_requests=%d: a replica never sees two full batches of %d; batches stay "
            "small. Leave it out, or use %d",
            *(ongoing, most, _BATCHES * most),
        )
    theirs.setdefault("graceful_shutdown_timeout_s", float(settings.get("drain_s", 30.0)) + 10.0)
    theirs.setdefault(
        "request_router_config",
        RequestRouterConfig(request_router_class=_ROUTER, request_routing_stats_period_s=_STATS_S),
    )
    if theirs.get("num_replicas") == "auto" or theirs.get("autoscaling_config") is not None:
        theirs["autoscaling_config"] = _scaling(theirs.pop("autoscaling_config", None))
        theirs.pop("num_replicas", None)
    return theirs


def _scaling(given: Any) -> Any:
    """The autoscaling with our policy, unless it has one."""
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

    if isinstance(given, AutoscalingConfig):
        given = given.model_dump(exclude_unset=True)
    config = dict(given or {"min_replicas": 1, "max_replicas": 100})
    waits = config.pop("target_wait_s", 0.1)
    config.setdefault("metrics_interval_s", _STATS_S)
    config.setdefault("look_back_period_s", 10.0)
    config.setdefault("upscale_delay_s", 3.0)
    config.setdefault("downscale_delay_s", 120.0)
    config.setdefault(
        "policy",
        AutoscalingPolicy(policy_function=_SCALING, policy_kwargs={"target_wait_s": waits}),
    )
    return AutoscalingConfig(**config)


def _ray_serve() -> Any:
    try:
        from ray import serve
    except ImportError as error:
        raise ConfigError("headway.ray needs Ray: pip install 'headway[ray]'") from error
    return serve
