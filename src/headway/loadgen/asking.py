"""Ask a server a question over HTTP, and say by name why there is no answer.

It may be any program: an answer has one deadline and a limit in bytes, its form is not trusted, and
no redirect is followed, as the headers hold a key.
"""

import contextlib
import http.client
import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlencode

from headway.errors import ConfigError, Unavailable
from headway.loadgen.exchange import Address, is_in

_MOST_BYTES = 2**28  # of an answer
_CHUNK = 2**20
_CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


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
        except (ValueError, LookupError, TypeError, RecursionError):
            return ""
        return str(error["message"] if isinstance(error, dict) and "message" in error else error)


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """Where a server is, and how it is asked."""

    address: Address
    headers: tuple[tuple[str, str], ...] = ()
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
        headers: Sequence[tuple[str, str]] = (),
    ) -> HttpAnswer:
        """Raises NoAnswer."""
        address = self.address
        own = (each for each in self.headers if not is_in(headers, each[0]))
        lines = [*own, *headers]
        if body is not None:
            lines.append(("Content-Length", str(len(body))))

        def send() -> None:
            connection.putrequest(method, address.path + path, skip_host=is_in(lines, "Host"))
            for line in lines:
                connection.putheader(*line)
            connection.endheaders(body)

        kind: type[http.client.HTTPConnection] = http.client.HTTPConnection
        more: dict[str, Any] = {"timeout": self.timeout_s}
        if address.is_tls:
            kind, more["context"] = http.client.HTTPSConnection, self.tls
        try:
            connection = kind(address.host, address.port, **more)
            try:
                return _answer_of(connection, send)
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
        except (ValueError, RecursionError):
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


def _answer_of(connection: http.client.HTTPConnection, send: Callable[[], None]) -> HttpAnswer:
    """The whole answer to what is sent, within the connection's timeout. Raises OSError and
    HTTPException."""
    connection.connect()
    with _ended_after(connection.timeout, connection.sock) as is_late:
        try:
            send()
            answer = connection.getresponse()
            found = bytearray()
            while part := answer.read(_CHUNK):
                found += part
                if len(found) > _MOST_BYTES:
                    raise OSError(f"its answer has more than {_MOST_BYTES} bytes")
            if answer.length:  # less came than was announced
                raise http.client.IncompleteRead(b"", answer.length)
        finally:
            if is_late.is_set():
                raise TimeoutError
    fields = {name.lower(): value for name, value in answer.getheaders()}
    return HttpAnswer(answer.status, fields, bytes(found))


@contextlib.contextmanager
def _ended_after(seconds: float | None, connected: socket.socket) -> Iterator[threading.Event]:
    """Ends what waits for this socket, also between two bytes of many; the socket's own timeout is
    for each of them."""
    assert seconds is not None
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        with contextlib.suppress(OSError):
            socket.socket.shutdown(connected, socket.SHUT_RDWR)  # not TLS's own: it is being read

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield is_late
    finally:
        timer.cancel()


@contextlib.contextmanager
def as_expected(url: str) -> Iterator[None]:
    """Reads what a server has answered. Raises ConfigError where that has another form."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        told = f"{type(error).__name__}: {error!s:.200}"
        raise ConfigError(f"{url} answers in another form than expected: {told}") from error


def printable(text: str) -> str:
    """What a server says is no command to a terminal."""
    return _CONTROLS.sub("?", text)


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
