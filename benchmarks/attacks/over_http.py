"""Attacks on the HTTP port: slowness, size, floods, and what must not be read as it is meant."""

import contextlib
import gzip
import http.client
import os
import pickle
import re
import select
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.attacks.scene import BODY_TIMEOUT_S, Attack, Outcome, Target, running
from benchmarks.attacks.sockets import LIMIT_S, read_all, read_some, status_of

INFER = "/v1/predict/shout"
TLS_TOML = """
[server]
port = 0
grpc_port = -1
tls_cert = "cert.pem"
tls_key = "key.pem"
max_handshakes = 32
header_timeout_s = 5.0
[[models]]
name = "shout"
target = "attacked:Shout"
"""


def slow_head(target: Target) -> Outcome:
    """A byte now and then, on many connections: Slowloris."""
    sent = target.head(INFER)[:-2] + b"X-Slow: "
    answers = drip(target, sent, start=len(sent) - 1, count=32)
    return _all_are(408, target, answers, "32 connections, heads of a byte at a time")


def slow_body(target: Target) -> Outcome:
    sent = target.head(INFER, "Content-Length: 100000") + b'"'
    answers = drip(target, sent, start=len(sent) - 1, count=32)
    return _all_are(408, target, answers, "32 connections, bodies of a byte at a time")


def slow_reader(target: Target) -> Outcome:
    """Asks for much and reads nothing: what is unsent would fill the memory."""
    body = b'"' + b"a" * 1_000_000 + b'"'
    asks = (target.head(INFER, f"Content-Length: {len(body)}") + body) * 20
    dropped = 0
    for _ in range(4):
        with target.connect() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            dropped += is_dropped(connection, asks)
    return Outcome("20 answers of 1 MB, none read", f"{dropped} of 4 hung up on", dropped == 4)


def huge_body(target: Target) -> Outcome:
    with target.connect() as connection:
        connection.sendall(target.head(INFER, "Content-Length: 10000000000"))
        announced = read_all(connection)
    with target.connect() as connection:
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        with contextlib.suppress(OSError):
            connection.sendall(target.head(INFER, "Transfer-Encoding: chunked"))
            for _ in range(1000):
                connection.sendall(chunk)
        chunked = read_all(connection)
    # The second may be cut before it reads its answer: it was still writing.
    statuses = [status_of(announced), status_of(chunked) or "cut"]
    return Outcome(
        "10 GB announced; 64 MB in chunks",
        f"{statuses[0]} before the body; {statuses[1]} after 1 MB",
        statuses[0] in (413, _nobody(target)) and statuses[1] in (413, "cut", _nobody(target)),
    )


def many_bodies(target: Target) -> Outcome:
    """Each is allowed, and none is ever finished; together they would fill the memory."""
    sent = target.head(INFER, "Content-Length: 1000000") + b'"' + b"a" * 999_998
    started = time.monotonic()
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(target.connect()) for _ in range(32)]
        for each in connections:
            with contextlib.suppress(OSError):  # refused before all is sent
                each.sendall(sent)
        took_s = time.monotonic() - started
        statuses = [status_of(read_some(each)) or "cut" for each in connections]
    told = {each: statuses.count(each) for each in dict.fromkeys(statuses)}
    # Eight are held until their time is up, then others may be: on a busy machine more than once.
    rounds = 1 + int(took_s / BODY_TIMEOUT_S)
    return Outcome(
        "32 bodies of 1 MB but for the last byte; 8 MiB are held",
        ", ".join(f"{count} × {status}" for status, count in told.items()),
        set(told) <= {408, 503, "cut", _nobody(target)} and told.get(408, 0) <= 9 * rounds,
    )


def handshake_flood(target: Target) -> Outcome:
    """Connections that never say a word of TLS, on a server that has it."""
    import trustme

    authority = trustme.CA()
    made = authority.issue_cert("localhost", "127.0.0.1")
    made.private_key_pem.write_to_path(str(target.folder / "key.pem"))
    made.cert_chain_pems[0].write_to_path(str(target.folder / "cert.pem"))
    (target.folder / "tls.toml").write_text(TLS_TOML)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with (
        running(target.folder, "headway", "serve", "tls.toml") as server,
        contextlib.ExitStack() as opened,
    ):
        silent = [
            opened.enter_context(Target(server.port, 0, "", target.folder).connect())
            for _ in range(300)
        ]
        served = [_ask_tls(server.port, context) for _ in range(20)]
        ended = [read_some(each) for each in silent]
    return Outcome(
        "300 connections that say nothing; 32 handshakes are held",
        f"{ended.count(b'')} cut; {served.count(200)} of 20 honest handshakes meanwhile",
        served == [200] * 20 and set(ended) == {b""},
    )


