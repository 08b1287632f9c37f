"""What a browser is told."""

import asyncio

from headway.server.app import App
from headway.server.cors import Cors
from headway.server.service.routes import Route
from headway.wire.messages import Answer, Request, Response

PAGE = "https://page.example.org"


def ask(
    method: str = "POST", path: str = "/x", origins: tuple[str, ...] = (PAGE,), **headers: str
) -> Answer:
    app = App()

    async def x(request: Request) -> Response:
        return Response(b"1")

    app.add(Route("POST", "/x", x))
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    cors = Cors(origins)
    app.wrap(cors.around, may_pass=cors.may_pass)
    return asyncio.run(app.handle(Request(method, path, "", sent, b"", "1")))


def test_a_page_that_is_listed_may_ask_first_and_then_call() -> None:
    answer = ask("OPTIONS", origin=PAGE, access_control_request_method="POST")
    headers = dict(answer.headers)
    assert answer.status == 204
    assert headers["Access-Control-Allow-Origin"] == PAGE
    assert "Authorization" in headers["Access-Control-Allow-Headers"]
    assert "POST" in headers["Access-Control-Allow-Methods"]
    assert headers["Vary"] == "Origin"
    answer = ask(origin=PAGE)
    assert (answer.status, dict(answer.headers)["Access-Control-Allow-Origin"]) == (200, PAGE)


def test_a_page_that_is_not_listed_is_told_nothing() -> None:
    for answer in (
        ask("OPTIONS", origin="https://evil.example.org", access_control_request_method="POST"),
        ask(origin="https://evil.example.org"),
        ask(origin="null"),
        ask(),
    ):
        assert dict(answer.headers) == {"Vary": "Origin"}


def test_an_error_can_be_read_by_the_page_too() -> None:
    answer = ask(path="/absent", origin=PAGE)
    assert answer.status == 404
    assert dict(answer.headers)["Access-Control-Allow-Origin"] == PAGE


def test_a_star_is_for_all_and_never_with_credentials() -> None:
    headers = dict(ask(origin="https://any.example.org", origins=("*",)).headers)
    assert headers["Access-Control-Allow-Origin"] == "*"
    assert "Access-Control-Allow-Credentials" not in headers


def test_options_that_is_no_question_of_a_browser_is_an_ordinary_request() -> None:
    assert ask("OPTIONS", origin=PAGE).status == 405
