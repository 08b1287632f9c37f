"""`headway.Client` and `headway.AsyncClient`, against real servers: answers with types, the
server's errors as exceptions, retries when the server says, streams."""

import asyncio
import gzip
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

import numpy
import pytest

import headway
import hostile_server as hostile
from handler_server import handled_by
from headway import testing
from headway.client import clients
from headway.client.calls import ClientAnswer, RequestOptions, Retries

pytestmark = pytest.mark.real_time


@dataclass
class Point:
    x: float
    y: float


class Mirror(headway.Model[Point, Point]):
    batch_parameters = ("scale",)

    def predict(self, items: list[Point], *, scale: float = 1.0) -> list[Point]:
        return [Point(-item.x * scale, -item.y * scale) for item in items]


class Picky(headway.Model[str, str]):
    def predict(self, items: list[str]) -> list[str]:
        for item in items:
            if item == "bad":
                raise headway.InvalidInput("not this one")
            if item == "worse":
                raise ValueError("oops")
        return [item.upper() for item in items]


class Letters(headway.Model[str, str]):
    def stream(self, items: list[str]) -> Iterator[list[Any]]:
        for number in range(max(map(len, items))):
            yield [item[number] if number < len(item) else headway.END for item in items]
            if "!" in [item[number] for item in items if number < len(item)]:
                raise headway.ModelFailed("it broke")


MODELS: dict[str, Any] = {"mirror": Mirror, "picky": Picky, "letters": Letters}
Call = Callable[..., Any]


@pytest.fixture(scope="module")
def client() -> Iterator[headway.Client]:
    with testing.client(MODELS) as made:
        yield made


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest, client: headway.Client) -> Call:
    """A method by name, of either client."""
    url = str(client.http.base_url)

    def run(name: str, *arguments: Any, url: str = url, **settings: Any) -> Any:
        own = {key: settings.pop(key) for key in ("retries", "timeout_s", "key") if key in settings}
        if request.param == "sync":
            with headway.Client(url, **own) as made:
                found = getattr(made, name)(*arguments, **settings)
                return list(found) if name == "stream" else found

        async def ask() -> Any:
            async with headway.AsyncClient(url, **own) as made:
                found = getattr(made, name)(*arguments, **settings)
                return [each async for each in found] if name == "stream" else await found

        return asyncio.run(ask())

    return run


def test_values_go_in_and_come_back_with_their_types(call: Call) -> None:
    assert call("predict", "mirror", Point(1, 2), returns=Point) == Point(-1, -2)
    assert call("predict", "mirror", {"x": 1, "y": numpy.float64(2)}) == {"x": -1.0, "y": -2.0}
    points = call("predict_many", "mirror", [Point(1, 2), Point(3, 4)], returns=Point)
    assert points == [Point(-1, -2), Point(-3, -4)]
    assert call("predict", "mirror", Point(1, 2), parameters={"scale": 2.0}) == {"x": -2, "y": -4}
    assert call("models") == ["letters", "mirror", "picky"]
    assert call("is_ready") is True


def test_the_servers_errors_are_raised_here(call: Call) -> None:
    with pytest.raises(headway.InvalidInput, match="not this one"):
        call("predict", "picky", "bad")
    with pytest.raises(headway.ModelFailed, match="picky raised ValueError: oops"):
        call("predict", "picky", "worse")
    with pytest.raises(headway.HeadwayError, match="no model 'absent'"):
        call("predict", "absent", "x")
    with pytest.raises(headway.InvalidInput, match="the answer is not of the type `returns`"):
        call("predict", "picky", "x", returns=int)
    with pytest.raises(headway.ModelFailed, match="not this one"):
        call("predict_many", "picky", ["good", "bad"])


def test_a_stream_comes_piece_by_piece_and_ends_with_its_error(call: Call) -> None:
    assert call("stream", "letters", "abc") == ["a", "b", "c"]
    with pytest.raises(headway.ModelFailed, match="it broke"):
        call("stream", "letters", "a!c")
    with pytest.raises(headway.HeadwayError, match="no model 'absent'"):
        call("stream", "absent", "x")


# ---- retries


@contextmanager
def answering(*answers: tuple[int, dict[str, str], Any]) -> Iterator[tuple[str, list[Any]]]:
    """A server that gives these answers in turn; its URL, and the headers that it was sent."""
    rest, seen = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            seen.append(dict(self.headers))
            status, headers, body = rest.pop(0)
            data = json.dumps(body).encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with handled_by(Handler) as url:
        yield url, seen


BUSY = (503, {"Retry-After": "0"}, {"error": "busy"})
DONE = (200, {}, "done")


def test_a_refusal_is_tried_again_when_the_server_says(call: Call) -> None:
    with answering(BUSY, (429, {"Retry-After": "0"}, {"error": "quota"}), DONE) as (url, seen):
        assert call("predict", "m", "x", url=url) == "done"
        assert len(seen) == 3


def test_it_ends_after_so_many_and_never_for_a_mistake_of_the_callers(call: Call) -> None:
    with answering(BUSY, BUSY, BUSY) as (url, seen):
        with pytest.raises(headway.Unavailable, match="busy"):
            call("predict", "m", "x", url=url, retries=2)
        assert len(seen) == 3
    with answering((400, {}, {"error": "no"})) as (url, seen):
        with pytest.raises(headway.InvalidInput, match="no"):
            call("predict", "m", "x", url=url)
        assert len(seen) == 1


