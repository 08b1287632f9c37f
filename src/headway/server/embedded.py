"""The whole application without a listener: for a program that serves it itself, as ASGI."""

import functools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

from headway.config import Config, ServerConfig, keys_of
from headway.hosting.registry import Registry
from headway.hosting.repository.keeper import Keeper
from headway.models.catalogue import AnyModel
from headway.observe.metrics import Metrics
from headway.server.app import App
from headway.server.auth.guard import Guard
from headway.server.config_changes import weights_of
from headway.server.garbage import GarbagePauses
from headway.server.observing import Observing
from headway.server.run import make_app, make_served, observing_of, regions_of
from headway.server.service.inference import Inference, inference_over
from headway.version import VERSION
from headway.wire.body_room import BodyRoom

if TYPE_CHECKING:
    from headway.server.grpc.mounted import MountedGrpc


class Embedded(NamedTuple):
    app: App
    registry: Registry
    metrics: Metrics | None
    grpc: "Callable[[], MountedGrpc]"


@asynccontextmanager
async def embedded(
    config: Config, given: Mapping[str, Callable[[], AnyModel]]
) -> AsyncIterator[Embedded]:
    """Load every model; drain and close them afterwards. Raises if nothing can be served."""
    keys = keys_of(config)
    guard, room = Guard(config.server, keys, is_mounted=True), BodyRoom(config.server)
    with regions_of(config.server) as regions, observing_of(config.server) as observing:
        make = functools.partial(make_served, weights=weights_of(keys), observing=observing)
        async with Keeper(config, make, given=given, stages=observing.stages) as keeper:
            observing.follow(keeper.registry)
            inference = inference_over(
                keeper.registry, config.server, version=VERSION, regions=regions
            )
            app = make_app(inference, config.server, guard=guard, observing=observing, room=room)
            await keeper.wait_started()
            pauses = GarbagePauses(keeper.registry, observing.history, is_guest=True)
            pauses.start()
            try:
                grpc = functools.partial(_grpc, inference, config.server, guard, observing, room)
                yield Embedded(observing.around(app), keeper.registry, observing.metrics, grpc)
            finally:
                pauses.stop()


def _grpc(
    inference: Inference, config: ServerConfig, guard: Guard, observing: Observing, room: BodyRoom
) -> "MountedGrpc":
    from headway.server.grpc.mounted import MountedGrpc

    return MountedGrpc(inference, config, guard=guard, observing=observing, room=room)
