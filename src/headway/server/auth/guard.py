"""The keys and the certificate of one server, and which checks it makes."""

import functools
import logging
import ssl
import time
from collections.abc import Callable, Sequence

from headway.config import KeyConfig, ServerConfig
from headway.errors import ConfigError
from headway.server.auth.keys import KeyRing
from headway.server.auth.local import is_loopback
from headway.wire.tls import Certificates, Protocol

_log = logging.getLogger(__name__)


class Guard:
    """Decides who may call what: fixed at the start, but for keys, which `change_keys` replaces."""

    def __init__(
        self, config: ServerConfig, keys: Sequence[KeyConfig] = (), *, is_mounted: bool = False
    ) -> None:
        """`is_mounted`: another application decides who may call. Raises ConfigError where the
        certificate cannot be used, or settings contradict each other."""
        if config.admin_without_key:
            if keys:
                raise ConfigError(
                    "the server has keys: give one of them the right 'admin'",
                    field="admin_without_key",
                )
            if not is_loopback(config.host):
                _log.warning(
                    "every client that reaches %s may administrate without a key", config.host
                )
        self.keys = KeyRing(keys, time.monotonic()) if keys else None  # None: no caller needs one
        self.checks_pages = self.keys is None and not is_mounted
        self.certificates = certificates_of(config) if config.tls_cert else None

    def change_keys(self, keys: Sequence[KeyConfig]) -> None:
        assert self.keys is not None
        self.keys.change(keys, time.monotonic())

    def tls(self, protocol: Protocol = "http/1.1") -> Callable[[], ssl.SSLContext] | None:
        """The context for a handshake that begins now; None: no TLS."""
        if self.certificates is None:
            return None
        return functools.partial(self.certificates.context, protocol)


def certificates_of(config: ServerConfig) -> Certificates:
    """Raises ConfigError."""
    return Certificates(config.tls_cert, config.tls_key, config.tls_client_ca)
