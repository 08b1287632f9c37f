"""An open-loop load of streamed completions: one thread, epoll, keep-alive, Poisson arrivals.

First tokens count from the moment a request was *meant* to leave. Every answer is checked: its
status, and that it has exactly as many tokens as were asked for, one event each.
"""

import gc
import json
import select
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy

PROMPT = (32, 512)  # tokens, evenly spread
OUTPUT = (8, 128)
MAX_CONNECTIONS = 1000  # from one address; the server has a limit
_EVENT, _DONE, _END = b"data: {", b"data: [DONE]", b"0\r\n\r\n"
_GRACE_S = 20.0  # after the last arrival; requests that are open then count as unanswered


@dataclass(frozen=True, slots=True)
class Asked:
    at: float  # seconds from the start
    request: bytes
    tokens: int


@dataclass(slots=True)
class Seen:
    """What a load met. Seconds."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)  # sent after it was due
    tokens: int = 0
    took: float = 0.0
    failed: int = 0
    unanswered: int = 0
    failure: bytes = b""  # the last one's beginning

    @property
    def per_s(self) -> float:
        return self.tokens / self.took if self.took else 0.0


def asked_of(rate: float, seconds: float, *, model: str, vocabulary: int, seed: int) -> list[Asked]:
    """Drawn and spelled before the first is sent."""
    rng = numpy.random.default_rng(seed)
    arrivals = numpy.sort(rng.uniform(0.0, seconds, rng.poisson(rate * seconds))).tolist()
    found = []
    for at in arrivals:
        prompt = rng.integers(10, vocabulary - 10, int(rng.integers(PROMPT[0], PROMPT[1] + 1)))
        tokens = int(rng.integers(OUTPUT[0], OUTPUT[1] + 1))
        body: dict[str, Any] = {"model": model, "prompt": prompt.tolist(), "max_tokens": tokens}
        body |= {"temperature": 0, "ignore_eos": True, "stream": True}
        found.append(Asked(at, _post("/v1/completions", json.dumps(body).encode()), tokens))
    return found


def _post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class TokenLoad:
    """Sends what is due on a free connection, or a new one. Keeps a core busy: an epoll's timer is
    too coarse for arrivals, and a process that sleeps wakes up late."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._epoll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        self._free: deque[_Connection] = deque()

    def close(self) -> None:
        for each in self._connections.values():
            each.socket.close()
        self._epoll.close()

    def run(self, requests: list[Asked], seconds: float) -> Seen:
        seen = Seen()
        due = deque(requests)
        running = 0
        clock, poll = time.perf_counter, self._epoll.poll
        gc.collect()
        gc.disable()
        start = clock()
        while (due or running) and clock() - start < seconds + _GRACE_S:
            while due and due[0].at <= clock() - start and self._has_room():
                self._send(due.popleft(), start, seen)
                running += 1
            for descriptor, _ in poll(0):
                connection = self._connections[descriptor]
                if connection.asked is None:
                    self._drop(connection)  # idle: the server has hung up
                elif connection.receive(seen):
                    running -= 1
                    self._release(connection)
        gc.enable()
        seen.took = clock() - start
        seen.unanswered = running + len(due)
        for each in [each for each in self._connections.values() if each.asked is not None]:
            self._drop(each)
        return seen

    def _has_room(self) -> bool:
        return bool(self._free) or len(self._connections) < MAX_CONNECTIONS

    def _send(self, asked: Asked, start: float, seen: Seen) -> None:
        connection = self._free.popleft() if self._free else self._open()
        due_at = start + asked.at
        connection.begin(asked, due_at)
        seen.late.append(time.perf_counter() - due_at)

    def _open(self) -> "_Connection":
        connection = _Connection(self._port)
        self._connections[connection.number] = connection
        self._epoll.register(connection.number, select.EPOLLIN)
        return connection

    def _release(self, connection: "_Connection") -> None:
        if connection.is_open:
            self._free.append(connection)
        else:
            self._drop(connection)

    def _drop(self, connection: "_Connection") -> None:
        self._epoll.unregister(connection.number)
        del self._connections[connection.number]
        if connection in self._free:
            self._free.remove(connection)
        connection.socket.close()


class _Connection:
    __slots__ = (
        *("_due_at", "_first_at", "_head", "_is_done", "_last_at", "_tail", "_tokens"),
        *("asked", "is_open", "number", "socket"),
    )

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number = self.socket.fileno()
        self.is_open = True
        self.asked: Asked | None = None

    def begin(self, asked: Asked, due_at: float) -> None:
        self.asked, self._due_at = asked, due_at
        self._first_at = self._last_at = 0.0
        self._tokens, self._is_done, self._tail, self._head = 0, False, b"", b""
        self.socket.sendall(asked.request)

    def receive(self, seen: Seen) -> bool:
        """What has come; whether that was the end."""
        data = self.socket.recv(65_536)
        now = time.perf_counter()
        if not data:
            self.is_open = False
            return self._end(seen)
        if not self._head:
            self._head = data[:300]
        tail = self._tail
        both = tail + data
        found = both.count(_EVENT, max(0, len(tail) - len(_EVENT) + 1))
        if found:
            self._note(found, now, seen)
        self._is_done = self._is_done or _DONE in both
        self._tail = both[-len(_DONE) :]
        if self._is_done and both.endswith(_END):
            return self._end(seen)
        is_refused = self._head[9:12] != b"200"
        return self._end(seen) if is_refused else False

    def _note(self, tokens: int, now: float, seen: Seen) -> None:
        if not self._first_at:
            self._first_at = now
            seen.first.append(now - self._due_at)
        else:
            seen.between.append(now - self._last_at)
        self._last_at = now
        self._tokens += tokens

    def _end(self, seen: Seen) -> bool:
        assert self.asked is not None
        seen.tokens += self._tokens
        if self._is_done and self._tokens == self.asked.tokens:
            seen.whole.append(self._last_at - self._due_at)
        else:
            self.is_open = False
            seen.failed += 1
            seen.failure = self._head or b"nothing came"
        self.asked = None
        return True
