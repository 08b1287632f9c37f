"""Every route and method has its rule."""

import pytest

from headway.config import ServerConfig
from headway.hosting.registry import Registry
from headway.server.auth.access import Access, access_of_method
from headway.server.observing import Observing
from headway.server.run import make_app
from headway.server.service.routes import Route
from headway.wire.messages import Response

APP = make_app(Registry(), ServerConfig(), observing=Observing(ServerConfig()))
ACCESS = {(row.method, row.template): row.access for row in APP.routes}


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
        ("POST", "/v1/predict/{model}/batch", Access.INFER),
        ("POST", "/v1/models/{model}:predict", Access.INFER),
        ("POST", "/v1/chat/completions", Access.INFER),
        ("POST", "/v1/completions", Access.INFER),
        ("POST", "/v1/audio/transcriptions", Access.INFER),
        ("POST", "/v1/images/generations", Access.INFER),
        ("POST", "/v1/embed", Access.INFER),
        ("POST", "/tokenize", Access.INFER),
        ("POST", "/", Access.INFER),
        ("POST", "/models/{model}", Access.INFER),
        ("POST", "/models/{model}/pipeline/{task}", Access.INFER),
        ("POST", "/models/{model}/rerank", Access.INFER),
        ("GET", "/info", Access.READ),
        ("GET", "/models/{model}/health", Access.OPEN),
        ("GET", "/v2/systemsharedmemory/region/{region}/status", Access.READ),
        ("POST", "/v2/rerank", Access.INFER),
        ("POST", "/v2/repository/models/{model}/load", Access.ADMIN),
        ("POST", "/v2/repository/models/{model}/unload", Access.ADMIN),
        ("POST", "/v2/systemsharedmemory/region/{region}/register", Access.ADMIN),
        ("POST", "/v2/logging", Access.ADMIN),
        ("POST", "/v2/models/{model}/trace/setting", Access.ADMIN),
        ("POST", "/v2/systemsharedmemory/unregister", Access.ADMIN),
        ("POST", "/v2/cudasharedmemory/unregister", Access.ADMIN),
        ("POST", "/v1/load_lora_adapter", Access.ADMIN),
        ("POST", "/v1/unload_lora_adapter", Access.ADMIN),
        ("POST", "/admin/drain", Access.ADMIN),
        ("GET", "/admin/models", Access.ADMIN),
    ],
)
def test_a_route_takes_what_it_does(method: str, template: str, access: Access) -> None:
    assert ACCESS[method, template] is access


def test_a_row_that_says_nothing_is_the_administrators() -> None:
    async def handle(_: object) -> Response:
        return Response()

    assert Route("GET", "/new", handle).access is Access.ADMIN


def test_only_health_and_pages_are_open() -> None:
    found = {template for (_, template), access in ACCESS.items() if access is Access.OPEN}
    pages = {"/", "/docs", "/chat", "/dashboard"}
    health = ("/live", "/ready", "/health", "/ping")
    versions = {"/api/version"}  # of Ollama's API, whatever is served
    assert all(each.endswith(health) for each in found - pages - versions)


def test_what_others_would_notice_takes_an_administrator() -> None:
    """A route that changes something for everybody, whatever its family."""
    changing = ("/load", "/unload", "/reload", "/register", "/unregister", "/setting", "/logging")
    for (method, template), access in ACCESS.items():
        if template.startswith("/admin") or (method == "POST" and template.endswith(changing)):
            assert access is Access.ADMIN, template


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
