"""`headway conformance`: does a server keep the Open Inference Protocol?"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from headway.cli.bench_flags import shape
from headway.cli.commands import Commands
from headway.cli.server_flags import add_server, key_of, read_file, server_of
from headway.errors import ConfigError
from headway.loadgen.asking import as_expected, only_model
from headway.loadgen.exchange import Address

if TYPE_CHECKING:
    import grpc

    from headway.conformance.checks import ReportLine
    from headway.conformance.subject import Subject

_SHAPE = "of an input, where the metadata leaves it open; may be repeated"


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "conformance",
        usage="%(prog)s [URL] [options]",
        help="does a server keep the Open Inference Protocol?",
        description="Asks any server that speaks the Open Inference Protocol (KServe v2: Triton, "
        "MLServer, Headway, …) for what the specification says, and names the clause of each line. "
        "Requests are made from the model's metadata; nothing is loaded or unloaded. Ends with 1 "
        "where a clause is broken. What a server does not claim to have is no failure.",
    )
    parser.add_argument("--model", default="", metavar="NAME", help="default: the only one there")
    parser.add_argument(
        "--grpc",
        default="",
        metavar="HOST:PORT",
        help="check gRPC, too: with TLS where URL is https:// (needs headway[grpc])",
    )
    parser.add_argument(
        "--shape", type=shape, action="append", default=[], metavar="INPUT:2,3", help=_SHAPE
    )
    parser.add_argument("--json", action="store_true", help="the lines, for programs")
    add_server(parser, right="as a bearer token")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from headway.conformance.checks import ClauseBroken, ClauseOutcome
    from headway.conformance.subject import Subject

    server = server_of(arguments)
    subject = Subject(server, arguments.model, dict(arguments.shape))
    lines: list[ReportLine] = []
    try:
        server.ask("GET", "/v2/health/live")  # without a server there is nothing to report
        subject.model = subject.model or _only_model(subject)
        _check_model(subject)
        for line in _lines(subject, arguments):
            lines.append(line)
            if not arguments.json:
                _say(line)
    except ClauseBroken as error:
        print(f"headway: {server.url}: {error}", file=sys.stderr)
        return 1
    counts = Counter(each.outcome for each in lines)
    if arguments.json:
        found = [_as_json(each) for each in lines]
        print(json.dumps({"url": arguments.url, "model": subject.model, "lines": found}, indent=2))
    else:
        print(", ".join(f"{counts[each]} {each.value}" for each in ClauseOutcome))
    return int(counts[ClauseOutcome.BROKEN] > 0)


def _lines(subject: "Subject", arguments: argparse.Namespace) -> "Iterator[ReportLine]":
    from headway.conformance import extensions, mistakes, rest
    from headway.conformance.checks import run_all

    with _channel(arguments) if arguments.grpc else nullcontext() as channel:
        yield from run_all([*rest.CHECKS, *mistakes.CHECKS, *extensions.CHECKS], subject)
        if channel is None:
            return
        from headway.conformance import grpc as over_grpc

        key = key_of(arguments)
        metadata = (("authorization", f"Bearer {key}"),) if key else ()
        asked = over_grpc.GrpcSubject(channel, subject, metadata)
        yield from run_all(over_grpc.CHECKS, asked)


def _channel(arguments: argparse.Namespace) -> "grpc.Channel":
    """With TLS where the URL has it. Raises ConfigError."""
    try:
        import grpc
    except ImportError:
        raise ConfigError("gRPC needs pip install 'headway[grpc]'", field="--grpc") from None
    address = Address.parse(f"grpc://{arguments.grpc}", may_be_grpc=True).authority
    if not Address.parse(arguments.url).is_tls:
        return grpc.insecure_channel(address)
    if arguments.insecure:
        raise ConfigError("gRPC accepts no certificate unseen: --ca", field="--insecure")
    files = [
        read_file(path, f"--{name}") if (path := getattr(arguments, name)) else None
        for name in ("ca", "key", "cert")
    ]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(*files))


def _only_model(subject: "Subject") -> str:
    answer = subject.ask("POST", "/v2/repository/index", b"{}")
    if answer.status in (401, 403):
        raise subject.server.refusal("/v2/repository/index", answer)
    listed = answer.json() if answer.status == 200 else []
    with as_expected(subject.server.url):
        names = [str(each["name"]) for each in listed]
    return only_model(subject.server.url, names)


def _check_model(subject: "Subject") -> None:
    """May this model be asked, and is it there?"""
    answer = subject.ask("GET", subject.path)
    if answer.status in (401, 403):
        raise subject.server.refusal(subject.path, answer)
    if answer.status == 404:
        said = f"{subject.server.url} has no model {subject.model!r}: {answer}"
        raise ConfigError(said, field="--model")


def _say(line: "ReportLine") -> None:
    print(f"{line.outcome.value:11}  {line.clause}: {line.what}", flush=True)
    if line.why:
        print(f"{'':13}{line.why}")


def _as_json(line: "ReportLine") -> dict[str, Any]:
    return {
        "clause": line.clause,
        "what": line.what,
        "outcome": line.outcome.name.lower(),
        "why": line.why,
    }
