"""Attacks on a real server with keys, while an honest client is served beside them.

    python -m benchmarks attacks

The attacker comes from 127.0.0.2, the client from 127.0.0.1, so that the limit for one address can
tell them apart. Every limit is small here, so that it is reached soon.
"""

import contextlib
import gzip
import http.client
import os
import pickle
import re
import select
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

from benchmarks.report import Bar, Benchmark, Report
from headway.config import KeyConfig
from headway.errors import Unauthenticated
from headway.server.auth.keys import KeyRing, NewKey, new_key

ATTACKER = "127.0.0.2"
MODEL = """
import headway

class Shout(headway.Model[str, str]):
    def predict(self, items: list[str]) -> list[str]:
        return [item.upper() for item in items]
"""
TOML = """
[server]
port = 0
grpc_port = -1
shared_memory = true
keys_file = "keys.toml"
max_body_bytes = 1048576
max_held_bytes = 8388608
max_header_bytes = 8192
header_timeout_s = 0.5
body_timeout_s = 0.5
write_timeout_s = 0.5
max_connections_per_address = 64
[[models]]
name = "shout"
target = "attacked:Shout"
"""
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
KEYS = """
[[keys]]
id = "honest"
hash = "{honest}"
tenant = "honest"
[[keys]]
id = "attacker"
hash = "{attacker}"
tenant = "attacker"
"""
_LEAST = 50  # honest requests beside each attack
LIMIT_S = 30.0  # for anything to happen


class Outcome(NamedTuple):
    tried: str
    happened: str
    is_refused: bool


class Target:
    """The server, and how an attacker reaches it."""

    def __init__(self, port: int, key: str, folder: Path) -> None:
        self.port = port
        self.key = key  # of a tenant that may infer and turns bad
        self.folder = folder

    def connect(self) -> socket.socket:
        return socket.create_connection(
            ("127.0.0.1", self.port), timeout=LIMIT_S, source_address=(ATTACKER, 0)
        )

    def head(self, path: str, *lines: str, method: str = "POST", key: str | None = None) -> bytes:
        key = self.key if key is None else key
        known = [f"X-Api-Key: {key}"] if key else []
        return "\r\n".join(
            [f"{method} {path} HTTP/1.1", "Host: x", *known, *lines, "", ""]
        ).encode()

    def ask(
        self, path: str, body: bytes, *lines: str, method: str = "POST", key: str | None = None
    ) -> bytes:
        """The whole answer."""
        lines = (f"Content-Length: {len(body)}", "Connection: close", *lines)
        with self.connect() as connection:
            with contextlib.suppress(OSError):  # refused before all is sent: the answer is there
                connection.sendall(self.head(path, *lines, method=method, key=key) + body)
            return read_all(connection)


Attack: TypeAlias = Callable[[Target], Outcome]
INFER = "/v1/predict/shout"


def slow_head(target: Target) -> Outcome:
    """A byte now and then, on many connections: Slowloris."""
    sent = target.head(INFER)[:-2] + b"X-Slow: "
    answers = drip(target, sent, start=len(sent) - 1, count=32)
    return _all_are(408, answers, "32 connections, heads of a byte at a time")


def slow_body(target: Target) -> Outcome:
    sent = target.head(INFER, "Content-Length: 100000") + b'"'
    answers = drip(target, sent, start=len(sent) - 1, count=32)
    return _all_are(408, answers, "32 connections, bodies of a byte at a time")


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
        statuses[0] == 413 and statuses[1] in (413, "cut"),
    )


