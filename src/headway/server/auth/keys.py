"""API keys: made once, kept as hashes, found without telling how near a guess was.

A key is 192 random bits, so one sha256 is enough: there is nothing to guess that a slow hash would
protect, and a slow hash would be a way to keep the server busy (docs/decisions/0013).
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from headway.config import KeyConfig
from headway.core.queueing.quota import Account, Quota
from headway.errors import Unauthenticated

NO_KEY = "an API key is needed: `Authorization: Bearer …` or `X-Api-Key`"
PREFIX = "hw-"
_BYTES = 24
_NO_DIGEST = bytes(32)


class NewKey(NamedTuple):
    """Shown once. Only the hash is kept."""

    key: str
    hash: str


def new_key() -> NewKey:
    key = PREFIX + secrets.token_urlsafe(_BYTES)
    return NewKey(key, hash_of(key))


def hash_of(key: str) -> str:
    return "sha256:" + _digest(key).hex()


class Caller:
    """A key that is known, and what it has used. Its identity is its key's, as long as that is
    configured the same."""

    __slots__ = ("__weakref__", "account", "key")

    def __init__(self, key: KeyConfig, account: Account) -> None:
        self.key = key
        self.account = account

    def may_use(self, model: str) -> bool:
        return not self.key.models or model in self.key.models


class KeyRing:
    """All keys. `change` replaces them; those that stay keep what they have used."""

    def __init__(self, keys: Iterable[KeyConfig], now: float) -> None:
        self._callers: dict[bytes, Caller] = {}
        self.change(keys, now)

    def change(self, keys: Iterable[KeyConfig], now: float) -> None:
        callers = {}
        for key in keys:
            digest = bytes.fromhex(key.hash.removeprefix("sha256:"))
            callers[digest] = self._kept(self._callers.get(digest), key, now)
        self._callers = callers  # at once: no request sees half of it

    def find(self, headers: Mapping[str, str]) -> Caller | None:
        """None: it has none. Raises Unauthenticated for one that is not known."""
        key = _sent(headers)
        if key is None:
            return None
        digest = _digest(key)
        # Looking up a hash tells nothing: who could choose its bits could choose the key's too.
        caller = self._callers.get(digest)
        known = _NO_DIGEST if caller is None else digest
        if caller is None or not hmac.compare_digest(known, digest):
            raise Unauthenticated("the API key is not known")
        return caller

    def _kept(self, old: Caller | None, key: KeyConfig, now: float) -> Caller:
        quota = Quota(key.requests_per_s, key.rows_per_s, key.concurrent)
        if old is None:
            return Caller(key, Account(key.id, quota, now))
        if old.key == key:
            return old
        old.account.change(quota, now)
        return Caller(key, old.account)


def _sent(headers: Mapping[str, str]) -> str | None:
    """`Authorization: Bearer …` as OpenAI's client sends it, or `X-Api-Key`."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key", "").strip() or None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
