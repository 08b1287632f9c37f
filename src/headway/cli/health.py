"""`headway health`: is a server ready? For probes of containers, which have no curl."""

import argparse

from headway.cli.commands import Commands
from headway.cli.server_flags import add_server, server_of
from headway.loadgen.asking import NoAnswer


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "health",
        usage="%(prog)s [URL] [options]",
        help="is a server ready?",
        description="Asks a server whether it is ready. Ends with 0 where it is, with 1 where it "
        "is not or cannot be reached, with 2 where a flag is wrong. Needs no API key.",
    )
    add_server(parser)
    parser.add_argument("--live", action="store_true", help="ask only whether it is alive")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    what = "live" if arguments.live else "ready"
    server = server_of(arguments)
    answer = server.ask("GET", f"/v2/health/{what}")
    if answer.status != 200:
        raise NoAnswer(f"{server.url} is not {what}: {answer.status} {answer.error}".rstrip())
    if "html" in answer.headers.get("content-type", ""):
        raise NoAnswer(f"{server.url} is no server of models: it answers with a page")
    print(what)
    return 0
