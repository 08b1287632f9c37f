"""The same app as a plain ASGI application, to be mounted elsewhere or served by others."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import quote

from headway.wire.application import HttpApplication
from headway.wire.body_room import joined
from headway.wire.connections import client_of
from headway.wire.headers import WireHeaders, one_line, request_id
from headway.wire.messages import Answer, Headers, Request, Response, StreamResponse
from headway.wire.own_cancellation import is_asked_to_stop

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

MAX_BODY_BYTES = 64 * 2**20
_LARGE = 256 * 2**10  # bytes of a chunk
_LOOK_S = 0.02


class _Gone(Exception):
    """The client left before its request was whole."""


class AsgiApp:
    """Answers requests only: models are loaded before, and live as long as their owner says."""

    def __init__(self, app: HttpApplication, *, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # a server that tries `lifespan` goes on without
            raise ValueError(f"there is no {scope['type']} here")
        await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _request_of(scope)
        peer = scope.get("client")
        request.client = client_of(peer[0]) if peer else ""
        try:
            body = await self._read_body(request.headers, receive)
        except _Gone:
            return
        if body is None:
            message = f"the body is larger than {self._max_body_bytes} bytes"
            refusal = self._app.refuse(request.path, 413, message, code="input_too_large")
            refusal.headers = (("Connection", "close"),)
            await _send_answer(request, refusal, send)
            return
        request.body = body
        with _WhileThere(receive):
            await self._answer(request, send)

    async def _read_body(self, headers: Mapping[str, str], receive: Receive) -> bytes | None:
        """The body; None: it is larger than the limit."""
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._max_body_bytes:
            return None
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Gone
            part = message.get("body", b"")
            size += len(part)
            if size > self._max_body_bytes:
                return None
            parts.append(part)
            if not message.get("more_body", False):
                break
        return await joined(parts)

    async def _answer(self, request: Request, send: Send) -> None:
        answer = await self._app.handle(request)
        if isinstance(answer, Response):
            await _send_answer(request, answer, send)
            return
        try:
            await self._answer_stream(request, answer, send)
        except BaseException as error:
            answer.end(error)
            raise
        answer.end(None)

    async def _answer_stream(self, request: Request, answer: StreamResponse, send: Send) -> None:
        try:
            try:
                first = await anext(answer.chunks, None)
            except BaseException as error:
                if is_asked_to_stop(error):
                    raise
                answer.end(error)
                await _send_answer(request, self._app.answer_error(request, error), send)
                return
            await _send_stream(request, answer, first, send)
        finally:
            await answer.close()


async def _send_answer(request: Request, response: Response, send: Send) -> None:
    length = (("Content-Length", str(len(response.body))),)
    await send(_start(request, response, length))
    body = b"" if request.method == "HEAD" else response.body
    await send({"type": "http.response.body", "body": body})


async def _send_stream(
    request: Request, response: StreamResponse, chunk: bytes | None, send: Send
) -> None:
    await send(_start(request, response, ()))
    while chunk is not None and request.method != "HEAD":
        if chunk:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            if len(chunk) > _LARGE:
                await asyncio.sleep(0)  # the next may be there: others have their turn
        chunk = await anext(response.chunks, None)
    await send({"type": "http.response.body", "body": b""})


def _start(request: Request, response: Answer, more: Headers) -> Message:
    headers = (
        ("Content-Type", response.content_type),
        ("X-Request-Id", request.id),
        *more,
        *response.headers,
    )
    encoded = [(one_line(name.lower()), one_line(value)) for name, value in headers]
    return {"type": "http.response.start", "status": response.status, "headers": encoded}


def _request_of(scope: Scope) -> Request:
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        headers[name] = headers[name] + b", " + value if name in headers else value
    raw = scope.get("raw_path")  # as sent: only this distinguishes %2F from /
    path = raw.decode("latin-1").partition("?")[0] if raw else quote(scope["path"])
    return Request(
        scope["method"],
        _below(path, scope),
        scope.get("query_string", b"").decode("latin-1"),
        WireHeaders(headers),
        b"",
        request_id(headers.get(b"x-request-id")),
    )


def _below(path: str, scope: Scope) -> str:
    """The path without the prefix that we are mounted under. If a proxy strips its own prefix and
    the parent application knows that, the prefix is in `root_path`, but not in the path."""
    root = quote(scope.get("root_path", ""))
    for prefix in (root, root.removeprefix(quote(scope.get("app_root_path", "")))):
        if prefix and (path == prefix or path.startswith(f"{prefix}/")):
            return path[len(prefix) :] or "/"
    return path


class _WhileThere:
    """Cancels what runs in it once the client has left. It looks after a moment only: most requests
    are answered by then, and that costs them no task."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watch: asyncio.Future[None] | None = None
        self._is_over = self._has_left = False
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._is_over = True
        self._timer.cancel()
        if self._watch is not None:
            self._watch.cancel()
        if not self._has_left:
            return False
        is_ours = self._task.uncancel() == 0  # the server has not cancelled it, too
        return is_ours and kind is not None and issubclass(kind, asyncio.CancelledError)

    def _look(self) -> None:
        self._watch = asyncio.ensure_future(_wait_gone(self._receive))
        self._watch.add_done_callback(self._left)

    def _left(self, watch: "asyncio.Future[None]") -> None:
        if watch.cancelled():
            return
        watch.exception()  # of the server's: the client cannot be asked any more
        if not self._is_over:
            self._has_left = True
            self._task.cancel()


async def _wait_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
