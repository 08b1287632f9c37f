"""What the commands ask servers that mean no good."""

import pytest

from headway.errors import ConfigError
from headway.loadgen import asking
from headway.loadgen.asking import HttpAnswer, NoAnswer, RemoteServer, as_expected, printable
from headway.loadgen.exchange import Address
from hostile_server import answering


def ask(url: str, *, timeout_s: float) -> HttpAnswer:
    return RemoteServer(Address.parse(url), timeout_s=timeout_s).ask("GET", "/")


def test_an_answer_is_given_whole() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 2\r\n\r\n", b"{}") as url:
        assert ask(url, timeout_s=5) == (200, {"x-a": "b", "content-length": "2"}, b"{}")


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n ",
    ],
    ids=["never more than 100", "a body that drips"],
)
def test_the_deadline_is_for_the_whole_answer(said: bytes) -> None:
    """Each read has its byte in time, so no limit for one read would do."""
    is_body = said.startswith(b"HTTP/1.1 200")
    with (
        answering(*([said, b" "] if is_body else [said]), for_ever=True) as url,
        pytest.raises(NoAnswer, match=r"has not answered in 0\.5 s"),
    ):
        ask(url, timeout_s=0.5)


def test_a_body_without_end_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_MOST_BYTES", 2**20)
    with (
        answering(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 65536, for_ever=True) as url,
        pytest.raises(NoAnswer, match="more than 1048576 bytes"),
    ):
        ask(url, timeout_s=20)


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"",
        b"HTTP/1.1 9999 X\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,
        b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"a"',
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    ],
)
def test_what_is_no_answer_is_said(said: bytes) -> None:
    with answering(said) as url, pytest.raises(NoAnswer, match=url):
        ask(url, timeout_s=5)


def test_an_answer_of_another_form_is_said() -> None:
    said = "URL answers in another form than expected: KeyError"
    with pytest.raises(ConfigError, match=said), as_expected("URL"):
        {}["models"]


def test_what_a_server_says_is_no_command_to_a_terminal() -> None:
    assert printable("a\x1b[2Jb\r\n\x9b") == "a?[2Jb?\n?"


@pytest.mark.parametrize("body", [b"", b"[]", b"[" * 100_000, b'{"error": {"message": "no"}}'])
def test_an_error_is_told_in_one_line(body: bytes) -> None:
    assert HttpAnswer(400, {}, body).error in ("", "no")