def many_bodies(target: Target) -> Outcome:
    """Each is allowed, and none is ever finished; together they would fill the memory."""
    sent = target.head(INFER, "Content-Length: 1000000") + b'"' + b"a" * 999_998
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(target.connect()) for _ in range(32)]
        for each in connections:
            with contextlib.suppress(OSError):  # refused before all is sent
                each.sendall(sent)
        statuses = [status_of(read_some(each)) or "cut" for each in connections]
    told = {each: statuses.count(each) for each in dict.fromkeys(statuses)}
    return Outcome(
        "32 bodies of 1 MB but for the last byte; 8 MiB are held",
        ", ".join(f"{count} × {status}" for status, count in told.items()),
        set(told) <= {408, 503, "cut"} and told.get(408, 0) <= 9,
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
    with _running(target.folder, "tls.toml") as port, contextlib.ExitStack() as opened:
        silent = [
            opened.enter_context(Target(port, "", target.folder).connect()) for _ in range(300)
        ]
        served = [_ask_tls(port, context) for _ in range(20)]
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
    return _all_are(400, answers, "500,000 brackets, 4 routes")


def gzip_bomb(target: Target) -> Outcome:
    bomb = gzip.compress(bytes(2**28), 9)
    twice = gzip.compress(bomb, 9)
    answers = [
        target.ask(INFER, bomb, "Content-Encoding: gzip"),
        target.ask(INFER, twice, "Content-Encoding: gzip, gzip"),
    ]
    return _all_are(
        413, answers, f"{len(bomb) // 1024} KiB that unpack to 256 MiB, packed once and twice"
    )


def header_flood(target: Target) -> Outcome:
    many = [f"X-{number}: x" for number in range(100_000)]
    with target.connect() as connection:
        with contextlib.suppress(OSError):
            connection.sendall(target.head(INFER, *many))
        answer = read_all(connection)
    return _all_are(431, [answer], "100,000 headers")


def connection_flood(target: Target) -> Outcome:
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(target.connect()) for _ in range(300)]
        refused = [status_of(read_some(each)) for each in connections[64:]]
    told = refused.count(503)
    return Outcome(
        "300 connections from one address, 64 are allowed",
        f"64 held, {told} told 503, {len(refused) - told} cut; served again when they had gone",
        all(status in (503, None) for status in refused) and told > 0 and _is_served_again(target),
    )


def _is_served_again(target: Target) -> bool:
    ends_at = time.monotonic() + LIMIT_S
    while time.monotonic() < ends_at:
        if status_of(target.ask(INFER, b'"a"')) == 200:
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
        nobody == {401} and infers == {403},
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
    return _all_are(400, answers, "two lengths in one request")


def key_guessing(target: Target) -> Outcome:
    """Does a guess that is nearly right take another time? By Welch's t, as dudect does it."""
    key = new_key()
    ring = KeyRing([KeyConfig(id="a", hash=key.hash, tenant="a")], 0.0)
    near = key.key[:-1] + ("A" if key.key[-1] != "A" else "B")
    far = "hw-" + "".join(reversed(key.key[3:]))
    here = welch(lambda guess: _guess(ring, guess), near, far, count=40_000)
    with contextlib.closing(_Guesser(target)) as guesser:
        afar = welch(guesser.guess, _near(target.key), far, count=2_000)
    return Outcome(
        "all but the last letter right against all wrong: 40,000 in process, 2,000 over HTTP",
        f"401 each; t = {here:.1f} and {afar:.1f}, from 4.5 on a difference would show",
        here < 4.5 and afar < 4.5,
    )


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
}


def attacks(is_quick: bool) -> Report:
    rows = []
    refused = 0
    tried = dict(ATTACKS) if is_quick else {**ATTACKS, "key guessing by time": key_guessing}
    with attacked() as (target, client):
        for name, attack in tried.items():
            client.start_over()
            outcome = attack(target)
            served, failed, p99_ms = client.figures()
            refused += outcome.is_refused and not failed
            others = f"{served} served, {failed} failed, p99 {p99_ms:.0f} ms"
            rows.append([name, outcome.tried, outcome.happened, others])
    asked = "every attack refused, every honest request served meanwhile"
    bar = Bar(asked, f"{refused} of {len(tried)}", refused == len(tried))
    header = ["attack", "tried", "what happened", "the honest client meanwhile"]
    return Report("Attacks", header, rows, [bar])


BENCHMARKS: dict[str, Benchmark] = {"attacks": attacks}


# --- the honest client


class HonestClient:
    """One request after the other, until it is stopped."""

    def __init__(self, port: int, key: str) -> None:
        self._port = port
        self._headers = {"Authorization": f"Bearer {key}"}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._times_s: list[float] = []
        self._failures: list[str] = []
        self._served = threading.Condition(self._lock)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "HonestClient":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def failures(self) -> list[str]:
        return self._failures

    def start_over(self) -> None:
        with self._lock:
            self._times_s.clear()
            self._failures.clear()

    def figures(self) -> tuple[int, int, float]:
        """How many were served and failed since the start, and how late. Of some at least."""
        with self._served:
            self._served.wait_for(lambda: len(self._times_s + self._failures) >= _LEAST, LIMIT_S)
            times = sorted(self._times_s) or [LIMIT_S]
            return len(self._times_s), len(self._failures), times[int(len(times) * 0.99)] * 1e3

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=LIMIT_S)
        while not self._stop.is_set():
            started = time.perf_counter()
            failure = self._ask(connection)
            with self._served:
                if failure is None:
                    self._times_s.append(time.perf_counter() - started)
                else:
                    self._failures.append(failure)
                self._served.notify_all()
            self._stop.wait(0.002)
        connection.close()

    def _ask(self, connection: http.client.HTTPConnection) -> str | None:
        try:
            connection.request("POST", INFER, b'"hello"', self._headers)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return repr(error)
        return None if (answer.status, body) == (200, b'"HELLO"') else f"{answer.status} {body!r}"


