"""The gates before handlers and methods: each wraps one, once, by what that takes of its caller."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias

from headway.config import ServerConfig
from headway.errors import Forbidden
from headway.server.auth.access import Access
from headway.server.auth.local import (
    NEEDS_KEY,
    check_local,
    check_no_page,
    check_no_proxy,
    is_loopback,
)
from headway.wire.messages import Answer, Request, StreamResponse

Handler: TypeAlias = Callable[..., Awaitable[Any]]  # (request, **params) or (request, context)
Check: TypeAlias = Callable[[Mapping[str, str]], None]


class Gate(Protocol):
    def __call__(self, access: Access, handler: Handler) -> Handler: ...


def http_gate(config: ServerConfig, *, has_keys: bool) -> Gate:
    if has_keys:
        return _counting
    check = check_local if is_loopback(config.host) else check_no_page
    return _without_keys(config, lambda request, **_: check(request.headers))


def grpc_gate(config: ServerConfig, *, has_keys: bool) -> Gate:
    """The gate for gRPC calls. With keys, the call's head was checked before: see
    `grpc/admission.py`."""
    if has_keys:
        return _open
    if not is_loopback(config.host):
        return _without_keys(config, lambda *_: None)
    # No web page speaks gRPC; a proxy does.
    return _without_keys(
        config, lambda _, context: check_no_proxy(dict(context.invocation_metadata() or ()))
    )


def _without_keys(config: ServerConfig, check: Callable[..., None]) -> Gate:
    """Without keys, every client may call everything but /admin, which needs a key or a setting."""

    def gate(access: Access, handler: Handler) -> Handler:
        if access is not Access.ADMIN:
            return handler

        async def checked(*args: Any, **params: str) -> Any:
            if not config.admin_without_key:
                raise Forbidden(NEEDS_KEY)
            check(*args)
            return await handler(*args, **params)

        return checked

    return gate


def _open(access: Access, handler: Handler) -> Handler:
    return handler


def _counting(access: Access, handler: Handler) -> Handler:
    """The app has found the caller, and checked its right."""
    if access is not Access.INFER:
        return handler

    async def counted(request: Request, **params: str) -> Answer:
        """A request is one from its begin to the last byte of its answer."""
        assert request.caller is not None
        allowance = request.caller.allowance
        allowance.begin(time.monotonic())
        is_over = True
        try:
            answer: Answer = await handler(request, **params)
            if isinstance(answer, StreamResponse):
                answer.on_end.append(lambda _: allowance.end())
                is_over = False
            return answer
        finally:
            if is_over:
                allowance.end()

    return counted
