"""TLS for HTTP and gRPC, from files that may change: looked at for every connection.

New connections get the new certificate, old ones keep theirs. Each change makes a new context, with
sessions of its own: none from before is resumed, so no client gets round a new client authority.
Files that do not fit together (one is replaced before the other) are logged, and the last good ones
serve on.
"""

import logging
import os
import ssl
import threading
from typing import Literal, TypeAlias, get_args

from headway.errors import ConfigError

_log = logging.getLogger(__name__)
Protocol: TypeAlias = Literal["http/1.1", "h2"]  # as TLS names them
Stamp: TypeAlias = tuple[tuple[int, int, int], ...]


class Certificates:
    def __init__(self, certificate: str, key: str, client_ca: str = "") -> None:
        """Takes paths. With a `client_ca`, clients need a certificate of that authority. Raises
        ConfigError if the files cannot be used."""
        self._paths = [certificate, key]
        self._client_ca = client_ca
        if self._client_ca:
            self._paths.append(self._client_ca)
        self._lock = threading.Lock()
        try:
            self._stamp, self._contexts = self._load()
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{' '.join(self._paths)}: {_reason(error)}", field="tls_cert"
            ) from error
        self._refused: Stamp | None = None  # the files that did not fit

    def context(self, protocol: Protocol = "http/1.1") -> ssl.SSLContext:
        """The context for one handshake, with the present certificate. (If it were exchanged within
        the handshake, by its SNI callback, sessions would stay with the old one.)"""
        self.refresh()
        return self._contexts[protocol]

    def refresh(self) -> bool:
        """Read the files again where they have changed; whether they had, and are good."""
        with self._lock:
            try:
                stamp = self._look()
                if stamp in (self._stamp, self._refused):
                    return False
                self._refused = stamp  # until it is known to be good
                self._stamp, self._contexts = self._load()
            except (OSError, ssl.SSLError) as error:
                _log.error("the old certificate stays: %s", _reason(error))
                return False
            self._refused = None
            _log.info("the certificate has changed: new connections get the new one")
            return True

    def _look(self) -> Stamp:
        found = (os.stat(path) for path in self._paths)  # through links, as Kubernetes swaps them
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)

    def _load(self) -> tuple[Stamp, dict[Protocol, ssl.SSLContext]]:
        stamp = self._look()
        contexts = {protocol: self._made(protocol) for protocol in get_args(Protocol)}
        if self._look() != stamp:
            raise OSError("the files change while they are read")
        return stamp, contexts

    def _made(self, protocol: Protocol) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Tickets would outlive this context, and a client authority that is no longer trusted.
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        context.num_tickets = 0
        context.set_alpn_protocols([protocol])
        context.load_cert_chain(self._paths[0], self._paths[1], password=_no_password)
        if self._client_ca:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self._client_ca)
        return context


def _no_password() -> str:
    """Raises: OpenSSL itself would ask at the terminal, which a server does not have."""
    raise ssl.SSLError("the private key is encrypted; Headway needs it unencrypted")


def _reason(error: BaseException) -> str:
    return (
        getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
    ).strip()
