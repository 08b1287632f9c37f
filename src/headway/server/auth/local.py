"""The administrator's door where there are no keys: shut, unless the operator opens it
(`admin_without_key`), and then not for web pages.

An address does not identify the client: a proxy on this machine passes on any requests. A web page
can send requests to a server on the reader's own machine, and with a name that it lets
point to 127.0.0.1 (DNS rebinding) even read the answers. Such requests give themselves away.
"""

import ipaddress
import re
from collections.abc import Mapping

from headway.errors import Forbidden

NEEDS_KEY = (
    "only an operator may ask this: with a key that has the right 'admin', "
    "or on a server without keys that was started with --admin-without-key"
)
_HOST = re.compile(r"(\[(?P<bracketed>[^\]]+)\]|(?P<name>[^:\[\]]+))(:\d+)?")
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")


def is_loopback(host: str) -> bool:
    """An address, or the one name that means it."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_local(headers: Mapping[str, str]) -> None:
    """Raises Forbidden unless the request names this machine and comes from no page or proxy."""
    named = _HOST.fullmatch(headers.get("host", ""))
    if named is None or not is_loopback(named["bracketed"] or named["name"]):
        raise Forbidden(f"{NEEDS_KEY}; the request must name 127.0.0.1 or localhost as its host")
    check_no_proxy(headers)
    check_no_page(headers)


def check_no_page(headers: Mapping[str, str]) -> None:
    """Raises Forbidden where a browser says that another site's page asks."""
    host = headers.get("host", "")
    own = (f"http://{host}", f"https://{host}")
    is_foreign = headers.get("origin", own[0]) not in own
    if is_foreign or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Forbidden(f"{NEEDS_KEY}: the request comes from a web page")


def check_no_proxy(headers: Mapping[str, str]) -> None:
    """Raises Forbidden where a proxy passes on a request."""
    if any(name in headers for name in _FORWARDED):
        raise Forbidden(f"{NEEDS_KEY}: the request comes through a proxy")
