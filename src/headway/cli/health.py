"""`headway health`: is a server ready? For probes of containers, which have no curl."""

import argparse
import ssl
import sys
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

DEFAULT_URL = "http://127.0.0.1:8000"


def add_parser(commands: "Commands") -> None:
    parser = commands.add_parser(
        "health",
        usage="%(prog)s [URL] [options]",
        help="is a server ready?",
        description="Asks a server whether it is ready. Ends with 0 where it is, with 1 where it "
        "is not or cannot be reached. Needs no key.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "url", nargs="?", default=DEFAULT_URL, metavar="URL", help=f"default: {DEFAULT_URL}"
    )
    parser.add_argument("--live", action="store_true", help="ask only whether it is alive")
    add_tls(parser)
    parser.set_defaults(run=run)


def add_tls(parser: argparse.ArgumentParser) -> None:
    """The flags of every command that asks a server."""
    parser.add_argument(
        "--timeout", type=float, default=5.0, metavar="S", help="seconds to wait; default: 5"
    )
    parser.add_argument(
        "--ca", metavar="FILE", help="PEM; the authority that signed the server's certificate"
    )
    parser.add_argument(
        "--cert", metavar="FILE", help="PEM; the client's, where the server wants one"
    )
    parser.add_argument("--key", metavar="FILE", help="PEM; its private key")
    parser.add_argument(
        "--insecure", action="store_true", help="accept any certificate (on this machine)"
    )


def run(arguments: argparse.Namespace) -> int:
    what = "live" if arguments.live else "ready"
    url = f"{arguments.url.rstrip('/')}/v2/health/{what}"
    try:
        context = tls_of(arguments)
        with urllib.request.urlopen(url, timeout=arguments.timeout, context=context):
            pass
    except urllib.error.HTTPError as error:
        print(f"{arguments.url} is not {what}: {error.code}", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, ConnectionRefusedError):
            reason = "no server listens there"
        print(f"{arguments.url} cannot be reached: {reason}", file=sys.stderr)
        return 1
    print(what)
    return 0


def tls_of(arguments: argparse.Namespace) -> ssl.SSLContext | None:
    if not arguments.url.startswith("https:"):
        return None
    context = ssl.create_default_context(cafile=arguments.ca)
    if arguments.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if arguments.cert:
        context.load_cert_chain(arguments.cert, arguments.key)
    return context
