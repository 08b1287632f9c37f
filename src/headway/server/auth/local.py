"""The administrator's door where there are no keys: open to this machine, and not to its browser.

A web page can send requests to a server on the reader's own machine, and with a name that it lets
point to 127.0.0.1 (DNS rebinding) even read the answers. Such requests give themselves away.
"""

import ipaddress
import re
from collections.abc import Mapping

from headway.errors import Forbidden

NEEDS_KEY = "this is for the administrator: it takes a key with the right `admin`"
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
    """Raises Forbidden unless somebody at this machine asks, by its own name, from no web page."""
    host = headers.get("host", "")
    named = _HOST.fullmatch(host)
    if named is None or not is_loopback(named["bracketed"] or named["name"]):
        raise Forbidden(f"{NEEDS_KEY}, or a call to 127.0.0.1 or localhost by that name")
    check_no_proxy(headers)
    if headers.get("origin", f"http://{host}") not in (f"http://{host}", f"https://{host}"):
        raise Forbidden(f"{NEEDS_KEY}: the request comes from a web page")
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Forbidden(f"{NEEDS_KEY}: the request comes from a web page")


def check_no_proxy(headers: Mapping[str, str]) -> None:
    """Raises Forbidden where somebody else's request is handed on from this machine."""
    if any(name in headers for name in _FORWARDED):
        raise Forbidden(f"{NEEDS_KEY}: the request comes through a proxy")
