"""An HTTP load generator: one thread, epoll, keep-alive; closed loop or open-loop Poisson.

Latency counts from the moment a request was *meant* to leave, so that a stalled server cannot hide
its queue. Every answer is checked: its status, and a mark that only its own request carries.
"""

import itertools
import select
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy

MAX_CONNECTIONS = 1000  # from one address; servers have limits


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request's bytes, and what its answer alone must contain."""

    request: bytes
    mark: bytes


@dataclass(frozen=True, slots=True)
class Load:
    seconds: float
    latencies_s: "numpy.ndarray[tuple[int], numpy.dtype[numpy.float64]]"
    finished_at: "numpy.ndarray[tuple[int], numpy.dtype[numpy.float64]]"  # since the start
    is_ok: "numpy.ndarray[tuple[int], numpy.dtype[numpy.bool_]]"  # its own answer, with a 200
    unanswered: int  # when the time was up

    @property
    def failed(self) -> int:
        """Another status, or another request's answer."""
        return int((~self.is_ok).sum())

    @property
    def per_s(self) -> float:
        return len(self.latencies_s) / self.seconds

    def per_s_after(self, skipped_s: float) -> float:
        """Once all is under way. (What was under way when the time was up is not counted, and so
        must not be the time in which nothing could be answered yet.)"""
        return float((self.finished_at >= skipped_s).sum()) / (self.seconds - skipped_s)

    def percentile_ms(self, q: float) -> float:
        return float(numpy.percentile(self.latencies_s, q)) * 1e3 if len(self.latencies_s) else 0.0

    def steady_p99_ms(self, window_s: float = 1.0) -> float:
        """Of the median second, or longer window: one stolen moment of a shared machine is not the
        server's."""
        windows = (self.finished_at / window_s).astype(int)
        each = [
            float(numpy.percentile(self.latencies_s[windows == window], 99))
            for window in range(int(self.seconds / window_s))
            if (windows == window).any()
        ]
        return float(numpy.median(each)) * 1e3 if each else float("inf")


def post(path: str, body: bytes, mark: bytes, *, headers: str = "") -> Exchange:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"{headers}Content-Length: {len(body)}\r\n\r\n"
    )
    return Exchange(head.encode() + body, mark)


class _Connection:
    __slots__ = ("_length", "_read", "mark", "sent_at", "socket", "stream")

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.sent_at = 0.0
        self.mark = b""
        self.stream = 0  # of a mixed load: whose request this is
        self._read = b""
        self._length = 0  # of the whole answer, once its head is known

    def send(self, exchange: Exchange, due_at: float) -> None:
        self.mark = exchange.mark
        self.sent_at = due_at
        self.socket.send(exchange.request)  # small: it fits the socket's buffer

    def receive(self) -> bytes | None:
        """The whole answer, or None while there is more to come."""
        data = self.socket.recv(262_144)
        if not data:
            raise ConnectionError("the server closed the connection")
        if self._read:
            data = self._read + data
        if not self._length:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._read = data
                return None
            self._length = end + 4 + _content_length(data[:end])
        if len(data) < self._length:
            self._read = data
            return None
        self._read, self._length = b"", 0
        return data


def _content_length(head: bytes) -> int:
    at = head.find(b"ontent-")
    while at >= 0:
        if head[at + 7 : at + 13].lower() == b"length":
            return int(head[at + 14 : at + 24].split(b"\r", 1)[0])
        at = head.find(b"ontent-", at + 7)
    return 0


