"""Every route and method has its rule."""

import pytest

from headway.config import ServerConfig
from headway.hosting.registry import Registry
from headway.server.api import draining
from headway.server.api.openai import embeddings, models
from headway.server.api.plain import handlers as plain
from headway.server.api.v2 import handlers as v2
from headway.server.auth.access import Access, access_of_method, access_of_route, rule_of_route
from headway.server.observing import Observing
from headway.server.run import make_app

ROUTES = [*v2.ROUTES, *models.ROUTES, *embeddings.ROUTES, *plain.ROUTES, *draining.ROUTES]


@pytest.mark.parametrize(
    ("method", "template", "access"),
    [
        ("GET", "/v2/health/live", Access.OPEN),
        ("GET", "/v2/health/ready", Access.OPEN),
        ("GET", "/v2/models/{model}/ready", Access.OPEN),
        ("GET", "/v2/models/{model}/versions/{version}/ready", Access.OPEN),
        ("GET", "/v2", Access.READ),
        ("GET", "/v2/models/{model}", Access.READ),
        ("GET", "/v1/models", Access.READ),
        ("GET", "/openapi.json", Access.READ),
        ("POST", "/v2/repository/index", Access.READ),
        ("GET", "/v2/logging", Access.READ),
        ("GET", "/metrics", Access.METRICS),
        ("POST", "/v2/models/{model}/infer", Access.INFER),
        ("POST", "/v2/models/{model}/generate_stream", Access.INFER),
        ("POST", "/v1/embeddings", Access.INFER),
        ("POST", "/v1/predict/{model}", Access.INFER),
        ("POST", "/v1/something/new", Access.ADMIN),
        ("GET", "/v1/something/new", Access.ADMIN),
        ("DELETE", "/v2/models/{model}", Access.ADMIN),
        ("GET", "/v2/models/{model}/new", Access.ADMIN),
        ("GET", "/v2/systemsharedmemory/region/{region}/status", Access.READ),
        ("POST", "/v2/rerank", Access.INFER),
        ("POST", "/v2/repository/models/{model}/load", Access.ADMIN),
        ("POST", "/v2/repository/models/{model}/unload", Access.ADMIN),
        ("POST", "/v2/systemsharedmemory/region/{region}/register", Access.ADMIN),
        ("POST", "/v2/logging", Access.ADMIN),
        ("POST", "/v2/models/{model}/trace/setting", Access.ADMIN),
        ("POST", "/admin/drain", Access.ADMIN),
        ("GET", "/admin/models", Access.ADMIN),
    ],
)
def test_a_route_takes_what_it_does(method: str, template: str, access: Access) -> None:
    assert access_of_route(method, template) is access


def test_every_route_that_there_is_has_a_rule() -> None:
    """What has none is the administrator's: add a rule to `server/auth/access.py`."""
    app = make_app(Registry(), ServerConfig(), observing=Observing(ServerConfig()))
    assert len(app.routes) > 50
    assert [each for each in app.routes if rule_of_route(*each) is None] == []


def test_only_health_is_open() -> None:
    found = {t for m, t, _ in ROUTES if access_of_route(m, t) is Access.OPEN}
    assert all(each.endswith(("/live", "/ready")) for each in found)


def test_what_is_not_known_is_not_open() -> None:
    assert access_of_method("SomethingNew") is Access.ADMIN
    assert access_of_method("ModelInfer") is Access.INFER
    assert access_of_method("ServerReady") is Access.OPEN


def test_admin_may_everything_and_the_others_their_own() -> None:
    assert all(each.is_granted_to(("admin",)) for each in Access)
    granted = {each for each in Access if each.is_granted_to(("infer",))}
    assert granted == {Access.OPEN, Access.READ, Access.INFER}
    assert Access.METRICS.is_granted_to(("metrics",))
    assert not Access.INFER.is_granted_to(("metrics",))
