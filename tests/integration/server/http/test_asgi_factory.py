"""`headway.asgi`: models in a FastAPI or Starlette application of one's own, at its root and under
a prefix, with its routes and middleware beside them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import fastapi
import httpx
import pytest
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.routing import Mount

import headway


class Shout(headway.Model[str, str]):
    def __init__(self, mark: str = "!") -> None:
        self.mark = mark

    def predict(self, items: list[str]) -> list[str]:
        return [item.upper() + self.mark for item in items]


class Fussy(headway.Model[str, str]):
    def predict(self, items: list[str]) -> list[str]:
        raise headway.InvalidInput(f"not {items[0]!r}")


class Broken(Shout):
    def load(self) -> None:
        raise ValueError("odd weights")


def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]


QUIET: dict[str, Any] = {"warm_up": False}


def mounted(prefix: str, inside: Any, **options: Any) -> fastapi.FastAPI:
    parent = fastapi.FastAPI(**options)

    @parent.get("/mine")
    def mine() -> str:
        return "my own"

    @parent.middleware("http")
    async def stamp(request: fastapi.Request, call_next: Any) -> Any:
        answer = await call_next(request)
        answer.headers["X-Stamp"] = "seen"
        return answer

    parent.mount(prefix, inside)
    return parent


@pytest.mark.parametrize("prefix", ["", "/ml", "/a/b c"])
@pytest.mark.parametrize("has_lifespan", [True, False])
def test_it_is_mounted_in_fastapi(prefix: str, *, has_lifespan: bool) -> None:
    inside = headway.asgi(Shout, **QUIET)
    options: dict[str, Any] = {"lifespan": inside.lifespan} if has_lifespan else {}
    with TestClient(mounted(prefix, inside, **options)) as client:
        answer = client.post(f"{prefix}/v1/predict/shout", json="hello")
        assert (answer.status_code, answer.json()) == (200, "HELLO!")
        assert answer.headers["x-stamp"] == "seen"
        assert client.get("/mine").json() == "my own"
        assert client.get(f"{prefix}/v2/models").json() == {"models": ["shout"]}
        assert client.get(f"{prefix}/v2/health/ready").status_code == 200
        assert client.get(f"{prefix}/docs").status_code == 200
        assert client.get(f"{prefix}/metrics").status_code == 200
        assert client.get(f"{prefix}/nothing").status_code == 404


def test_a_prefix_that_a_proxy_takes_off_is_no_obstacle() -> None:
    inside = headway.asgi(Shout, **QUIET)
    with TestClient(mounted("/ml", inside), root_path="/behind/proxy") as client:
        assert client.post("/ml/v1/predict/shout", json="a").json() == "A!"


def test_a_path_that_only_begins_like_the_prefix_is_another() -> None:
    inside = headway.asgi(Shout, **QUIET)
    with TestClient(Starlette(routes=[Mount("/ml", inside)])) as client:
        assert client.get("/mlv2/models").status_code == 404


def test_it_serves_by_itself_with_the_lifespan_of_asgi() -> None:
    with TestClient(headway.asgi(Shout("?"), name="ask", **QUIET)) as client:
        assert client.post("/v1/predict/ask", json="a").json() == "A?"


def test_it_starts_again_in_another_event_loop() -> None:
    inside = headway.asgi(Shout, **QUIET)
    client = TestClient(inside)  # without `with`: an event loop for each request
    assert client.post("/v1/predict/shout", json="a").json() == "A!"
    assert client.post("/v1/predict/shout", json="b").json() == "B!"


def test_several_models_with_settings_of_their_own() -> None:
    inside = headway.asgi(
        {
            "loud": {"target": Shout, "options": {"mark": "!!"}, "max_batch_size": 4},
            "double": double,
            "text": f"{__name__}:Shout",
        },
        **QUIET,
    )
    with TestClient(inside) as client:
        assert client.post("/v1/predict/loud", json="a").json() == "A!!"
        assert client.post("/v1/predict/double", json=4).json() == 8
        assert client.post("/v1/predict/text", json="a").json() == "A!"
        assert client.get("/v2/models/loud/config").json()["max_batch_size"] == 4


@pytest.mark.real_time
async def test_a_route_of_ones_own_calls_the_models() -> None:
    inside = headway.asgi({"shout": Shout, "double": double}, **QUIET)

    @asynccontextmanager
    async def lifespan(app: fastapi.FastAPI) -> AsyncIterator[None]:
        async with inside.lifespan(app):
            yield

    parent = fastapi.FastAPI(lifespan=lifespan)

    @parent.get("/both")
    async def both(text: str) -> dict[str, Any]:
        loud = await inside.models["shout"](text)
        return {"loud": loud, "doubled": await inside.models["double"].many([1, 2])}

    async with inside.lifespan(parent):
        transport = httpx.ASGITransport(parent)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answers = await asyncio.gather(*(client.get("/both?text=a") for _ in range(8)))
        assert {answer.text for answer in answers} == {'{"loud":"A!","doubled":[2,4]}'}
        assert sorted(inside.models) == ["double", "shout"]
    with pytest.raises(headway.Unavailable, match="has not started"):
        inside.models["shout"]


def test_errors_of_the_model_are_answered_as_ours() -> None:
    with TestClient(mounted("/ml", headway.asgi(Fussy, **QUIET))) as client:
        answer = client.post("/ml/v1/predict/fussy", json="this")
        assert (answer.status_code, answer.json()) == (400, {"error": "not 'this'"})


def test_a_test_client_is_told_why_nothing_can_be_served() -> None:
    application = headway.asgi({"broken": Broken}, **QUIET)
    with pytest.raises(headway.HeadwayError, match="odd weights"), TestClient(application):
        pass


def test_a_model_that_cannot_be_loaded_fails_the_lifespan_or_each_request() -> None:
    inside = headway.asgi(Broken, **QUIET)
    with TestClient(mounted("/ml", inside)) as client:
        for _ in range(2):
            answer = client.post("/ml/v1/predict/broken", json="a")
            assert answer.status_code == 503
            assert "model 'broken' cannot be loaded: ValueError: odd weights" in answer.text
            assert client.get("/mine").json() == "my own"
    with (
        pytest.raises(headway.ModelFailed, match="odd weights"),
        TestClient(mounted("/ml", inside, lifespan=inside.lifespan)),
    ):
        pass


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"port": 1}, "port: the ASGI server that runs the application decides it"),
        ({"max_bach_size": 1}, r"max_bach_size: no such setting; did you mean max_batch_size\?"),
        ({"max_queue": 0}, "max_queue: a whole number >= 1 is expected, not 0"),
        ({"options": {"mark": 3}}, None),
    ],
)
def test_a_wrong_setting_is_named_at_once(settings: dict[str, Any], message: str | None) -> None:
    if message is None:
        headway.asgi(Shout, **settings)  # options are the constructor's: it is called at start
        return
    with pytest.raises(headway.ConfigError, match=message):
        headway.asgi(Shout, **settings)


def test_what_is_no_model_is_refused_at_once() -> None:
    with pytest.raises(headway.ConfigError, match=r"int: 3 is not a model: neither a class"):
        headway.asgi(3)