@contextlib.contextmanager
def attacked() -> Iterator[tuple[Target, HonestClient]]:
    """A real server in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        honest, attacker = new_key(), new_key()
        _write(folder, honest, attacker)
        with (
            _running(folder, "headway.toml") as port,
            HonestClient(port, honest.key) as client,
        ):
            yield Target(port, attacker.key, folder), client


@contextlib.contextmanager
def _running(folder: Path, configuration: str) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-m", "headway", "serve", configuration],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        port = _wait_port(process)
        with _drained(process):
            yield port
    finally:
        process.terminate()
        process.wait(LIMIT_S)
        if process.stderr is not None:
            process.stderr.close()


def _write(folder: Path, honest: NewKey, attacker: NewKey) -> None:
    (folder / "attacked.py").write_text(MODEL)
    (folder / "headway.toml").write_text(TOML)
    (folder / "keys.toml").write_text(KEYS.format(honest=honest.hash, attacker=attacker.hash))


def _wait_port(process: "subprocess.Popen[str]") -> int:
    said = ""
    for line in process.stderr or ():
        said += line
        if found := re.search(r"listening on https?://\S+:(\d+)", line):
            return int(found[1])
    raise RuntimeError(f"the server does not start: {said}")


@contextlib.contextmanager
def _drained(process: "subprocess.Popen[str]") -> Iterator[None]:
    """Read what it logs, so that it never waits for us."""
    reader = threading.Thread(target=lambda: process.stderr and process.stderr.read(), daemon=True)
    reader.start()
    yield


# --- on sockets


def read_all(connection: socket.socket) -> bytes:
    """Until the server hangs up, however it does."""
    parts = []
    with contextlib.suppress(OSError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def read_some(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except OSError:
        return b""


def status_of(answer: bytes) -> int | None:
    found = re.match(rb"HTTP/1\.[01] (\d{3}) ", answer)
    return int(found[1]) if found else None


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


def _all_are(status: int, answers: list[bytes], tried: str) -> Outcome:
    found = [status_of(answer) for answer in answers]
    counted = ", ".join(f"{found.count(each)} × {each or 'cut'}" for each in dict.fromkeys(found))
    return Outcome(tried, counted, all(each == status for each in found))


# --- timing


class _Guesser:
    """Guesses over one connection."""

    def __init__(self, target: Target) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=LIMIT_S)

    def guess(self, key: str) -> None:
        self._connection.request("GET", "/v2/models", headers={"X-Api-Key": key})
        answer = self._connection.getresponse()
        answer.read()
        assert answer.status == 401, answer.status

    def close(self) -> None:
        self._connection.close()


def _near(key: str) -> str:
    return key[:-1] + ("A" if key[-1] != "A" else "B")


def _guess(ring: KeyRing, key: str) -> None:
    with contextlib.suppress(Unauthenticated):
        ring.find({"x-api-key": key})
        raise AssertionError("a guess was right")


def welch(guess: Callable[[str], None], near: str, far: str, *, count: int) -> float:
    """|t| of the two times, in turns, the slowest tenth (the machine's own business) left out."""
    times: dict[str, list[int]] = {near: [], far: []}
    for turn in range(count):
        for key in (near, far) if turn % 2 else (far, near):
            started = time.perf_counter_ns()
            guess(key)
            times[key].append(time.perf_counter_ns() - started)
    cut = sorted(times[near] + times[far])[int(2 * count * 0.9)]
    kept = [[each for each in times[key] if each <= cut] for key in (near, far)]
    means = [statistics.fmean(each) for each in kept]
    errors = [
        statistics.variance(each, mean) / len(each) for each, mean in zip(kept, means, strict=True)
    ]
    return abs(means[0] - means[1]) / (sum(errors) ** 0.5 or 1.0)
