"""What is wrong on the wire gets a clear 4xx, leaks nothing, and the server keeps serving."""

import asyncio
import gzip
import json
import random
import socket
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from real_server import MAX_BODY_BYTES, Server

INFER = "/v2/models/double/infer"
LENGTH = "Inference-Header-Content-Length"


@pytest.fixture(autouse=True)
def server_still_answers(server: Server) -> Iterator[None]:
    yield
    body = good(7.0)
    answer = server.http.post(INFER, content=body)
    assert answer.json()["outputs"][0]["data"] == [14.0] * 16


def good(value: float) -> bytes:
    return request([value] * 16)


def request(data: Any, **changes: Any) -> bytes:
    tensor = {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": data, **changes}
    return json.dumps({"inputs": [tensor]}).encode()


def binary(raw: bytes, **changes: Any) -> tuple[bytes, dict[str, str]]:
    """A request whose declared size and actual bytes may differ."""
    tensor = {
        "name": "x",
        "shape": [1, 16],
        "datatype": "FP32",
        "parameters": {"binary_data_size": 64},
        **changes,
    }
    head = json.dumps({"inputs": [tensor]}).encode()
    return head + raw, {LENGTH: str(len(head))}


def refused(answer: httpx.Response, status: int = 400) -> str:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert isinstance(error, str)
    assert error
    assert "Traceback" not in error
    return error


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "empty: JSON is expected"),
        (b"{", "JSON"),
        (b"nonsense", "JSON"),
        (b"[]", "object"),
        (b"null", "object"),
        (b"{}", "inputs"),
        (b'{"inputs": 3}', "inputs"),
        (b'{"inputs": []}', "input 'x' is missing"),
        (b'{"inputs": [{}]}', "name"),
        (good(1) + b"}", "JSON"),
        (good(1)[:-1], "JSON"),
        (b"\xef\xbb\xbf" + good(1), "JSON"),
        (b"\xff\xfe{}", "JSON"),
        (b'{"inputs": [{"name": "\xff"}]}', ""),
        (b'{"inputs": [{"name": "\\ud800", "shape": [1], "datatype": "FP32", "data": [1]}]}', ""),
        (b"[" * 100_000, ""),
        (b'{"inputs": ' + b"[" * 100_000, ""),
        (b'{"a":' * 50_000, ""),
        (request([[1.0] * 16] * 2), "x"),
        (request([1.0] * 15), "x"),
        (request([]), "x"),
        (request(None), "x"),
        (request("text"), "x"),
        (request(["1"] * 16), "x"),
        (request([True] * 16), "x"),
        (request([None] * 16), "x"),
        (request([[1.0] * 8, [1.0] * 7]), "x"),
        (request([1e39] * 16), "x"),
        (request([float("nan")] * 16), "JSON"),  # Python writes NaN, which is not JSON
        (request([float("inf")] * 16), "JSON"),
        (request([1.0] * 16, shape=[16]), "x"),
        (request([1.0] * 16, shape=[-1, 16]), "negative"),
        (request([1.0] * 16, shape=["1", 16]), "shape"),
        (request([1.0] * 16, shape=[2**62, 2**62]), "x"),
        (request([1.0] * 16, shape=[10**30]), ""),
        (request([], shape=[0, 2**63 - 1]), "x"),
        (request([1.0] * 16, shape=[1] * 100), "dimensions"),
        (request([1.0] * 16, datatype="FP33"), "FP33"),
        (request([1.0] * 16, datatype="FP16"), "FP16"),
        (request([1.0] * 16, name="y"), "'x' is missing"),
        (b'{"inputs": [1e999]}', ""),
    ],
    ids=lambda each: repr(each[:40]) if isinstance(each, bytes) else "",
)
def test_json_that_is_wrong(server: Server, body: bytes, part: str) -> None:
    assert part in refused(server.http.post(INFER, content=body))


RAW = struct.pack("<16f", *range(16))


