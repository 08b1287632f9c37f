"""A server whose latencies are known beforehand: first come, first served, in batches of up to
`cap` rows that take `alpha + beta * rows`. Its finishing times are computed, not slept one after
the other, so what the machine does between them adds nothing up.

    python -m benchmarks.known_law ALPHA_MS BETA_MS CAP      prints its port
    python -m benchmarks.known_law at-once                   answers as fast as it can
    python -m benchmarks.known_law tokens N                  the same with N streamed tokens each
"""

import contextlib
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from headway.lab.workload import Times

BODY = b'{"id":"bench-0","model_name":"m","outputs":[{"name":"y","shape":[1],"data":[1.0]}]}'
ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(BODY)
    + BODY
)


def latencies(due: Times, alpha_s: float, beta_s: float, cap: int) -> Times:
    """What each request must see: the law itself, without a server."""
    done = np.empty(len(due))
    arrived: Sequence[float] = due.tolist()
    free_at, at = 0.0, 0
    while at < len(arrived):
        start = max(free_at, arrived[at])
        end = at
        while end < len(arrived) and end - at < cap and arrived[end] <= start:
            end += 1
        free_at = start + alpha_s + beta_s * (end - at)
        done[at:end] = free_at
        at = end
    return done - due


_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
_EVENT = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":'
    b'[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
)
_TOKEN = b"%x\r\n%b\r\n" % (len(_EVENT), _EVENT)
_STREAM_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


@contextmanager
def running(*arguments: object) -> Iterator[str]:
    """The URL of such a server, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.known_law", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/any"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


class _Server:
    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._clients: dict[int, socket.socket] = {}
        print(self._listener.getsockname()[1], flush=True)

    def requests(self, timeout_s: float) -> Iterator[socket.socket]:
        """Whose requests came; each is one packet, as bench sends them."""
        for descriptor, _ in self._epoll.poll(timeout_s):
            if descriptor == self._listener.fileno():
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._clients[client.fileno()] = client
                self._epoll.register(client.fileno(), select.EPOLLIN)
                continue
            client = self._clients[descriptor]
            try:
                data = client.recv(65_536)
            except ConnectionError:
                data = b""
            if data:
                yield client
            else:
                del self._clients[descriptor]
                client.close()

    def at_once(self) -> None:
        while True:
            for client in self.requests(10.0):
                client.send(ANSWER)

    def tokens(self, count: int) -> None:
        """A token to each client in turn, each in a packet of its own."""
        left: dict[int, int] = {}
        while True:
            for client in self.requests(0.0 if left else 10.0):
                client.send(_STREAM_HEAD)
                left[client.fileno()] = count
            for descriptor in list(left):
                client_of = self._clients.get(descriptor)
                left[descriptor] -= 1
                is_last = not left[descriptor]
                if client_of is not None:
                    with contextlib.suppress(OSError):
                        client_of.send(_TOKEN + _STREAM_END if is_last else _TOKEN)
                if is_last or client_of is None:
                    del left[descriptor]

    def by_law(self, alpha_s: float, beta_s: float, cap: int) -> None:
        clock = time.perf_counter
        waiting: deque[tuple[float, socket.socket]] = deque()
        running: list[socket.socket] = []
        free_at = 0.0
        while True:
            # It never sleeps: to wake would take it as long as what is to be measured.
            waiting.extend((clock(), client) for client in self.requests(0.0))
            if running and clock() >= free_at:
                for client in running:
                    if client.fileno() >= 0:
                        client.send(ANSWER)
                running = []
            if waiting and not running:
                start = max(free_at, waiting[0][0])
                while waiting and len(running) < cap and waiting[0][0] <= start:
                    running.append(waiting.popleft()[1])
                free_at = start + alpha_s + beta_s * len(running)


if __name__ == "__main__":
    if sys.argv[1] == "at-once":
        _Server().at_once()
    if sys.argv[1] == "tokens":
        _Server().tokens(int(sys.argv[2]))
    alpha, beta, cap = sys.argv[1:]
    _Server().by_law(float(alpha) / 1e3, float(beta) / 1e3, int(cap))
