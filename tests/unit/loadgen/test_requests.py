"""Requests made from metadata, and answers put together from what comes."""

import argparse
import json
import socket

import numpy as np
import pytest

from headway.cli import bench_flags
from headway.errors import ConfigError
from headway.loadgen import connection
from headway.loadgen.connection import LoadConnection, LostServer
from headway.loadgen.exchange import Address, post
from headway.loadgen.sweep import ArrivalLaw
from headway.loadgen.tensors import TensorInput, binary_body, json_body

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", ""),
        ("localhost:9000/", "localhost:9000", ""),
        ("https://host/a/b/", "host:443", "/a/b"),
        ("http://[::1]:8000", "[::1]:8000", ""),
    ],
)
def test_a_url_says_where_a_server_listens(url: str, authority: str, path: str) -> None:
    address = Address.parse(url)
    assert (address.authority, address.path) == (authority, path)


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://h:x", "http://h/a?b=1"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        Address.parse(url)


def test_a_request_for_tensors_is_made_from_the_metadata() -> None:
    about = {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
    given = TensorInput.of(about, rows=2, shape=None)
    mark, body = json_body([given], "bench-1", RNG, None)
    told = json.loads(body)
    assert mark == b'"bench-1"'
    assert told["inputs"][0]["shape"] == [2, 3]
    assert len(told["inputs"][0]["data"]) == 6
    _, head, data = binary_body([given], "bench-1", RNG, None)
    assert json.loads(head)["inputs"][0]["parameters"] == {"binary_data_size": 24}
    assert len(data) == 24


def test_texts_are_as_many_words_long_as_asked() -> None:
    about = {"name": "text", "datatype": "BYTES", "shape": [-1, 1]}
    given = TensorInput.of(about, rows=1, shape=None)
    _, body = json_body([given], "a", RNG, 5)
    assert len(json.loads(body)["inputs"][0]["data"][0].split()) == 5
    _, _, data = binary_body([given], "a", RNG, 5)
    assert int.from_bytes(data[:4], "little") == len(data) - 4


def test_an_axis_without_a_length_needs_one() -> None:
    about = {"name": "ids", "datatype": "INT64", "shape": [-1, -1]}
    given = TensorInput.of(about, rows=1, shape=None)
    with pytest.raises(ConfigError, match="--lengths"):
        json_body([given], "a", RNG, None)
    assert given.values(RNG, 7).shape == (1, 7)
    assert TensorInput.of(about, rows=1, shape=(4, 4)).values(RNG, None).shape == (4, 4)


def test_a_type_that_has_no_values_here_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="BF16"):
        TensorInput.of({"name": "x", "datatype": "BF16", "shape": [-1]}, rows=1, shape=None)


def test_a_request_names_its_host_its_length_and_its_headers() -> None:
    made = post(Address.parse("http://h:1/base"), "/p", b"{}", headers=[("A", "b")])
    head, _, body = made.request.partition(b"\r\n\r\n")
    assert head.split(b"\r\n")[0] == b"POST /base/p HTTP/1.1"
    assert {b"Host: h:1", b"Content-Length: 2", b"A: b"} <= set(head.split(b"\r\n"))
    assert body == b"{}"


ANSWERS = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\ncontent-length:  2\r\nX: y\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
]


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_is_put_together_however_it_is_cut(answer: bytes, step: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        reader = LoadConnection(ours)
        for _ in range(2):  # the connection serves again
            found = None
            for begin in range(0, len(answer), step):
                assert found is None
                theirs.send(answer[begin : begin + step])
                found = reader.receive()
            assert found is not None
            assert found.endswith(b"\r\n\r\nok")
            assert not reader.is_last


@pytest.mark.parametrize(
    ("head", "is_last"),
    [
        (b"HTTP/1.0 200 OK", True),
        (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive", False),
        (b"HTTP/1.1 200 OK\r\nConnection:close", True),
        (b"HTTP/1.1 200 OK\r\nX-LoadConnection: close", False),
    ],
)
def test_an_answer_says_whether_its_connection_serves_again(head: bytes, is_last: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = LoadConnection(ours)
        theirs.send(head + b"\r\nContent-Length: 2\r\n\r\nok")
        assert connection.receive() is not None
        assert connection.is_last == is_last


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        reader = LoadConnection(ours)
        theirs.send(b"HTTP/1.0 200 OK\r\n\r\nok")
        assert reader.receive() is None
        theirs.close()
        assert reader.receive() == b"HTTP/1.0 200 OK\r\n\r\nok"
        assert reader.is_last


@pytest.mark.parametrize("length", [b"zz", b"-5", b""])
def test_an_answer_with_no_number_for_its_length_is_no_answer(length: bytes) -> None:
    mine, its = socket.socketpair()
    with mine, its:
        its.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: " + length + b"\r\n\r\n{}")
        with pytest.raises(LostServer, match="Content-Length"):
            LoadConnection(mine).receive()


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_MOST_BYTES", 1000)
    mine, its = socket.socketpair()
    with mine, its:
        reader = LoadConnection(mine)
        for part in (b"HTTP/1.1 200 OK\r\n\r\n", b"a" * 900):
            its.sendall(part)
            assert reader.receive() is None
        its.sendall(b"a" * 900)
        with pytest.raises(LostServer, match="more than 1000 bytes"):
            reader.receive()


def test_a_server_that_hangs_up_halfway_has_not_answered() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        reader = LoadConnection(ours)
        theirs.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nok")
        assert reader.receive() is None
        theirs.close()
        with pytest.raises(LostServer, match="closed"):
            reader.receive()


@pytest.mark.parametrize(
    ("text", "found"),
    [("200", (200,)), ("0.5", (0.5,)), ("100,50", (50, 100)), ("50:150:50", (50, 100, 150))],
)
def test_rates_are_a_number_several_or_a_sweep(text: str, found: tuple[float, ...]) -> None:
    assert bench_flags.rates(text) == found


@pytest.mark.parametrize("text", ["0", "x", "1:2", "2:1:1", "1:1000:1", "1:2:0"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        bench_flags.rates(text)


def test_headers_and_shapes_are_read_or_refused() -> None:
    assert bench_flags.header("A: b:c") == ("A", "b:c")
    assert bench_flags.shape("image:1,3") == ("image", (1, 3))
    for read, text in [(bench_flags.header, "A"), (bench_flags.header, "A: b\r\nC: d")]:
        with pytest.raises(argparse.ArgumentTypeError):
            read(text)
    with pytest.raises(argparse.ArgumentTypeError):
        bench_flags.shape("1,3")


def test_a_law_fills_the_time_and_a_trace_is_stretched() -> None:
    due = ArrivalLaw("poisson").due(100, 10, seed=1)
    assert 850 < len(due) < 1150
    assert due[-1] < 10
    assert len(ArrivalLaw("constant").due(100, 10, seed=1)) == 999
    trace = np.array([0.0, 1.0, 2.0, 10.0])
    assert len(ArrivalLaw("trace", trace=trace).due(50, 4, seed=1)) == pytest.approx(200, abs=4)
