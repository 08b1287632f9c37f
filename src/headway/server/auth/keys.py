"""API keys: made once, kept as hashes, found without telling how near a guess was.

A key is 192 random bits, so one sha256 is enough: there is nothing to guess that a slow hash would
protect, and a slow hash would be a way to keep the server busy.
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headway.config import KeyConfig
from headway.core.queueing.quota import Allowance, Quota
from headway.errors import Forbidden, Unauthenticated
from headway.hosting.registry import Ask
from headway.server.auth.access import Access

NO_KEY = "an API key is needed: `Authorization: Bearer …` or `X-Api-Key`"
PREFIX = "hw-"
_BYTES = 24
_NO_DIGEST = bytes(32)


class NewKey(NamedTuple):
    """A new key, shown once. Only its hash is kept."""

    key: str
    hash: str


def new_key() -> NewKey:
    key = PREFIX + secrets.token_urlsafe(_BYTES)
    return NewKey(key, hash_of(key))


def hash_of(key: str) -> str:
    return "sha256:" + _digest(key).hex()


class Caller:
    """The key that sent a request, and its usage. The request carries it; on a server without keys
    it carries None."""

    __slots__ = ("allowance", "key", "plain")

    def __init__(self, key: KeyConfig, allowance: Allowance) -> None:
        self.key = key
        self.allowance = allowance
        self.plain = Ask(tenant=key.tenant, allowance=allowance)  # of a request without options

    def check(self, access: Access) -> None:
        """Raises Forbidden where the key lacks the right."""
        if not access.is_granted_to(self.key.rights):
            raise Forbidden(f"key {self.key.id!r} lacks the right {access.value!r}")

    def check_model(self, model: str) -> None:
        """Raises Forbidden, in the same words whether there is such a model or not."""
        if not self.may_use(model):
            raise Forbidden(f"key {self.key.id!r} may not use model {model!r}")

    def may_use(self, model: str) -> bool:
        return not self.key.models or model in self.key.models

    def names_among(self, models: Iterable[str]) -> list[str]:
        """The names that this caller may see."""
        return [name for name in models if self.may_use(name)]


class _Nobody(Caller):
    """A caller without a key. It may ask whether a named model is ready; it is never shown model
    names."""

    __slots__ = ()

    def __init__(self) -> None:
        key = KeyConfig(id="", hash="", tenant="", rights=())
        super().__init__(key, Allowance("", Quota(), 0.0))

    def check(self, access: Access) -> None:
        if access is not Access.OPEN:
            raise Unauthenticated(NO_KEY)

    def names_among(self, models: Iterable[str]) -> list[str]:
        return []


NOBODY = _Nobody()


def check_whole_server(caller: Caller | None) -> None:
    """Raises Forbidden for a key that is for certain models: callers of others would notice."""
    if caller is not None and caller.key.models:
        raise Forbidden(
            f"key {caller.key.id!r} is for certain models; this concerns the whole server"
        )


def check_regions(caller: Caller | None) -> None:
    """Raises Forbidden for a key that is for certain models: any model's data may lie there."""
    if caller is not None and caller.key.models:
        raise Forbidden(
            f"key {caller.key.id!r} is for certain models and may not name shared memory regions"
        )


class KeyRing:
    """Holds all keys. `change` replaces them; keys that stay keep their usage so far."""

    def __init__(self, keys: Iterable[KeyConfig], now: float) -> None:
        self._callers: dict[bytes, Caller] = {}
        self.change(keys, now)

    def change(self, keys: Iterable[KeyConfig], now: float) -> None:
        callers = {}
        for key in keys:
            digest = bytes.fromhex(key.hash.removeprefix("sha256:"))
            callers[digest] = self._kept(self._callers.get(digest), key, now)
        self._callers = callers  # at once: no request sees half of it

    def find(self, headers: Mapping[str, str]) -> Caller:
        """The caller of a key; NOBODY if no key was sent. Raises Unauthenticated if it is
        unknown."""
        key = _sent(headers)
        if key is None:
            return NOBODY
        digest = _digest(key)
        # A lookup by hash leaks nothing: a client that chose the hash's bits would know the key.
        caller = self._callers.get(digest)
        known = _NO_DIGEST if caller is None else digest
        if caller is None or not hmac.compare_digest(known, digest):
            raise Unauthenticated("the API key is not known")
        return caller

    def _kept(self, old: Caller | None, key: KeyConfig, now: float) -> Caller:
        quota = Quota(key.requests_per_s, key.rows_per_s, key.concurrent, key.tokens_per_minute)
        if old is None:
            return Caller(key, Allowance(key.id, quota, now))
        if old.key == key:
            return old
        old.allowance.change(quota, now)
        return Caller(key, old.allowance)


def _sent(headers: Mapping[str, str]) -> str | None:
    """`Authorization: Bearer …` as OpenAI's client sends it, or `X-Api-Key`."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key", "").strip() or None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
