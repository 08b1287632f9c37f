"""`headway explain`: why a request was slow, or the slowest were, in words."""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from headway.cli.commands import Commands
from headway.cli.explain_trace import chrome_trace
from headway.cli.server_flags import DEFAULT_URL, add_server, server_of
from headway.errors import ConfigError
from headway.lab.columns import aligned
from headway.loadgen.asking import NoAnswer, RemoteServer, as_expected, printable

_BATCHES = "/admin/explain"
_MOST_BATCHES = 4096  # in one answer of a server


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "explain",
        usage="%(prog)s [URL] [REQUEST-ID | --slowest N | --batch N | --trace FILE | "
        "--what-if SETTINGS] [options]",
        help="why was a request slow?",
        description="Asks a running server where the time of its last requests went: which batch "
        "each was in, why that left, what held it, and what would change it. The server keeps the "
        "last few thousand requests and batches. Takes a key with the right `admin`, or a server "
        "that was started with --admin-without-key.",
    )
    said = f"as in the answer's X-Request-Id; before it the server's URL, default: {DEFAULT_URL}"
    parser.add_argument("asked", nargs="*", metavar="REQUEST-ID", help=said)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--slowest", type=_number, metavar="N", help="the N slowest; default: 10")
    what.add_argument("--batch", type=_number, metavar="N", help="the batch of this number")
    what.add_argument(
        "--trace", type=Path, metavar="FILE", help="write the last batches for Perfetto"
    )
    what.add_argument(
        "--what-if",
        metavar="SETTINGS",
        help="replay the last batches through the simulator with other settings, as "
        "max_batch_size=16,max_wait_ms=5",
    )
    parser.add_argument("--model", default="", metavar="NAME", help="of this model only")
    parser.add_argument("--json", action="store_true", help="for programs: the server's answer")
    # A server simulates for 20 s at most.
    add_server(parser, has_url=False, right="with the right `admin`", timeout_s=30.0)
    parser.set_defaults(run=run)


def _number(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    _read_asked(arguments)
    server = server_of(arguments)
    with as_expected(server.url):
        return _explain(arguments, server)


def _read_asked(arguments: argparse.Namespace) -> None:
    """A URL and a request's id, either of them, or none."""
    asked = list(arguments.asked)
    arguments.url = DEFAULT_URL
    if asked and (len(asked) > 1 or "://" in asked[0]):
        arguments.url = asked.pop(0)
    arguments.request = asked.pop(0) if asked else None
    if asked or "://" in (arguments.request or ""):
        raise ConfigError("one server and one request: headway explain URL REQUEST-ID")
    chosen = (arguments.slowest, arguments.batch, arguments.trace, arguments.what_if)
    if arguments.request is not None and chosen != (None,) * 4:
        said = "a request is explained alone: without --slowest, --batch, --trace and --what-if"
        raise ConfigError(said, field=arguments.request)


def _explain(arguments: argparse.Namespace, server: RemoteServer) -> int:
    if arguments.what_if is not None:
        return _say_what_if(arguments, server)
    if arguments.trace is not None:
        return _write_trace(arguments, server)
    if arguments.batch is not None:
        return _say_batches(arguments, server)
    asked = {"slowest": arguments.slowest or 10}
    if arguments.request is not None:
        asked = {"id": arguments.request}
    found = server.json(f"{_BATCHES}/requests", has="requests", model=arguments.model, **asked)
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        _say_requests(found, arguments)
    return 0


def _say(text: str) -> None:
    print(printable(text))


def _say_what_if(arguments: argparse.Namespace, server: RemoteServer) -> int:
    asked = {"model": arguments.model, **_changes_of(arguments.what_if)}
    found = server.json("/admin/what-if", has="changed", **asked)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return 0
    _say(
        f"{found['model']}, version {found['version']}: {found['items']} items in "
        f"{found['batches']} batches, {found['seconds']:.1f} s"
    )
    named = [("as it was", "measured"), ("simulated as it was", "simulated")]
    rows = [_row(*each, found) for each in (*named, (arguments.what_if, "changed"))]
    head = ("", "p50 ms", "p99 ms", "items/s", "rows/batch", "refused")
    _say("\n".join([*aligned([head, *rows]), *found["hints"]]))
    return 0


def _row(name: str, part: str, found: dict[str, Any]) -> list[str]:
    told = [found[part][each] for each in ("p50_ms", "p99_ms", "items_per_s", "mean_rows")]
    figures = ["-" if each is None else f"{each:.4g}" for each in told]
    return [name, *figures, str(found[part]["refused"])]


def _changes_of(text: str) -> dict[str, str]:
    """`max_batch_size=16,policy=window`; the server knows which can be simulated."""
    changes: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (each.strip() for each in part.partition("="))
        if not equals or name in ("", "model", "version", *changes):
            raise ConfigError(f"SETTING=VALUE,… is expected, not {part!r}", field="--what-if")
        changes[name] = value
    return changes


def _write_trace(arguments: argparse.Namespace, server: RemoteServer) -> int:
    path: Path = arguments.trace
    if arguments.json:
        raise ConfigError(f"{path} is JSON already: without --json", field="--trace")
    found = server.json(_BATCHES, has="batches", model=arguments.model, limit=_MOST_BATCHES)
    count = len(found["batches"]) + len(found["answers"])
    if not count:
        whose = f" of {arguments.model!r}" if arguments.model else ""
        raise NoAnswer(f"{server.url} has kept no batch{whose}, and nothing is written")
    try:
        path.write_text(json.dumps(chrome_trace(found)))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", field="--trace") from None
    older = f"; {found['left_out']} older ones are left out" if found["left_out"] else ""
    _say(f"{path}: {count} batches and answers{older}; https://ui.perfetto.dev opens it")
    return 0


def _say_requests(found: Any, arguments: argparse.Namespace) -> None:
    requests = found["requests"]
    if not requests:
        whose = f" of {arguments.model!r}" if arguments.model else ""
        _say(f"no request{whose} has been answered yet")
        return
    causes = Counter(each["cause"] for each in requests)
    if arguments.request is None:
        named = ", ".join(f"{count} {cause}" for cause, count in causes.most_common())
        _say(f"the slowest {len(requests)} of the last {found['known']} requests: {named}\n")
    for each in requests:
        _say("\n".join(each["text"]))
        _say(f"  slower than {each['faster']} of {found['known']} requests\n")


def _say_batches(arguments: argparse.Namespace, server: RemoteServer) -> int:
    number = arguments.batch
    found = server.json(_BATCHES, has="batches", model=arguments.model, batch=number)
    if not found["batches"]:
        print(f"headway: batch {number} is kept no longer, or has not ended", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(found, indent=2))
        return 0
    for batch in found["batches"]:
        _say(f"{batch['model']}, version {batch['version']}: {batch['text']}")
        expected = "" if batch["predicted_ms"] is None else f", {batch['predicted_ms']} expected"
        padding = f"; {batch['padding']:.0%} was padding" if batch["padding"] else ""
        _say(f"  it took {batch['ran_ms']} ms{expected}{padding}")
        if batch["lost"]:
            _say(f"  its worker was lost: {batch['lost']}")
        for item in batch["items"]:
            size = f", size {item['size']}" if item["size"] else ""
            tenant = f", tenant {item['tenant']}" if item["tenant"] else ""
            _say(
                f"  item {item['id']} of request {item['request'] or '(unknown)'}: queued "
                f"{item['queued_ms']} ms, lingered {item['lingered_ms']} ms{size}{tenant}"
            )
    return 0
