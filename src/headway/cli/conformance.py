"""`headway conformance`: does a server keep the Open Inference Protocol?"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headway.cli.health import DEFAULT_URL, add_tls, tls_of
from headway.errors import ConfigError

if TYPE_CHECKING:
    from headway.conformance.checks import Line
    from headway.conformance.subject import Subject

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_KEY = "HEADWAY_API_KEY"


def add_parser(commands: "Commands") -> None:
    parser = commands.add_parser(
        "conformance",
        usage="%(prog)s [URL] [options]",
        help="does a server keep the Open Inference Protocol?",
        description="Asks any server that speaks the Open Inference Protocol (KServe v2: Triton, "
        "MLServer, Headway, …) for what the specification says, and names the clause of each line. "
        "Requests are made from the model's metadata; nothing is loaded or unloaded. Ends with 1 "
        "where a clause is broken. What a server does not claim to have is no failure.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "url", nargs="?", default=DEFAULT_URL, metavar="URL", help=f"default: {DEFAULT_URL}"
    )
    parser.add_argument("--model", default="", metavar="NAME", help="default: the only one there")
    parser.add_argument(
        "--grpc", default="", metavar="HOST:PORT", help="check gRPC, too (needs headway[grpc])"
    )
    parser.add_argument(
        "--shape", action="append", default=[], metavar="INPUT:2,3", help="of an input without one"
    )
    parser.add_argument("--api-key", metavar="KEY", help=f"a bearer token; default: ${_KEY}")
    parser.add_argument("--json", action="store_true", help="the lines, for programs")
    add_tls(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from headway.conformance.checks import Broken, Outcome
    from headway.conformance.subject import Subject

    key = arguments.api_key or os.environ.get(_KEY)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    tls = tls_of(arguments)
    shapes = dict(_shape(each) for each in arguments.shape)
    subject = Subject(arguments.url, arguments.model, headers, tls, arguments.timeout, shapes)
    lines: list[Line] = []
    try:
        subject.ask("GET", "/v2/health/live")  # without a server there is nothing to report
        subject.model = subject.model or _only_model(subject)
        for line in _lines(subject, arguments.grpc, key):
            lines.append(line)
            if not arguments.json:
                _say(line)
    except Broken as error:
        print(f"headway: {arguments.url}: {error}", file=sys.stderr)
        return 1
    counts = Counter(each.outcome for each in lines)
    if arguments.json:
        found = [_as_json(each) for each in lines]
        print(json.dumps({"url": arguments.url, "model": subject.model, "lines": found}, indent=2))
    else:
        print(", ".join(f"{counts[each]} {each.value}" for each in Outcome))
    return int(counts[Outcome.BROKEN] > 0)


def _lines(subject: "Subject", grpc_address: str, key: str | None) -> "Iterator[Line]":
    from headway.conformance import extensions, mistakes, rest
    from headway.conformance.checks import run_all

    yield from run_all([*rest.CHECKS, *mistakes.CHECKS, *extensions.CHECKS], subject)
    if not grpc_address:
        return
    try:
        import grpc

        from headway.conformance import grpc as over_grpc
    except ImportError:
        raise ConfigError("gRPC needs pip install 'headway[grpc]'", field="--grpc") from None
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    with grpc.insecure_channel(grpc_address) as channel:
        asked = over_grpc.GrpcSubject(channel, subject, metadata)
        yield from run_all(over_grpc.CHECKS, asked)


def _only_model(subject: "Subject") -> str:
    answer = subject.ask("POST", "/v2/repository/index", b"{}")
    names = sorted({each["name"] for each in answer.json()}) if answer.status == 200 else []
    if len(names) != 1:
        told = f"it has {', '.join(names)}" if names else "the server lists no models"
        raise ConfigError(f"which model is to be asked? {told}", field="--model")
    return str(names[0])


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, axes = text.rpartition(":")
    try:
        return name, tuple(int(each) for each in axes.split(","))
    except ValueError:
        raise ConfigError(f"INPUT:2,3 is expected, not {text!r}", field="--shape") from None


def _say(line: "Line") -> None:
    print(f"{line.outcome.value:11}  {line.clause}: {line.what}", flush=True)
    if line.why:
        print(f"{'':13}{line.why}")


def _as_json(line: "Line") -> dict[str, Any]:
    return {
        "clause": line.clause,
        "what": line.what,
        "outcome": line.outcome.name.lower(),
        "why": line.why,
    }
