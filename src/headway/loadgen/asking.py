"""Ask a server a question over HTTP, and say by name why there is no answer."""

import http.client
import json
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlencode

from headway.errors import ConfigError, Unavailable
from headway.loadgen.exchange import Address


class NoAnswer(Unavailable):
    """No server, none that answers, or one that cannot answer now."""


class HttpAnswer(NamedTuple):
    status: int
    headers: Mapping[str, str]  # in lower case
    body: bytes

    @property
    def error(self) -> str:
        """What the server says is wrong; empty: it does not say, or not as a Headway does."""
        try:
            error = json.loads(self.body)["error"]
        except (ValueError, KeyError, TypeError):
            return ""
        return str(error["message"] if isinstance(error, dict) and "message" in error else error)


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """Where a server is, and how it is asked."""

    address: Address
    headers: Mapping[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    timeout_s: float = 5.0

    @property
    def url(self) -> str:
        return self.address.url

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpAnswer:
        """Raises NoAnswer."""
        address = self.address
        kind: type[http.client.HTTPConnection] = http.client.HTTPConnection
        more: dict[str, Any] = {"timeout": self.timeout_s}
        if address.is_tls:
            kind, more["context"] = http.client.HTTPSConnection, self.tls
        try:
            connection = kind(address.host, address.port, **more)
            try:
                fields = {**self.headers, **(headers or {})}
                connection.request(method, address.path + path, body, fields)
                answer = connection.getresponse()
                found = {name.lower(): value for name, value in answer.getheaders()}
                return HttpAnswer(answer.status, found, answer.read())
            finally:
                connection.close()
        except (http.client.InvalidURL, UnicodeError) as error:
            raise ConfigError(f"{self.url} is no URL: {error}") from None
        except (OSError, http.client.HTTPException) as error:
            raise NoAnswer(f"{self.url}{_reason(error, self.timeout_s)}") from error

    def json(self, path: str, /, *, has: str, **query: object) -> dict[str, Any]:
        """The object with the field `has` that a Headway answers. Raises NoAnswer; ConfigError,
        where it is not one, wants a key, or was asked for what it does not know."""
        answer = self.ask("GET", f"{path}?{urlencode(query)}" if query else path)
        if answer.status != 200:
            raise self.refusal(path, answer)
        try:
            found = json.loads(answer.body)
        except ValueError:
            found = None
        if not isinstance(found, dict) or has not in found:
            raise ConfigError(f"{self.url} is no Headway: its {path} is something else")
        return found

    def refusal(self, path: str, answer: HttpAnswer) -> Exception:
        status, said = answer.status, answer.error
        if status in (401, 403):
            said = said or f"it wants a key ({status})"
            return ConfigError(f"{self.url}: {said}", field="--api-key")
        if status == 400 and said:
            return ConfigError(said)
        if status == 404 and said and not said.startswith("Not Found"):
            return NoAnswer(said)
        if status in (404, 405):
            return ConfigError(f"{self.url} has no {path}: an older Headway, or another server")
        if location := answer.headers.get("location"):
            return ConfigError(f"{self.url} sends its callers to {location}")
        return NoAnswer(f"{self.url} answers {path} with {status}{f': {said}' if said else ''}")


def only_model(url: str, listed: Iterable[str]) -> str:
    """Raises ConfigError where there are several, or none."""
    names = sorted(set(listed))
    if len(names) == 1:
        return names[0]
    said = f"it has {', '.join(names)}" if names else "it does not list its models"
    raise ConfigError(f"{url}: which model? {said}", field="--model")


def _reason(error: Exception, timeout_s: float) -> str:
    """The end of a sentence that begins with the URL."""
    if isinstance(error, ConnectionRefusedError):
        return ": no server listens there"
    if isinstance(error, TimeoutError):
        return f" has not answered in {timeout_s:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f": its certificate is not trusted (--ca): {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f": no TLS with it: {error.reason or error}"
    if isinstance(error, ConnectionResetError):
        return " closed the connection without an answer; if it speaks TLS, its URL is https://"
    if isinstance(error, http.client.HTTPException):
        return f" does not speak HTTP: {type(error).__name__}"
    return f" cannot be reached: {getattr(error, 'strerror', None) or error}"
