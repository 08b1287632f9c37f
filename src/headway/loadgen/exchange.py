"""What is asked over HTTP: the bytes of a request, made before the load, and a mark by which its
own answer is known."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from headway.errors import ConfigError

# A piece of an answer's text in an event of OpenAI's forms; pieces without text are no tokens.
TOKEN = re.compile(rb'"(?:content|text|reasoning_content)": ?"(?!")')
RESPONSE_TOKEN = re.compile(rb'"type": ?"response\.(?:output|reasoning\w*)_text\.delta"')


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """One request's bytes, and what its answer alone must contain."""

    request: bytes
    mark: bytes = b""
    is_stream: bool = False  # its answer is a stream of tokens, each of which is timed
    token: re.Pattern[bytes] = TOKEN


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    host: str
    port: int
    is_tls: bool = False
    path: str = ""  # below which all routes lie, without a slash at its end
    is_grpc: bool = False

    @classmethod
    def parse(cls, url: str, *, may_be_grpc: bool = False) -> "Address":
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{url}: {error}") from error
        if may_be_grpc and parts.scheme in ("grpc", "grpcs"):
            if not parts.hostname or not port or parts.path.strip("/") or parts.query:
                raise ConfigError(f"{url!r} is not an address like grpc://127.0.0.1:8001")
            return cls(parts.hostname, port, parts.scheme == "grpcs", is_grpc=True)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ConfigError(f"{url!r} is not a URL like http://127.0.0.1:8000")
        if parts.query or parts.fragment:
            raise ConfigError(f"{url}: a URL without ? and # is expected")
        is_tls = parts.scheme == "https"
        path = parts.path.rstrip("/")
        return cls(parts.hostname, port or (443 if is_tls else 80), is_tls, path)

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        scheme = "grpc" if self.is_grpc else "http"
        return f"{scheme}{'s' if self.is_tls else ''}://{self.authority}{self.path}"


def post(
    address: Address,
    path: str,
    body: bytes,
    mark: bytes = b"",
    *,
    headers: Sequence[tuple[str, str]] = (),
    content_type: str = "application/json",
    is_stream: bool = False,
    token: re.Pattern[bytes] = TOKEN,
) -> AskedRequest:
    """A POST to `path`, which is added to the address's own."""
    usual = {"Host": address.authority, "Content-Type": content_type}
    lines = [
        f"POST {address.path}{path} HTTP/1.1",
        *(f"{name}: {value}" for name, value in with_usual(headers, usual)),
        f"Content-Length: {len(body)}",
    ]
    return AskedRequest(
        "\r\n".join([*lines, "", ""]).encode("latin-1") + body, mark, is_stream, token
    )


def is_in(headers: Sequence[tuple[str, str]], name: str) -> bool:
    return any(given.lower() == name.lower() for given, _ in headers)


def with_usual(
    headers: Sequence[tuple[str, str]], usual: Mapping[str, str]
) -> list[tuple[str, str]]:
    """And those of the usual ones that are not among them."""
    return [*((name, usual[name]) for name in usual if not is_in(headers, name)), *headers]
