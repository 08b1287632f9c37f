"""The gates of gRPC: one service for each key, chosen by a call's metadata."""

import functools
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from headway.errors import Forbidden, HeadwayError, Unauthenticated
from headway.hosting.registry import Registry
from headway.server.auth.access import Access, access_of_method
from headway.server.auth.keys import NO_KEY, Caller, KeyRing
from headway.server.auth.local import NEEDS_KEY, check_no_proxy
from headway.server.auth.models import KeyedRegistry
from headway.server.grpc import inference_pb2 as pb
from headway.server.grpc.service import Inference

_MOST_SERVICES = 1024  # keys in use at a time


class AdminShut:
    """A service that refuses the administrator: there are no keys, and the operator has not said
    that it takes none."""

    def __init__(self, service: Inference) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        if name[0].isupper() and access_of_method(name) is Access.ADMIN:
            return _refuse_admin
        return getattr(self._service, name)


async def _refuse_admin(request: Any, context: Any) -> Any:
    raise Forbidden(NEEDS_KEY)


class AdminLocal:
    """A service that is reached from this machine only: its administrator does not come through a
    proxy. (No web page speaks gRPC.)"""

    def __init__(self, service: Inference) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._service, name)
        if not name[0].isupper() or access_of_method(name) is not Access.ADMIN:
            return method

        async def local_only(request: Any, context: Any) -> Any:
            check_no_proxy(dict(context.invocation_metadata() or ()))
            return await method(request, context)

        return local_only


class KeyedService:
    """Every method finds its caller first, and is then called on that caller's own service."""

    def __init__(
        self,
        ring: KeyRing,
        registry: Registry,
        make: Callable[[type[Inference], Registry], Inference],
    ) -> None:
        self._ring = ring
        self._registry = registry
        self._make = make
        self._nobody = make(Inference, registry)
        self._service_of = functools.lru_cache(_MOST_SERVICES)(self._make_service)
        self._made: weakref.WeakSet[Inference] = weakref.WeakSet()

    def finish_streams(self) -> None:
        for service in list(self._made):
            service.finish_streams()

    def why_not(self, name: str, metadata: dict[str, Any]) -> HeadwayError | None:
        """Asked at a call's head. `_call` asks again, for the caller's own service."""
        try:
            self._admitted(access_of_method(name), metadata)
        except HeadwayError as error:
            return error
        return None

    def __getattr__(self, name: str) -> Any:
        """The methods have the .proto's names: capitals."""
        if not name[0].isupper():
            raise AttributeError(name)
        return functools.partial(self._call, name, access_of_method(name))

    async def _call(self, name: str, access: Access, request: Any, context: Any) -> Any:
        service = self._admitted(access, dict(context.invocation_metadata() or ()))
        return await getattr(service, name)(request, context)

    def _admitted(self, access: Access, metadata: dict[str, Any]) -> Inference:
        if access is Access.OPEN:
            return self._nobody
        caller = self._ring.find(metadata)
        if caller is None:
            raise Unauthenticated(NO_KEY)
        if not access.is_granted_to(caller.key.rights):
            raise Forbidden(f"key {caller.key.id!r} has not the right {access.value!r}")
        return self._service_of(caller)

    def _make_service(self, caller: Caller) -> Inference:
        registry = cast(Registry, KeyedRegistry(self._registry, caller))
        service = cast(KeyedInference, self._make(KeyedInference, registry))
        service.caller = caller
        self._made.add(service)
        return service


class KeyedInference(Inference):
    """Counts every inference, alone or in a stream, from its begin to its last answer."""

    caller: Caller

    async def answer(self, request: pb.ModelInferRequest, context: Any) -> pb.ModelInferResponse:
        account = self.caller.account
        account.begin(time.monotonic())
        try:
            return await super().answer(request, context)
        finally:
            account.end()

    @asynccontextmanager
    async def stream(
        self, request: pb.ModelInferRequest, context: Any
    ) -> AsyncIterator[AsyncIterator[pb.ModelInferResponse]]:
        account = self.caller.account
        account.begin(time.monotonic())
        try:
            async with super().stream(request, context) as responses:
                yield responses
        finally:
            account.end()
