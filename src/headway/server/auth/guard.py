"""Everything that stands at the door of one server: its keys, its certificate, its gates."""

import functools
import logging
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headway.config import KeyConfig, ServerConfig
from headway.errors import ConfigError, HeadwayError, Unauthenticated
from headway.hosting.registry import Registry
from headway.server.app import App
from headway.server.auth.cors import CorsApp
from headway.server.auth.http import KeyedApp, MakeApp, gate_without_keys
from headway.server.auth.keys import NO_KEY, KeyRing
from headway.server.auth.local import is_loopback
from headway.server.net.http1.protocol import Admit
from headway.server.net.tls import Certificates, Protocol, grpc_credentials

if TYPE_CHECKING:
    from headway.server.grpc.service import Inference

_log = logging.getLogger(__name__)


class Guard:
    """Decided at start: which doors there are. `change` replaces keys, not doors."""

    def __init__(self, config: ServerConfig, keys: Sequence[KeyConfig] = ()) -> None:
        """Raises ConfigError where the certificate cannot be used, or the doors contradict each
        other."""
        if config.admin_without_key:
            if keys:
                raise ConfigError(
                    "there are keys: give one of them the right `admin`", field="admin_without_key"
                )
            if not is_loopback(config.host):
                _log.warning("whoever reaches %s may administrate without a key", config.host)
        self._config = config
        self._ring = KeyRing(keys, time.monotonic()) if keys else None
        self.certificates = Certificates(config) if config.tls_cert else None

    @property
    def has_keys(self) -> bool:
        return self._ring is not None

    def change_keys(self, keys: Sequence[KeyConfig]) -> None:
        assert self._ring is not None
        self._ring.change(keys, time.monotonic())

    # --- HTTP

    def app(self, registry: Registry, make: MakeApp) -> App:
        """The app with as little around it as the configuration asks for."""
        if self._ring is None:
            app = make(registry, gate_without_keys(self._config))
        else:
            app = KeyedApp(self._ring, registry, make, debug=self._config.debug)
        origins = self._config.cors_origins
        return CorsApp(app, origins) if origins else app

    def tls(self, protocol: Protocol = "http/1.1") -> Callable[[], ssl.SSLContext] | None:
        """The context for a handshake that begins now; None: no TLS."""
        if self.certificates is None:
            return None
        return functools.partial(self.certificates.context, protocol)

    @property
    def admit(self) -> Admit | None:
        return None if self._ring is None else self._why_not

    def _why_not(self, headers: Mapping[str, str]) -> HeadwayError | None:
        assert self._ring is not None
        try:
            return Unauthenticated(NO_KEY) if self._ring.find(headers) is None else None
        except Unauthenticated as error:
            return error

    # --- gRPC, which may not be installed

    def service(
        self,
        registry: Registry,
        make: "Callable[[type[Inference], Registry], Inference]",
    ) -> Any:
        from headway.server.auth.rpc import AdminLocal, AdminShut, KeyedService
        from headway.server.grpc.service import Inference

        if self._ring is not None:
            return KeyedService(self._ring, registry, make)
        service = make(Inference, registry)
        if not self._config.admin_without_key:
            return AdminShut(service)
        return AdminLocal(service) if is_loopback(self._config.host) else service

    def grpc_credentials(self) -> Any:
        """None: no TLS."""
        return None if self.certificates is None else grpc_credentials(self.certificates)