def test_a_wait_that_is_longer_than_the_time_left_is_not_begun(call: Call) -> None:
    with answering((503, {"Retry-After": "5"}, {"error": "busy"})) as (url, seen):
        with pytest.raises(headway.Unavailable, match="busy") as refused:
            call("predict", "m", "x", url=url, timeout_s=2.0)
        assert refused.value.retry_after_s == 5.0
        assert len(seen) == 1


def test_the_server_is_told_of_key_deadline_and_priority(call: Call) -> None:
    with answering(DONE) as (url, seen):
        call("predict", "m", "x", url=url, key="hw-1", deadline_ms=900, priority="high")
    [headers] = seen
    assert headers["Authorization"] == "Bearer hw-1"
    assert headers["Headway-Priority"] == "high"
    assert 0 < float(headers["Headway-Timeout-Ms"]) <= 900


def test_where_no_server_is_that_is_said(call: Call) -> None:
    with answering() as (url, _):
        pass  # it has gone
    with pytest.raises(headway.Unavailable, match=f"no server answers at {url}"):
        call("predict", "m", "x", url=url, retries=0)


@pytest.mark.parametrize("method", ["stream", "is_ready"])
def test_a_server_that_hangs_up_is_an_error_of_ours(call: Call, method: str) -> None:
    values = ("m", "x") if method == "stream" else ()
    with hostile.answering(b"no HTTP") as url, pytest.raises(headway.Unavailable, match=url):
        call(method, *values, url=url, retries=0)


@pytest.mark.parametrize("part", [b" ", b" " * 65536], ids=["drips", "floods"])
def test_an_answer_without_end_ends_with_the_calls_time(call: Call, part: bytes) -> None:
    """Each read has something, so no limit for one of them would do."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    with (
        hostile.answering(head, part, for_ever=True) as url,
        pytest.raises(headway.DeadlineExceeded),
    ):
        call("predict", "m", "x", url=url, retries=0, timeout_s=0.5)


def test_a_packed_answer_is_refused_before_it_is_unpacked(call: Call) -> None:
    bomb = gzip.compress(bytes(64 * 2**20))
    for status in (b"200 OK", b"503 Busy"):
        head = b"HTTP/1.1 %b\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
        with hostile.answering(head % (status, len(bomb)) + bomb) as url:
            for method in ("predict", "stream"):
                with pytest.raises(headway.InvalidInput, match=r"packed \(gzip\), which was not"):
                    call(method, "m", "x", url=url)


def test_an_answer_has_a_limit_in_bytes(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MOST_BYTES", 100_000)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    with (
        hostile.answering(head, b" " * 65536, for_ever=True) as url,
        pytest.raises(headway.InvalidInput, match="more than 100000 bytes"),
    ):
        call("predict", "m", "x", url=url)


@pytest.mark.parametrize("body", [b"null", b"[]", b"{}", b'{"results": 5}', b"\xff", b"[" * 10**5])
def test_an_answer_of_another_form_is_an_error_of_ours(call: Call, body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
    said = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with hostile.answering(said) as url:
        for method, values in (("predict_many", ("m", ["x"])), ("models", ())):
            with pytest.raises(headway.InvalidInput, match="not one of Headway's"):
                call(method, *values, url=url)
    events = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nevent: error\ndata: "
    with (
        hostile.answering(events + body + b"\n\n") as url,
        pytest.raises(headway.HeadwayError),
    ):
        call("stream", "m", "x", url=url)


@pytest.mark.parametrize(
    ("attempt", "answer", "least", "most"),
    [
        (0, None, 0.05, 0.1),
        (1, ClientAnswer(503, b""), 0.1, 0.2),
        (0, ClientAnswer(503, b"", retry_after="3"), 3, 3),
        (0, ClientAnswer(429, b"", retry_after="soon"), 0.05, 0.1),
    ],
)
def test_how_long_it_waits(
    attempt: int, answer: ClientAnswer | None, least: float, most: float
) -> None:
    wait_s = Retries(2).wait_s(attempt, answer)
    assert wait_s is not None
    assert least <= wait_s <= most


def test_when_it_does_not_wait() -> None:
    assert Retries(2).wait_s(2, ClientAnswer(503, b"")) is None
    assert Retries(2).wait_s(0, ClientAnswer(500, b"")) is None
    assert Retries(2).wait_s(0, ClientAnswer(503, b"", retry_after="3600")) is None


def test_of_two_deadlines_the_shorter_is_sent() -> None:
    assert RequestOptions(deadline_ms=500).headers(0.1)["Headway-Timeout-Ms"] == "100.000"
    assert RequestOptions(deadline_ms=50).headers(0.1)["Headway-Timeout-Ms"] == "50.000"
    assert RequestOptions().headers(of=b"x")["Content-Type"] == "application/octet-stream"


# ---- in a test of one's own


def test_the_test_client_says_why_a_model_cannot_be_served() -> None:
    class Broken(Picky):
        def load(self) -> None:
            raise ValueError("odd weights")

    with pytest.raises(headway.ModelFailed, match="odd weights"), testing.client(Broken):
        pass
