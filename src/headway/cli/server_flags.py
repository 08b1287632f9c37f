"""The flags of every command that asks a running server, and the server that they name."""

import argparse
import math
import os
import ssl
from pathlib import Path

from headway.errors import ConfigError
from headway.loadgen.asking import RemoteServer
from headway.loadgen.exchange import Address

DEFAULT_URL = "http://127.0.0.1:8000"
_KEY = "HEADWAY_API_KEY"


def add_server(
    parser: argparse.ArgumentParser, *, has_url: bool = True, right: str = "", timeout_s: float = 5
) -> None:
    """`right`: what its key must be for; empty: it takes none."""
    add = parser.add_argument
    if has_url:
        add("url", nargs="?", default=DEFAULT_URL, metavar="URL", help=f"default: {DEFAULT_URL}")
    if right:
        add("--api-key", metavar="KEY", help=f"an API key {right}; default: ${_KEY}")
    said = f"seconds to wait for an answer; default: {timeout_s:g}"
    add("--timeout", type=_seconds, default=timeout_s, metavar="S", help=said)
    add("--ca", metavar="FILE", help="PEM: the authority that signed the server's certificate")
    add("--cert", metavar="FILE", help="PEM: your certificate, where the server wants one")
    add("--key", metavar="FILE", help="PEM: the private key of --cert")
    add("--insecure", action="store_true", help="accept any certificate of the server")


def server_of(arguments: argparse.Namespace) -> RemoteServer:
    """Raises ConfigError, which names the flag."""
    address = Address.parse(arguments.url)
    key = key_of(arguments)
    headers = (("Authorization", f"Bearer {key}"),) if key else ()
    check_tls(arguments, address)
    tls = tls_of(arguments) if address.is_tls else None
    return RemoteServer(address, headers, tls, arguments.timeout)


def key_of(arguments: argparse.Namespace) -> str:
    key: str = ""
    if hasattr(arguments, "api_key"):
        key = arguments.api_key or os.environ.get(_KEY, "")
    if not (key.isascii() and key.isprintable()):
        raise ConfigError("a key is printable ASCII", field=f"--api-key or ${_KEY}")
    return key


def check_tls(arguments: argparse.Namespace, *addresses: Address) -> None:
    given = [name for name in ("ca", "cert", "key", "insecure") if getattr(arguments, name)]
    if arguments.key and not arguments.cert:
        said = "is the private key of --cert, which is missing; an API key is --api-key"
        raise ConfigError(said, field="--key")
    if given and not any(each.is_tls for each in addresses):
        raise ConfigError(f"is for https://, not for {addresses[0].url}", field=f"--{given[0]}")
    if arguments.insecure and arguments.ca:
        raise ConfigError("--insecure accepts any certificate, --ca only some: one of them")


def tls_of(arguments: argparse.Namespace) -> ssl.SSLContext:
    for name in ("ca", "cert", "key"):
        if path := getattr(arguments, name):
            read_file(path, f"--{name}")
    try:
        context = ssl.create_default_context(cafile=arguments.ca)
    except ssl.SSLError as error:
        raise ConfigError(f"{arguments.ca}: no certificate in PEM: {error}", field="--ca") from None
    if arguments.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if arguments.cert:
        try:
            context.load_cert_chain(arguments.cert, arguments.key)
        except ssl.SSLError as error:
            said = f"{arguments.cert}: no certificate with its private key in PEM: {error}"
            raise ConfigError(said, field="--cert") from None
    return context


def read_file(path: str, flag: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", field=flag) from None


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value