class Generator:
    """Connections to one server. `closed` and `poisson` may be called one after the other."""

    def __init__(self, port: int, exchanges: Sequence[Exchange]) -> None:
        self._port = port
        self._exchanges = exchanges
        self._epoll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        self._turn = 0
        self.last_failure = b""

    def close(self) -> None:
        for connection in self._connections.values():
            connection.socket.close()
        self._connections.clear()
        self._epoll.close()

    def one_ms(self) -> float:
        """One request on a connection of its own."""
        connection = self._open()
        started = time.perf_counter()
        connection.send(self._next(), started)
        answer = None
        while answer is None:
            self._epoll.poll()
            answer = connection.receive()
        took_ms = (time.perf_counter() - started) * 1e3
        self._check(answer, connection)
        self._hang_up()
        return took_ms

    def closed(self, connections: int, seconds: float) -> Load:
        """Every connection sends its next request when it has its answer."""
        seen = _Seen()
        start = now = time.perf_counter()
        end = start + seconds
        for _ in range(connections):
            self._open().send(self._next(), time.perf_counter())
        clock, poll = time.perf_counter, self._epoll.poll
        while now < end:
            for descriptor, _ in poll(0.1):
                connection = self._connections[descriptor]
                answer = connection.receive()
                if answer is None:
                    continue
                now = clock()
                seen.add(now - connection.sent_at, now - start, self._check(answer, connection))
                connection.send(self._next(), now)
            now = clock()
        self._hang_up()
        return seen.load(now - start, unanswered=connections)

    def poisson(self, rate: float, seconds: float, *, seed: int = 1) -> Load:
        """Requests leave when they are due, on a free connection or a new one."""
        return self.mixed([(rate, self._exchanges)], seconds, seed=seed)[0]

    def mixed(
        self, streams: Sequence[tuple[float, Sequence[Exchange]]], seconds: float, *, seed: int = 1
    ) -> list[Load]:
        """Several open-loop streams at once, each with its rate and its requests."""
        due = deque(_arrivals([rate for rate, _ in streams], seconds, seed))
        seen = [_Seen() for _ in streams]
        turns = [itertools.cycle(exchanges) for _, exchanges in streams]
        free: deque[_Connection] = deque(self._open() for _ in range(32))
        running = 0
        clock, poll = time.perf_counter, self._epoll.poll
        start = clock()
        while due or running:
            running += self._send_due(due, free, turns, start)
            for descriptor, _ in poll(0):  # busy: an epoll timer is too coarse for arrivals
                connection = self._connections[descriptor]
                answer = self._receive(descriptor)
                if answer is None:
                    continue
                done = clock()
                is_ok = self._check(answer, connection)
                seen[connection.stream].add(done - connection.sent_at, done - start, is_ok)
                running -= 1
                if answer:
                    free.append(connection)
            if clock() - start > 2 * seconds + 1:
                break  # hopelessly behind
        self._hang_up()
        return [each.load(seconds, unanswered=running + len(due)) for each in seen]

    def _receive(self, descriptor: int) -> bytes | None:
        """As a connection's own; nothing, where the server hung up: too many of them."""
        try:
            return self._connections[descriptor].receive()
        except ConnectionError:
            self._epoll.unregister(descriptor)
            self._connections.pop(descriptor).socket.close()
            return b""

    def _send_due(
        self,
        due: "deque[tuple[float, int]]",
        free: "deque[_Connection]",
        turns: Sequence[Iterator[Exchange]],
        start: float,
    ) -> int:
        """Send what is due now; how many that were."""
        sent, now = 0, time.perf_counter() - start
        while due and due[0][0] <= now:
            if not free:
                if len(self._connections) >= MAX_CONNECTIONS:
                    break  # it leaves late, and its latency says so
                free.append(self._open())
            at, stream = due.popleft()
            connection = free.popleft()  # in turn: one that is never used is hung up on
            connection.stream = stream
            connection.send(next(turns[stream]), start + at)
            sent += 1
        return sent

    def _hang_up(self) -> None:
        for connection in self._connections.values():
            connection.socket.close()
        self._connections.clear()

    def _open(self) -> _Connection:
        connection = _Connection(self._port)
        descriptor = connection.socket.fileno()
        self._connections[descriptor] = connection
        self._epoll.register(descriptor, select.EPOLLIN)
        return connection

    def _next(self) -> Exchange:
        self._turn += 1
        return self._exchanges[self._turn % len(self._exchanges)]

    def _check(self, answer: bytes, connection: _Connection) -> bool:
        is_ok = answer[9:12] == b"200" and connection.mark in answer
        if not is_ok:
            self.last_failure = answer[:300]
        return is_ok


class _Seen:
    """What came back so far."""

    def __init__(self) -> None:
        self.latencies: list[float] = []
        self.finished: list[float] = []
        self.ok: list[bool] = []

    def add(self, latency_s: float, finished_at: float, is_ok: bool) -> None:
        self.latencies.append(latency_s)
        self.finished.append(finished_at)
        self.ok.append(is_ok)

    def load(self, seconds: float, *, unanswered: int) -> Load:
        return Load(
            seconds,
            numpy.array(self.latencies),
            numpy.array(self.finished),
            numpy.array(self.ok, bool),
            unanswered,
        )


def _arrivals(rates: Sequence[float], seconds: float, seed: int) -> list[tuple[float, int]]:
    """When requests leave, and of which stream."""
    rng = numpy.random.default_rng(seed)
    return sorted(
        (at, stream)
        for stream, rate in enumerate(rates)
        for at in rng.uniform(0.0, seconds, rng.poisson(rate * seconds)).tolist()
    )
