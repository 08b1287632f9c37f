"""Every route of the app with keys: who is let in, and who is counted."""

import re

import pytest

from headway.config import KeyConfig, ServerConfig
from headway.hosting.registry import Registry
from headway.server.app import App
from headway.server.auth.access import Access
from headway.server.auth.guard import Guard
from headway.server.auth.keys import NewKey, new_key
from headway.server.observing import Observing
from headway.server.run import make_app
from headway.server.service.routes import Route
from headway.wire.messages import Request

INFERRER, READER = new_key(), new_key()
REFUSED = (401, 403)


@pytest.fixture
def app() -> App:
    config = ServerConfig()
    keys = [
        KeyConfig(id="i", hash=INFERRER.hash, tenant="i", requests_per_s=0.001),
        KeyConfig(id="r", hash=READER.hash, tenant="r", rights=("metrics",)),
    ]
    guard = Guard(config, keys)
    return make_app(Registry(), config, guard=guard, observing=Observing(config))


async def status_of(app: App, route: Route, key: NewKey | None) -> int:
    headers = {} if key is None else {"x-api-key": key.key}
    path = re.sub(r"\{\w+\}", "x", route.template)
    return (await app.handle(Request(route.method, path, "", headers, b"", "id"))).status


async def test_whoever_has_no_key_gets_what_is_open(app: App) -> None:
    for route in app.routes:
        is_open = route.access is Access.OPEN
        assert (await status_of(app, route, None) == 401) is not is_open, route


async def test_a_key_that_is_not_known_gets_nothing(app: App) -> None:
    for route in app.routes:
        assert await status_of(app, route, new_key()) == 401, route


async def test_a_key_gets_what_its_rights_say(app: App) -> None:
    granted = {Access.OPEN, Access.READ, Access.METRICS}
    for route in app.routes:
        is_let_in = route.access in granted
        assert (await status_of(app, route, READER) not in REFUSED) is is_let_in, route


async def test_every_route_that_infers_counts_its_requests(app: App) -> None:
    counted = [route for route in app.routes if route.access is Access.INFER]
    assert len(counted) > 10
    assert await status_of(app, counted[0], INFERRER) != 429  # the only one for a long time
    for route in counted:
        assert await status_of(app, route, INFERRER) == 429, route
    read = next(route for route in app.routes if route.template == "/v2/models")
    assert await status_of(app, read, INFERRER) == 200
