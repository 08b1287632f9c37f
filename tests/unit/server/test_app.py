"""Routes and errors, with no server around them."""

import asyncio
import json
import logging
from typing import Any

import pytest

from headway.errors import (
    DeadlineExceeded,
    HeadwayError,
    InputTooLarge,
    InvalidInput,
    ModelFailed,
    QueueFull,
    UnknownModel,
)
from headway.server.app import App
from headway.server.service.routes import ErrorFormat, Route
from headway.wire.messages import Request, Response


def request(method: str, path: str, headers: dict[str, str] | None = None) -> Request:
    return Request(method, path, "", headers or {}, b"", "id")


async def echo(_: Request, **params: str) -> Response:
    return Response(json.dumps(params).encode())


async def answer(app: App, method: str, path: str) -> Response:
    response = await app.handle(request(method, path))
    assert isinstance(response, Response)
    return response


def raising(error: BaseException) -> Any:
    async def handler(_: Request, **__: str) -> Response:
        raise error

    return handler


async def test_placeholders_are_percent_decoded_and_may_hold_a_slash() -> None:
    app = App()
    app.add(Route("GET", "/v2/models/{model}/versions/{version}", echo))
    response = await answer(app, "GET", "/v2/models/org%2Fname%20x/versions/1")
    assert json.loads(response.body) == {"model": "org/name x", "version": "1"}
    again = await answer(app, "GET", "/v2/models/org%2Fname%20x/versions/1")
    assert again.body == response.body


async def test_the_exact_route_and_the_longer_template_come_first() -> None:
    app = App()

    async def named(_: Request, **params: str) -> Response:
        return Response(b"named")

    app.add(Route("GET", "/v2/models/{model}", echo))
    app.add(Route("GET", "/v2/models/stats", named))
    app.add(Route("GET", "/v1/models/{model}", echo))
    app.add(Route("GET", "/v1/models/{model}:predict", named))
    assert (await answer(app, "GET", "/v2/models/stats")).body == b"named"
    assert (await answer(app, "GET", "/v1/models/m:predict")).body == b"named"
    assert (await answer(app, "GET", "/v1/models/m")).body == b'{"model": "m"}'


async def test_an_unknown_path_is_404_and_a_wrong_method_405_with_allow() -> None:
    app = App()
    app.add(Route("POST", "/v2/models/{model}/infer", echo))
    app.add(Route("GET", "/v2/health/live", echo))
    missing = await answer(app, "GET", "/v2/nothing")
    assert (missing.status, missing.body) == (404, b'{"error":"Not Found; /docs lists the routes"}')
    assert missing.content_type == "application/json"
    wrong = await answer(app, "GET", "/v2/models/m/infer")
    assert (wrong.status, wrong.headers) == (405, (("Allow", "POST"),))
    wrong = await answer(app, "DELETE", "/v2/health/live")
    assert (wrong.status, wrong.headers) == (405, (("Allow", "GET, HEAD"),))
    assert (await answer(app, "HEAD", "/v2/health/live")).status == 200
    assert (await answer(app, "GET", "/v2/health/live/")).status == 200


async def test_made_up_paths_do_not_fill_the_memory() -> None:
    app = App()
    app.add(Route("GET", "/v2/models/{model}", echo))
    for number in range(5000):
        await app.handle(request("GET", f"/v2/models/{number}"))
    assert app.paths_remembered <= 4096
    app = App()
    app.add(Route("GET", "/v2/models/{model}", echo))
    assert (await answer(app, "GET", f"/v2/models/{'m' * 30_000}")).status == 200
    assert app.paths_remembered == 0


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (InvalidInput("shape"), 400, None),
        (UnknownModel("no model"), 404, None),
        (InputTooLarge("large", limit=3), 413, None),
        (QueueFull("full", limit=9, retry_after_s=2.6), 503, "3"),
        (DeadlineExceeded("late"), 504, None),
        (ModelFailed("broken"), 500, None),
    ],
)
async def test_errors_become_statuses(
    error: HeadwayError, status: int, retry_after: str | None
) -> None:
    app = App()
    app.add(Route("GET", "/v2/x", raising(error)))
    response = await answer(app, "GET", "/v2/x")
    assert response.status == status
    assert json.loads(response.body) == {"error": str(error)}
    assert dict(response.headers).get("Retry-After") == retry_after


async def test_openai_routes_spell_errors_their_own_way_and_the_plain_route_does_not() -> None:
    app = App()
    fail = raising(UnknownModel("no model"))
    app.add(
        Route("GET", "/v1/embeddings", fail, errors=ErrorFormat.OPENAI),
        Route("GET", "/v1/predict/{model}", fail),
        Route("GET", "/v2/models/{model}", fail, errors=ErrorFormat.TRITON),
    )
    openai = json.loads((await answer(app, "GET", "/v1/embeddings")).body)
    assert openai["error"] == {
        "message": "no model",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }
    plain = json.loads((await answer(app, "GET", "/v1/predict/m")).body)
    assert plain == {"error": "no model"}
    triton = json.loads((await answer(app, "GET", "/v2/models/m")).body)
    assert triton == {"error": "Request for unknown model: no model"}


async def test_a_request_that_comes_to_no_handler_is_told_as_its_paths_routes_tell_it() -> None:
    app = App()
    app.add(Route("POST", "/v1/embeddings", echo, errors=ErrorFormat.OPENAI))
    app.add(Route("POST", "/v1/predict/{model}", echo))
    spelled = {
        path: type(json.loads(app.refuse(path, 413, "large", code="input_too_large").body)["error"])
        for path in ("/v1/embeddings", "/v1/predict/m", "/v1/nothing", "/v2/nothing", "")
    }
    assert spelled == {
        **{"/v1/embeddings": dict, "/v1/nothing": dict},
        **{"/v1/predict/m": str, "/v2/nothing": str, "": str},
    }
    wrong = json.loads((await answer(app, "GET", "/v1/predict/m")).body)
    assert wrong["error"].startswith("Method Not Allowed")


@pytest.mark.parametrize("debug", [False, True])
async def test_an_unknown_exception_is_logged_and_told_only_in_debug(
    debug: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(debug=debug)
    app.add(Route("GET", "/x", raising(RuntimeError("secret"))))
    with caplog.at_level(logging.ERROR):
        response = await answer(app, "GET", "/x")
    assert response.status == 500
    assert (b"secret" in response.body) is debug
    assert "secret" in caplog.text


async def test_what_a_handler_awaits_may_be_cancelled_without_losing_the_answer() -> None:
    app = App()
    app.add(Route("GET", "/x", raising(asyncio.CancelledError())))
    assert (await answer(app, "GET", "/x")).status == 503


async def test_a_cancelled_caller_stays_cancelled() -> None:
    app = App()

    async def wait(_: Request) -> Response:
        await asyncio.Event().wait()
        raise AssertionError

    app.add(Route("GET", "/x", wait))
    task = asyncio.ensure_future(app.handle(request("GET", "/x")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