def _ask_tls(port: int, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=LIMIT_S, context=context)
    with contextlib.closing(connection):
        connection.request("POST", INFER, b'"hello"')
        return connection.getresponse().status


def deep_json(target: Target) -> Outcome:
    bodies = (b"[" * 500_000, b'{"a":' * 100_000)
    paths = (INFER, "/v2/models/shout/infer", "/v1/embeddings", "/v2/models/shout/generate")
    answers = [target.ask(path, body) for path in paths for body in bodies]
    return _all_are(400, target, answers, "500,000 brackets, 4 routes")


def gzip_bomb(target: Target) -> Outcome:
    bomb = gzip.compress(bytes(2**28), 9)
    twice = gzip.compress(bomb, 9)
    answers = [
        target.ask(INFER, bomb, "Content-Encoding: gzip"),
        target.ask(INFER, twice, "Content-Encoding: gzip, gzip"),
    ]
    return _all_are(
        413,
        target,
        answers,
        f"{len(bomb) // 1024} KiB that unpack to 256 MiB, packed once and twice",
    )


def header_flood(target: Target) -> Outcome:
    many = [f"X-{number}: x" for number in range(100_000)]
    with target.connect() as connection:
        with contextlib.suppress(OSError):
            connection.sendall(target.head(INFER, *many))
        answer = read_all(connection)
    return _all_are(431, target, [answer], "100,000 headers")


def connection_flood(target: Target) -> Outcome:
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(target.connect()) for _ in range(300)]
        heard = [_heard(each) for each in connections[64:]]
    told, later, reset = (heard.count(each) for each in (503, None, "reset"))
    # If opening them all takes longer than `header_timeout_s`, the first have been cut by then:
    # later ones take their places, and are cut in turn when they say nothing.
    return Outcome(
        "300 connections from one address, 64 are allowed",
        f"64 held, {told} told 503, {later} held after the first had gone, {reset} cut; served "
        "again when they had gone",
        told + later == len(heard) and told > 0 and _is_served_again(target),
    )


def _heard(connection: socket.socket) -> int | str | None:
    """The status that it is told; None: it was hung up on without a word."""
    try:
        return status_of(connection.recv(65536))
    except OSError:
        return "reset"


def _is_served_again(target: Target) -> bool:
    ends_at = time.monotonic() + LIMIT_S
    while time.monotonic() < ends_at:
        if status_of(target.ask(INFER, b'"a"')) in (200, _nobody(target)):
            return True
    return False


def path_traversal(target: Target) -> Outcome:
    up = "..%2f..%2f..%2f..%2fetc%2fpasswd"
    tries = [
        ("GET", f"/v2/models/{up}", b""),
        ("GET", "/../../../../etc/passwd", b""),
        ("GET", f"/v2/models/{up}/config", b""),
        ("POST", f"/v1/predict/{up}", b'"a"'),
        ("POST", f"/v2/repository/models/{up}/load", b"{}"),
        (
            "POST",
            "/v2/systemsharedmemory/region/r/register",
            b'{"key": "../../etc/passwd", "byte_size": 8, "offset": 0}',
        ),
    ]
    answers = [target.ask(path, body, method=method) for method, path, body in tries]
    statuses = sorted({status_of(answer) or 0 for answer in answers})
    return Outcome(
        "a model, a file, a load, shared memory outside the folder",
        " ".join(map(str, statuses)),
        all(400 <= status < 500 for status in statuses) and b"root:" not in b"".join(answers),
    )


def admin_without_key(target: Target) -> Outcome:
    tries = ["/admin/drain", "/v2/repository/models/shout/unload", "/v2/logging"]
    nobody = {status_of(target.ask(path, b"{}", key="")) for path in tries}
    infers = {status_of(target.ask(path, b"{}")) for path in tries}
    return Outcome(
        "drain, unload, log settings",
        f"no key: {nobody}; a key that may infer: {infers}",
        nobody == {401} and infers == {403 if target.key else 401},
    )


class _Canary:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self._path),)


