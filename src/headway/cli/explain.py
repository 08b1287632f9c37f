"""`headway explain`: why a request was slow, or the slowest were, in words."""

import argparse
import json
import os
import sys
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.explain_trace import chrome_trace
from headway.cli.health import DEFAULT_URL, add_tls, tls_of
from headway.errors import ConfigError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_KEY = "HEADWAY_API_KEY"
_MOST_BATCHES = 4096  # in one answer of a server


def add_parser(commands: "Commands") -> None:
    parser = commands.add_parser(
        "explain",
        usage="%(prog)s [REQUEST-ID | --slowest N | --batch N | --trace FILE | --what-if SETTINGS] "
        "[options]",
        help="why was a request slow?",
        description="Asks a running server where the time of its last requests went: which batch "
        "each was in, why that left, what held it, and what would change it. The server keeps the "
        "last few thousand requests and batches. Takes a key with the right `admin`, or a server "
        "that was started with --admin-without-key.",
        allow_abbrev=False,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "request", nargs="?", metavar="REQUEST-ID", help="as in the answer's X-Request-Id"
    )
    what.add_argument(
        "--slowest", type=int, default=10, metavar="N", help="the N slowest requests; default: 10"
    )
    what.add_argument("--batch", type=int, metavar="N", help="the batch of this number")
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
    parser.add_argument(
        "--url", default=DEFAULT_URL, metavar="URL", help=f"the server; default: {DEFAULT_URL}"
    )
    parser.add_argument(
        "--api-key", metavar="KEY", help=f"a key with the right `admin`; default: ${_KEY}"
    )
    parser.add_argument("--json", action="store_true", help="for programs: the server's answer")
    add_tls(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.what_if is not None:
        return _say_what_if(arguments)
    found = ask(arguments, *_question(arguments))
    if found is None:
        return 1
    if arguments.trace is not None:
        return _write_trace(found, arguments.trace)
    if arguments.json:
        print(json.dumps(found, indent=2))
    elif arguments.batch is not None:
        return _say_batches(found["batches"], arguments.batch)
    else:
        _say_requests(found, is_one=arguments.request is not None)
    return 0


def _question(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The route and its query."""
    asked: dict[str, Any] = {"model": arguments.model}
    if arguments.trace is not None:
        return "/admin/explain", {**asked, "limit": _MOST_BATCHES}
    if arguments.batch is not None:
        return "/admin/explain", {**asked, "batch": arguments.batch}
    if arguments.request is not None:
        return "/admin/explain/requests", {**asked, "id": arguments.request}
    return "/admin/explain/requests", {**asked, "slowest": arguments.slowest}


def _say_what_if(arguments: argparse.Namespace) -> int:
    from headway.cli.explain_what_if import changes_of, what_if  # needs numpy

    changes = changes_of(arguments.what_if)
    asked = {"model": arguments.model, "limit": _MOST_BATCHES}
    found = ask(arguments, "/admin/explain", asked)
    if found is None:
        return 1
    print("\n".join(what_if(found, changes)))
    return 0


def ask(arguments: argparse.Namespace, path: str, asked: dict[str, Any]) -> Any:
    """The server's answer; None, and a line on stderr, where there is none."""
    url = f"{arguments.url.rstrip('/')}{path}?{urllib.parse.urlencode(asked)}"
    key = arguments.api_key or os.environ.get(_KEY)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(
            request, timeout=arguments.timeout, context=tls_of(arguments)
        ) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        print(f"headway: {_error_in(error.read()) or error}", file=sys.stderr)
    except ValueError as error:
        raise ConfigError(f"--url {arguments.url}: {error}") from None
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        print(f"headway: {arguments.url} cannot be reached: {reason}", file=sys.stderr)
    return None


def _error_in(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return ""
    return str(error["message"] if isinstance(error, dict) else error)


def _write_trace(found: Any, path: Path) -> int:
    try:
        path.write_text(json.dumps(chrome_trace(found)))
    except OSError as error:
        raise ConfigError(f"--trace {path}: {error.strerror}") from None
    count = len(found["batches"]) + len(found["answers"])
    print(f"{path}: {count} batches and answers; https://ui.perfetto.dev opens it")
    return 0


def _say_requests(found: Any, *, is_one: bool) -> None:
    requests = found["requests"]
    if not requests:
        print("no request has been answered yet")
        return
    causes = Counter(each["cause"] for each in requests)
    if not is_one:
        named = ", ".join(f"{count} {cause}" for cause, count in causes.most_common())
        print(f"the slowest {len(requests)} of the last {found['known']} requests: {named}\n")
    for each in requests:
        print("\n".join(each["text"]))
        print(f"  slower than {each['faster']} of {found['known']} requests\n")


def _say_batches(batches: Any, number: int) -> int:
    if not batches:
        print(f"headway: batch {number} is kept no longer, or has not ended", file=sys.stderr)
        return 1
    for batch in batches:
        print(f"{batch['model']}, version {batch['version']}: {batch['text']}")
        expected = "" if batch["predicted_ms"] is None else f", {batch['predicted_ms']} expected"
        padding = f"; {batch['padding']:.0%} was padding" if batch["padding"] else ""
        print(f"  it took {batch['ran_ms']} ms{expected}{padding}")
        if batch["lost"]:
            print(f"  its worker was lost: {batch['lost']}")
        for item in batch["items"]:
            size = f", size {item['size']}" if item["size"] else ""
            tenant = f", tenant {item['tenant']}" if item["tenant"] else ""
            print(
                f"  item {item['id']} of request {item['request'] or '(unknown)'}: queued "
                f"{item['queued_ms']} ms, lingered {item['lingered_ms']} ms{size}{tenant}"
            )
    return 0