@pytest.mark.parametrize(
    ("raw", "changes"),
    [
        (RAW[:-1], {}),
        (b"", {}),
        (RAW + b"x", {}),
        (RAW, {"parameters": {"binary_data_size": 2**40}}),
        (RAW, {"parameters": {"binary_data_size": 2**70}}),
        (RAW, {"parameters": {"binary_data_size": -64}}),
        (RAW, {"parameters": {"binary_data_size": "64"}}),
        (RAW, {"parameters": {"binary_data_size": 64.5}}),
        (RAW, {"parameters": {"binary_data_size": True}}),
        (RAW, {"parameters": {"binary_data_size": 63}}),
        (RAW, {"parameters": {"binary_data_size": []}}),
        (RAW, {"shape": [2**31, 2**31]}),
        (RAW, {"data": [1.0] * 16}),
        (RAW, {"datatype": "BYTES"}),
        (RAW, {"parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 64}}),
    ],
    ids=str,
)
def test_binary_that_is_wrong(server: Server, raw: bytes, changes: dict[str, Any]) -> None:
    body, headers = binary(raw, **changes)
    refused(server.http.post(INFER, content=body, headers=headers), 400)


@pytest.mark.parametrize("length", ["-1", "x", "", "1.5", "9" * 30, "99999999", "1", "٣"])
def test_a_header_length_that_is_wrong(server: Server, length: str) -> None:
    body, _ = binary(RAW)
    headers = {LENGTH.encode(): length.encode()}
    refused(server.http.post(INFER, content=body, headers=headers))


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack("<I", 2**32 - 1),
        struct.pack("<I", 5) + b"abcd",
        struct.pack("<I", 1) + b"ab",
        b"\x01\x00",
        struct.pack("<I", 2) + b"\xff\xfe",
    ],
    ids=["huge", "truncated", "too long", "half a length", "not UTF-8"],
)
def test_texts_whose_lengths_or_bytes_are_wrong(server: Server, raw: bytes) -> None:
    body, headers = binary(
        raw,
        name="input",
        shape=[1],
        datatype="BYTES",
        parameters={"binary_data_size": len(raw)},
    )
    error = refused(server.http.post("/v2/models/upper/infer", content=body, headers=headers))
    assert "input" in error


def test_more_texts_declared_than_bytes_came(server: Server) -> None:
    body, headers = binary(
        b"", name="input", shape=[2**40], datatype="BYTES", parameters={"binary_data_size": 0}
    )
    refused(server.http.post("/v2/models/upper/infer", content=body, headers=headers))


@pytest.mark.parametrize(
    ("headers", "parameters"),
    [
        ({"Headway-Timeout-Ms": "soon"}, {}),
        ({"Headway-Timeout-Ms": "-1"}, {}),
        ({"Headway-Timeout-Ms": "nan"}, {}),
        ({"Headway-Priority": "highest"}, {}),
        ({}, {"priority": -1}),
        ({}, {"priority": "x"}),
        ({}, {"timeout": 1.5}),
        ({}, {"timeout": [1]}),
        ({}, {"binary_data_output": "yes"}),
    ],
    ids=str,
)
def test_urgency_that_makes_no_sense(
    server: Server, headers: dict[str, str], parameters: dict[str, Any]
) -> None:
    body = json.loads(good(1)) | {"parameters": parameters}
    refused(server.http.post(INFER, json=body, headers=headers))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", INFER, 405),
        ("DELETE", INFER, 405),
        ("PUT", "/v2/health/live", 405),
        ("POST", "/v2", 405),
        ("GET", "/nothing/here", 404),
        ("GET", "/v2/models/double/versions/1/nothing", 404),
        ("GET", "/v2/models/%00", 404),
        ("GET", "/v2/models/%ff", 404),
        ("GET", "/v2/models/..%2f..%2fetc", 404),
        ("POST", "/v2/models/double/versions/x/infer", 404),
        ("BREW", "/v2", 400),  # not a method that HTTP has
    ],
)
def test_a_wrong_method_or_path(server: Server, method: str, path: str, status: int) -> None:
    refused(server.http.request(method, path), status)


# ---- compression


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_bomb_is_refused_by_what_it_unpacks_to(server: Server, encoding: str) -> None:
    zeros = b"0" * (8 * MAX_BODY_BYTES)
    bomb = gzip.compress(zeros) if encoding == "gzip" else zlib.compress(zeros)
    assert len(bomb) < MAX_BODY_BYTES / 50
    answer = server.http.post(INFER, content=bomb, headers={"Content-Encoding": encoding})
    assert str(MAX_BODY_BYTES) in refused(answer, 413)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"not gzip"),
        ("gzip", gzip.compress(good(1))[:-9]),
        ("gzip", gzip.compress(good(1)) + b"rest"),
        ("deflate", zlib.compress(good(1))[:20]),
        ("br", good(1)),
        ("gzip, br", good(1)),
    ],
    ids=["noise", "truncated", "trailing", "deflate", "unknown", "unknown outside"],
)
def test_compression_that_is_wrong(server: Server, encoding: str, body: bytes) -> None:
    refused(server.http.post(INFER, content=body, headers={"Content-Encoding": encoding}))