def unpickling(target: Target) -> Outcome:
    """Runs code where it is unpickled: it would make a folder."""
    canary = target.folder / "canary"
    evil = pickle.dumps(_Canary(canary))
    json = b'{"inputs":[{"name":"text","shape":[1],"datatype":"BYTES","parameters":'
    json += b'{"binary_data_size":%d}}]}' % (len(evil) + 4)
    raw = len(evil).to_bytes(4, "little") + evil
    length = f"Inference-Header-Content-Length: {len(json)}"
    answers = [
        target.ask(INFER, evil, "Content-Type: application/python-pickle"),
        target.ask("/v2/models/shout/infer", json + raw, length),
        target.ask("/v2/models/shout/infer", evil, "Inference-Header-Content-Length: 0"),
    ]
    statuses = [status_of(answer) for answer in answers]
    return Outcome(
        "as a body, as a BYTES tensor, as a raw request",
        f"{' '.join(map(str, statuses))}; it did not run",
        not canary.exists() and all(status is not None and status < 500 for status in statuses),
    )


def smuggling(target: Target) -> Outcome:
    """Two lengths: a proxy in front might see another end of the request."""
    both = target.head(INFER, "Content-Length: 4", "Transfer-Encoding: chunked") + b"0\r\n\r\n"
    two = target.head(INFER, "Content-Length: 3", "Content-Length: 4") + b'"ab"'
    answers = []
    for sent in (both, two):
        with target.connect() as connection:
            connection.sendall(sent)
            answers.append(read_all(connection))
    return _all_are(400, target, answers, "two lengths in one request")


def pipelined(target: Target) -> Outcome:
    """Thousands of requests in one read, and no answer waited for."""
    sent, tried = target.head(INFER, "Content-Length: 3") + b'"a"', 0
    ends_at, found = time.monotonic() + target.seconds, b""
    while not tried or time.monotonic() < ends_at:
        with contextlib.ExitStack() as opened:
            connections = [opened.enter_context(target.connect()) for _ in range(8)]
            for each in connections:
                each.settimeout(0.2)
                with contextlib.suppress(OSError):
                    each.sendall(sent * (250_000 // len(sent)))
                tried += 250_000 // len(sent)
            found += b"".join(read_some(each) for each in connections)
    statuses = {int(each) for each in re.findall(rb"HTTP/1\.1 (\d{3})", found)}
    told = ", ".join(map(str, sorted(statuses)))
    is_refused = statuses <= {200 if target.key else 401}
    return Outcome(f"{tried:,} requests, 250 KB at a time", f"in turns: {told}", is_refused)


ATTACKS: dict[str, Attack] = {
    "slow header": slow_head,
    "slow body": slow_body,
    "slow reader": slow_reader,
    "huge body": huge_body,
    "many bodies": many_bodies,
    "deep JSON": deep_json,
    "gzip bomb": gzip_bomb,
    "header flood": header_flood,
    "connection flood": connection_flood,
    "TLS handshake flood": handshake_flood,
    "path traversal": path_traversal,
    "admin without key": admin_without_key,
    "pickle": unpickling,
    "request smuggling": smuggling,
    "pipelined requests": pipelined,
}
OF_BODIES = ("huge body", "deep JSON", "gzip bomb", "path traversal", "admin without key", "pickle")


def drip(target: Target, sent: bytes, *, count: int, start: int = 0) -> list[bytes]:
    """Send a byte at a time on many connections, until the server has had enough of each."""
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(target.connect()) for _ in range(count)]
        for each in connections:
            each.sendall(sent[: start + 1])
        waiting = set(connections)
        ends_at = time.monotonic() + LIMIT_S
        while waiting and time.monotonic() < ends_at:
            readable, _, _ = select.select(list(waiting), [], [], 0.05)
            waiting -= set(readable)
            for each in waiting:
                with contextlib.suppress(OSError):
                    each.send(b"x")
        return [read_some(each) if each not in waiting else b"" for each in connections]


def is_dropped(connection: socket.socket, asks: bytes) -> bool:
    """Write and never read: the end shows as an error when writing."""
    connection.settimeout(0.1)
    ends_at = time.monotonic() + LIMIT_S
    view = memoryview(asks)
    while time.monotonic() < ends_at:
        try:
            view = view[connection.send(view) :] or memoryview(b"\r\n")
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


def _nobody(target: Target) -> int:
    """What an attacker without a key is told as well."""
    return 401 if not target.key else 0


def _all_are(status: int, target: Target, answers: list[bytes], tried: str) -> Outcome:
    """Or 401, where the attacker has no key."""
    expected = {status} if target.key else {status, 401}
    found = [status_of(answer) for answer in answers]
    counted = ", ".join(f"{found.count(each)} × {each or 'cut'}" for each in dict.fromkeys(found))
    return Outcome(tried, counted, set(found) <= expected)
