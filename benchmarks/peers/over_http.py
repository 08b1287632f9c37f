"""Headway's server with the chat model, and one process of clients: streams of token ids."""

import argparse
import json
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from benchmarks.peers.engine import KV_CACHE_GIB
from benchmarks.peers.loads import Chat, Load, loads, measure

READY_S = 120.0
READ_BYTES = 8_192


class Clients:
    """One connection for each chat, closed by the server at its end. They are woken for every few
    kilobytes (`SO_RCVLOWAT`): the cores are the server's, as if the clients were elsewhere."""

    def __init__(self, port: int, model: str = "chat") -> None:
        self._port = port
        self._model = model

    def run(self, load: Load) -> None:
        waiting = deque(load.chats)
        poller = select.poll()
        running: dict[int, tuple[socket.socket, Chat, bytearray]] = {}
        while waiting or running:
            while waiting and len(running) < load.at_once:
                chat = waiting.popleft()
                stream = self._ask(chat)
                poller.register(stream, select.POLLIN)
                running[stream.fileno()] = stream, chat, bytearray()
            for descriptor, _ in poller.poll():
                stream, chat, seen = running[descriptor]
                data = stream.recv(65_536)
                seen += data
                if data:
                    continue
                poller.unregister(descriptor)
                stream.close()
                del running[descriptor]
                # Not an event for every token: some are no whole character.
                assert b"[DONE]" in seen[-64:], bytes(seen[-300:])
                assert b'"completion_tokens":%d,' % chat.out in seen, bytes(seen[:300])

    def _ask(self, chat: Chat) -> socket.socket:
        options: dict[str, Any] = {
            "max_tokens": chat.out,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        options["stream_options"] = {"include_usage": True}
        body = json.dumps({"model": self._model, "prompt": chat.prompt, **options}).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
            "Content-Type: application/json\r\n"
        )
        stream = socket.create_connection(("127.0.0.1", self._port))
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, READ_BYTES)
        stream.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return stream


def wait_ready(port: int, server: "subprocess.Popen[bytes]") -> None:
    ends_at = time.monotonic() + READY_S
    while time.monotonic() < ends_at and server.poll() is None:
        with suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5).close()
            return
        time.sleep(0.2)
    raise RuntimeError("the server is not ready")


@contextmanager
def serving() -> Iterator[Clients]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "headway", "serve", "chat", "--port", str(port)]
    command += ["--grpc-port", "-1", "--kv-cache-gib", str(KV_CACHE_GIB), "--max-context", "2048"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_ready(port, server)
            yield Clients(port)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    with serving() as clients:
        for seed in (1001, 1002, 1003):  # while a spare engine starts beside the first one
            clients.run(loads(seed)[-1])
        measure("http", clients.run, rounds=arguments.rounds)


if __name__ == "__main__":
    main()
