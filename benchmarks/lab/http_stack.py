"""What the HTTP stack alone carries: 16 floats in, doubled, out; no batcher, no validation.

    python -m benchmarks.lab.http_stack [--python PATH_WITH_UVICORN] [--seconds 4]

Needs `wrk` and `taskset`. The server runs on core 1, wrk on core 0. Not part of `make bench`: the
figures of docs/decisions/0007-http-stack.md come from here.
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from headway.config import ServerConfig
from headway.server.app import App
from headway.server.event_loop import run
from headway.server.service.routes import Route
from headway.wire.asgi import AsgiApp
from headway.wire.http1.server import HttpServer
from headway.wire.messages import Request, Response

PATH = "/v2/models/double/infer"
BODY = msgspec.json.encode([number + 0.5 for number in range(16)])
STACKS = ("bare", "ours-echo", "ours", "ours-asyncio", "uvicorn-raw", "uvicorn-ours")


def double(body: bytes) -> bytes:
    return msgspec.json.encode([2 * each for each in msgspec.json.decode(body, type=list[float])])


def make_app(*, is_echo: bool = False) -> App:
    async def infer(request: Request, model: str) -> Response:
        return Response(request.body if is_echo else double(request.body))

    app = App()
    app.add(Route("POST", "/v2/models/{model}/infer", infer))
    return app


async def serve_ours(port: int, *, is_echo: bool) -> None:
    async with HttpServer(make_app(is_echo=is_echo), ServerConfig(port=port)):
        await asyncio.Event().wait()


class BareProtocol(asyncio.Protocol):
    """The floor: no headers, no routes, no limits, no clock, no task."""

    def __init__(self) -> None:
        import httptools

        self._parser = httptools.HttpRequestParser(self)
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        answer = double(body)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._transport.write(head % len(answer) + answer)


async def serve_bare(port: int) -> None:
    loop = asyncio.get_running_loop()
    async with await loop.create_server(BareProtocol, "127.0.0.1", port) as server:
        await server.serve_forever()


async def raw_asgi(scope: Any, receive: Any, send: Any) -> None:
    message = await receive()
    body = double(message["body"])
    length = str(len(body)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve(stack: str, port: int) -> None:
    if stack == "bare":
        run(serve_bare(port))
    elif stack == "ours-asyncio":
        asyncio.run(serve_ours(port, is_echo=False))
    elif stack.startswith("ours"):
        run(serve_ours(port, is_echo=stack == "ours-echo"))
    else:
        import uvicorn

        app = raw_asgi if stack == "uvicorn-raw" else AsgiApp(make_app())
        uvicorn.run(
            app, port=port, log_level="warning", lifespan="off", loop="uvloop", http="httptools"
        )


def measure(python: str, stack: str, *, seconds: int) -> None:
    port = 18_300 + STACKS.index(stack)
    command = ["taskset", "-c", "1", python, "-m", "benchmarks.lab.http_stack", "--serve", stack]
    with subprocess.Popen([*command, "--port", str(port)]) as server:
        try:
            time.sleep(2)
            for connections in (1, 64, 256):
                load(port, connections, 1)  # warm
                before = cpu_s(server.pid)
                output = load(port, connections, seconds)
                used = cpu_s(server.pid) - before
                print(f"{stack:14} c={connections:<4}", summary(output, used), flush=True)
        finally:
            server.terminate()


def cpu_s(pid: int) -> float:
    """What the server itself used: on a busy machine, a steadier figure than the rate."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(port: int, connections: int, seconds: int) -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as lua:
        lua.write(f"wrk.method='POST'; wrk.body='{BODY.decode()}'")
        lua.flush()
        command = ["taskset", "-c", "0", "wrk", "-t1", f"-c{connections}", f"-d{seconds}s"]
        url = f"http://127.0.0.1:{port}{PATH}"
        return subprocess.run(
            [*command, "--latency", "-s", lua.name, url], capture_output=True, text=True, check=True
        ).stdout


def summary(output: str, used_s: float) -> str:
    def find(pattern: str) -> str:
        match = re.search(pattern, output, re.MULTILINE)
        return match[1].strip() if match else "-"

    requests = int(find(r"(\d+) requests in"))
    each_us = used_s / requests * 1e6
    failed = find(r"^\s+(Socket errors.*|Non-2xx.*)")
    return (
        f"{find(r'Requests/sec:(.*)'):>10}/s  server CPU {each_us:5.1f} µs/request  "
        f"p50 {find(r'^ +50%(.*)')}  p99 {find(r'^ +99%(.*)')}  {failed}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--serve", choices=STACKS)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with uvicorn")
    parser.add_argument("stacks", nargs="*", default=STACKS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.port)
        return
    os.chdir(Path(__file__).parents[2])
    for stack in options.stacks:
        measure(options.python, stack, seconds=options.seconds)


if __name__ == "__main__":
    main()
