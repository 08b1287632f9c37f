"""Request headers of our own, `Headway-…`, and others that ask for more than the body does."""

from collections.abc import Mapping

OWN = "headway-"  # what begins so is for us: one that we do not know is refused
DEADLINE = "headway-timeout-ms"
_OWN = OWN.encode()
MOST_TENANT = 256  # characters of a name: those of the last requests are kept
_TENANT = b"headway-tenant"
# A request with one of these is never direct.
_OPTIONS = frozenset(
    [b"content-encoding", b"inference-header-content-length", b"endpoint-load-metrics-format"]
)


def has_own(raw: Mapping[bytes, bytes]) -> bool:
    """Whether any header is ours. One search in all names together is faster than one in each."""
    return _OWN in b"\n".join(raw)


def has_options(raw: Mapping[bytes, bytes]) -> bool:
    """Whether it has headers of ours other than a tenant's usual name."""
    if not _OPTIONS.isdisjoint(raw) or len(raw.get(_TENANT, b"")) > MOST_TENANT:
        return True
    return has_own(raw) and any(name.startswith(_OWN) and name != _TENANT for name in raw)


def timeout_s(headers: Mapping[str, str]) -> float | None:
    """The caller's own deadline, as far as the headers say; a wrong one is refused elsewhere."""
    text = headers.get(DEADLINE)
    try:
        seconds = float(text) / 1e3 if text is not None else 0.0
    except ValueError:
        return None
    return seconds if 0 < seconds < 1e9 else None
