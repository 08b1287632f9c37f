"""The gates of HTTP: each wraps a route's handler, once, by what the route takes of its caller."""

import functools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol, TypeAlias, cast

from headway.config import ServerConfig
from headway.errors import Forbidden, Unauthenticated
from headway.hosting.registry import Registry
from headway.server.app import App, Asker, Handler, Pending
from headway.server.auth.access import Access
from headway.server.auth.keys import NO_KEY, Caller, KeyRing
from headway.server.auth.local import NEEDS_KEY, check_local, check_no_page, is_loopback
from headway.server.auth.models import KeyedRegistry, NamelessRegistry
from headway.server.net.headers import WireHeaders
from headway.server.net.messages import Answer, Request, StreamResponse

_MOST_APPS = 1024  # keys in use at a time; whoever is beyond costs a new set of routes


class Gate(Protocol):
    def __call__(self, access: Access, handler: Handler) -> Handler: ...


MakeApp: TypeAlias = Callable[[Registry, Gate], App]  # all routes, behind a gate


def gate_without_keys(config: ServerConfig) -> Gate:
    """Everybody may do everything but administrate: that takes a key, or the operator's word."""
    check = check_local if is_loopback(config.host) else check_no_page

    def gate(access: Access, handler: Handler) -> Handler:
        if access is not Access.ADMIN:
            return handler
        if config.admin_without_key:
            return _checked(handler, check)
        return _refuse(Forbidden, NEEDS_KEY)

    return gate


class KeyedApp(App):
    """One set of routes for each key, over the models as it sees them; one for the keyless."""

    def __init__(self, ring: KeyRing, registry: Registry, make: MakeApp, *, debug: bool) -> None:
        super().__init__(debug=debug)
        self._ring = ring
        self._registry = registry
        self._make = make
        self._nobody = make(cast(Registry, NamelessRegistry(registry)), _gate_of_nobody)
        self.errors = self._nobody.errors
        self._app_of = functools.lru_cache(_MOST_APPS)(self._make_app)

    def template_of(self, request: Request) -> str:
        return self._nobody.template_of(request)

    def start_direct(
        self, url: bytes, body: bytes, asker: Asker, headers: dict[bytes, bytes]
    ) -> Pending | None:
        try:
            caller = self._ring.find(WireHeaders(headers))
        except Unauthenticated:
            return None
        if caller is None or not Access.INFER.is_granted_to(caller.key.rights):
            return None
        return self._app_of(caller).start_direct(url, body, asker, headers)

    async def handle(self, request: Request) -> Answer:
        try:
            caller = self._ring.find(request.headers)
        except Unauthenticated as error:
            return self.answer_error(request, error)
        if caller is None:
            request.body = b""  # nothing is unpacked for somebody unknown
            return await self._nobody.handle(request)
        return await self._app_of(caller).handle(request)

    def _make_app(self, caller: Caller) -> App:
        registry = cast(Registry, KeyedRegistry(self._registry, caller))
        return self._make(registry, functools.partial(_gate_of_caller, caller))


def _gate_of_nobody(access: Access, handler: Handler) -> Handler:
    if access is Access.OPEN:
        return handler
    return _refuse(Unauthenticated, NO_KEY)


def _gate_of_caller(caller: Caller, access: Access, handler: Handler) -> Handler:
    if not access.is_granted_to(caller.key.rights):
        return _refuse(Forbidden, f"key {caller.key.id!r} has not the right {access.value!r}")
    return _counted(caller, handler) if access is Access.INFER else handler


def _checked(handler: Handler, check: Callable[[Mapping[str, str]], None]) -> Handler:
    async def checked(request: Request, **params: str) -> Answer:
        check(request.headers)
        return await handler(request, **params)

    return checked


def _refuse(kind: type[Forbidden] | type[Unauthenticated], reason: str) -> Handler:
    async def refuse(request: Request, **params: str) -> Answer:
        raise kind(reason)

    return refuse


def _counted(caller: Caller, handler: Handler) -> Handler:
    """A request is one from its begin to the last byte of its answer."""

    async def counted(request: Request, **params: str) -> Answer:
        account = caller.account
        account.begin(time.monotonic())
        is_over = True
        try:
            answer = await handler(request, **params)
            if isinstance(answer, StreamResponse):
                answer.chunks = _CountedChunks(answer.chunks, account.end)
                is_over = False
            return answer
        finally:
            if is_over:
                account.end()

    return counted


class _CountedChunks:
    """A class, because a generator that was never started would never run its `finally`."""

    def __init__(self, chunks: AsyncIterator[bytes], end: Callable[[], None]) -> None:
        self._chunks = chunks
        self._end: Callable[[], None] | None = end

    def __aiter__(self) -> "_CountedChunks":
        return self

    async def __anext__(self) -> bytes:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            end()
        close = getattr(self._chunks, "aclose", None)
        if close is not None:
            await close()
