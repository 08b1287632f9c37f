"""A call's key and right are checked at its head, before its request is read."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from headway.errors import HeadwayError
from headway.observe import logs
from headway.server.auth.access import Access, access_of_method
from headway.server.auth.keys import NOBODY, Caller, KeyRing
from headway.server.grpc.calls import SERVICE, Calls
from headway.wire.http2.status import CallRefusal

# Called with a path and the metadata; returns the caller, or the reason why there is none.
Admit: TypeAlias = Callable[[str, Iterable[tuple[str, Any]]], Caller | CallRefusal]
_PREFIX = f"/{SERVICE.full_name}/"


class CallAdmission:
    def __init__(self, keys: KeyRing | None, calls: Calls) -> None:
        self._keys = keys
        self._calls = calls

    @property
    def admit(self) -> Admit | None:
        """The check of a call's head; None: every client may call everything."""
        return None if self._keys is None else functools.partial(self._admit, self._keys)

    def _admit(
        self, keys: KeyRing, path: str, metadata: Iterable[tuple[str, Any]]
    ) -> Caller | CallRefusal:
        if self.is_open(path):
            return NOBODY
        try:
            caller = keys.find(dict(metadata))
            caller.check(access_of_method(path[len(_PREFIX) :]))
        except HeadwayError as error:
            return self._refusal_of(path, error)
        return caller

    def _refusal_of(self, path: str, error: HeadwayError) -> CallRefusal:
        refusal = self._calls.refusal_of(error)
        if self._calls.are_observed:
            line = logs.LoggedRequest(request_id="", method="gRPC", path=path)
            line.code = error.code
            line.log(refusal.status.name)
        return refusal

    def is_open(self, path: str) -> bool:
        """Whether a method is open: health and reflection are, and those of ours that are marked
        so."""
        if not path.startswith(_PREFIX):
            return True
        return access_of_method(path[len(_PREFIX) :]) is Access.OPEN