# ---- below HTTP


def talk(server: Server, *parts: bytes) -> bytes:
    """Send, then read until the server hangs up."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        for part in parts:
            connection.sendall(part)
        found = b""
        while more := connection.recv(65536):
            found += more
    return found


def split(raw: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def test_a_body_that_never_ends_is_given_up(server: Server) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n".encode()
    status, body = split(talk(server, head + b'{"inputs"'))
    assert status == 408
    assert isinstance(body["error"], str)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999\r\n\r\n", 413),
        (f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", 400),
        (
            f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
            400,
        ),
        (f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (
            f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
            "Content-Length: 5\r\n\r\n0\r\n\r\n",
            400,
        ),
        ("GET /v2 HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n", 400),
        ("GET /v2 HTTP/9.9\r\n\r\n", 400),
        ("nonsense\r\n\r\n", 400),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (f"GET /{'a' * 70_000} HTTP/1.1\r\nHost: x\r\n\r\n", 431),
    ],
    ids=[
        *("huge", "negative", "two lengths", "bad chunk", "length and chunks", "header"),
        *("version", "noise", "TLS", "long URL"),
    ],
)
def test_http_that_is_wrong(server: Server, head: str, status: int) -> None:
    found, body = split(talk(server, head.encode("latin-1")))
    assert found == status
    assert isinstance(body["error"], str)


def test_a_client_that_leaves_in_the_middle_harms_nobody(server: Server) -> None:
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n".encode()
    for part in (head[:20], head, head + b'{"inputs"'):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(part)


# ---- good beside bad

BOMB = gzip.compress(b"0" * 2 * MAX_BODY_BYTES)


def bad_requests() -> list[tuple[str, bytes, dict[str, str]]]:
    cut, headers = binary(RAW[:-3])
    return [
        (INFER, b"{", {}),
        (INFER, cut, headers),
        (INFER, request([3.0] * 15), {}),
        (INFER, BOMB, {"Content-Encoding": "gzip"}),
        ("/v2/models/nothing/infer", good(1), {}),
        ("/v1/predict/upper", b"\xff", {}),
        ("/v1/predict/double", b"[null]", {}),
    ]


@pytest.mark.parametrize("seed", [1, 2])
def test_every_good_request_gets_its_own_answer_among_bad_ones(server: Server, seed: int) -> None:
    draw = random.Random(seed)

    async def ask_good(http: httpx.AsyncClient, number: int) -> None:
        match draw.randrange(3):
            case 0:
                answer = await http.post(INFER, content=good(float(number)))
                assert answer.json()["outputs"][0]["data"] == [2.0 * number] * 16
            case 1:
                body, headers = binary(struct.pack("<16f", *[number] * 16))
                answer = await http.post(INFER, content=body, headers=headers)
                assert answer.json()["outputs"][0]["data"] == [2.0 * number] * 16
            case _:
                answer = await http.post("/v1/predict/upper", json=f"text {number}")
                assert answer.json() == f"TEXT {number}"

    async def ask_bad(http: httpx.AsyncClient) -> None:
        path, body, headers = draw.choice(bad_requests())
        answer = await http.post(path, content=body, headers=headers)
        assert 400 <= answer.status_code < 500
        assert isinstance(answer.json()["error"], str)

    async def main() -> None:
        limits = httpx.Limits(max_connections=32)
        async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=30) as http:
            await asyncio.gather(
                *(
                    ask_bad(http) if draw.random() < 0.3 else ask_good(http, number)
                    for number in range(400)
                )
            )

    asyncio.run(main())


def test_a_tenant_has_a_name_of_a_usual_length(server: Server) -> None:
    """The tenants of the last thousands of requests are kept, for whoever asks why one was slow."""
    long = "t" * 257
    body = {**json.loads(good(1.0)), "parameters": {"tenant": long}}
    for answer in (
        server.http.post(INFER, json=body),
        server.http.post(INFER, content=good(1.0), headers={"Headway-Tenant": long}),
        server.http.post("/v1/predict/upper", json="a", headers={"Headway-Tenant": long}),
    ):
        assert answer.status_code == 400
        assert "a tenant's name has at most 256 characters" in answer.text
    usual = server.http.post(INFER, content=good(1.0), headers={"Headway-Tenant": long[1:]})
    assert usual.status_code == 200
