"""Web pages may not call a server without keys: neither to have it do work, nor to read answers.

A browser sends a page's request to any address, this machine's own included, and names the page's
site in `Origin` and `Sec-Fetch-Site`. It takes us for the page's own server only if its owner
lets a name point here (DNS rebinding); then that name is in `Host`. So a host must be an address, a
name that nobody can own, or one that the operator allows.

With keys none of this is needed: a page has none. A mounted application leaves it to the outer one.
"""

import ipaddress
import re
import socket
from collections.abc import Mapping

from headway.config import ServerConfig
from headway.errors import Forbidden
from headway.server.app import App, Handle
from headway.wire.messages import Answer, Request

_HOST = re.compile(r"(?:\[(?P<bracketed>[^\]]+)\]|(?P<name>[^:\[\]]+))(?::\d+)?")
# Top-level names that no registry sells, and that networks and clusters use for themselves.
_NOBODYS = frozenset(["localhost", "local", "internal", "svc", "test", "home.arpa"])
_MOST_KNOWN = 256


class PageCheck:
    """A layer around the whole app."""

    def __init__(self, app: App, config: ServerConfig) -> None:
        self._app = app
        own = (config.host, socket.gethostname(), *config.allowed_hosts)
        self._allowed = frozenset(each.lower().rstrip(".") for each in own)
        self._origins = frozenset(each.rstrip("/") for each in config.cors_origins)
        self._known: set[bytes | None] = {None}  # that were found right; HTTP/1.0 may have none

    def may_pass(self, headers: dict[bytes, bytes]) -> bool:
        """Whether no header needs a closer look."""
        is_plain = headers.get(b"host") in self._known and b"origin" not in headers
        return is_plain and b"sec-fetch-site" not in headers

    def around(self, handle: Handle) -> Handle:
        async def checked(request: Request) -> Answer:
            try:
                self._check(request)
            except Forbidden as error:
                return self._app.answer_error(request, error)
            return await handle(request)

        return checked

    def _check(self, request: Request) -> None:
        headers = request.headers
        if "*" in self._origins:
            return  # all pages may
        host = headers.get("host")
        if host is not None and host.encode("latin-1", "replace") not in self._known:
            self._check_host(host)
        origin = headers.get("origin")
        if origin in self._origins:
            return
        if origin is not None and origin.lower() not in _own_origins(host):
            raise Forbidden(f"origin: pages of {origin:.200} may not call; see --cors-origins")
        if _is_of_another_site(request.method, headers):
            raise Forbidden("sec-fetch-site: pages of other sites may not call; see --cors-origins")

    def _check_host(self, host: str) -> None:
        found = _HOST.fullmatch(host)
        name = "" if found is None else (found["bracketed"] or found["name"])
        if host and not self._is_ours(name.lower().rstrip(".")):
            raise Forbidden(
                f"host: {host:.200} is not a name of this server, which has no keys. Use an "
                "address, or start it with --allowed-hosts"
            )
        if len(self._known) < _MOST_KNOWN:
            self._known.add(host.encode("latin-1", "replace"))

    def _is_ours(self, name: str) -> bool:
        if "*" in self._allowed or name in self._allowed:
            return True
        labels = name.split(".")
        if len(labels) == 1 and name:  # a container's, a service's
            return True
        if labels[-1] in _NOBODYS or ".".join(labels[-2:]) in _NOBODYS:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _own_origins(host: str | None) -> tuple[str, ...]:
    return () if host is None else (f"http://{host.lower()}", f"https://{host.lower()}")


def _is_of_another_site(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a page of another site sent this. A link that a person follows is no such request:
    the other page cannot read the answer."""
    site = headers.get("sec-fetch-site", "none")
    is_link = method in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"
    return site not in ("none", "same-origin") and not is_link
