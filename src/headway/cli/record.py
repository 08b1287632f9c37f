"""`headway record`: a server's traffic, as a trace for `simulate`, `bench` and `tune`."""

import argparse
import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli import simulate_flags as flags
from headway.cli.health import DEFAULT_URL
from headway.errors import ConfigError
from headway.lab.recording import MOST_REQUESTS, Recording
from headway.loadgen.exchange import Address
from headway.loadgen.target import Probe, Unreachable

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_EVERY_S = 0.5
_BATCHES = 4096  # of one look: as many as a server keeps
_DESCRIPTION = """\
Record a server's traffic: when requests came, how large they were, their priority and tenant.
No content is recorded, and tenants are called t1, t2, … unless --tenants says otherwise.

  headway record --seconds 600 --out monday.jsonl
  headway simulate --arrivals trace:monday.jsonl --lengths trace:monday.jsonl --profile model.json
  headway bench --arrivals trace:monday.jsonl --rate 300
  headway tune app:Model --arrivals trace:monday.jsonl --rate 300

The file is in the form of Mooncake's traces, which other tools read: a line of JSON for each
request, with timestamp (ms), input_length and output_length; ours adds rows, priority and tenant.
Requests that were refused never came to a batch, and are not in it. Ctrl-C ends a recording and
keeps it. The server's admin key is needed where it has keys.
"""


def add_parser(commands: "Commands") -> None:
    parser = commands.add_parser(
        "record",
        usage="%(prog)s [URL] --out FILE [options]",
        help="a server's traffic as a trace for simulate, bench and tune",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("url", nargs="?", default=DEFAULT_URL, metavar="URL", help=f"default: {DEFAULT_URL}")
    add("--out", type=Path, required=True, metavar="FILE", help="a new file, as traffic.jsonl")
    add("--seconds", type=flags.positive, metavar="S", help="how long; default: until Ctrl-C")
    add("--model", default="", metavar="NAME", help="only this model's requests")
    add("--tenants", action="store_true", help="keep the names of tenants")
    add("--key", metavar="KEY", help="an API key with the right to see /admin")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.out.exists():
        raise ConfigError(f"{arguments.out} exists already", field="--out")
    if not arguments.out.parent.is_dir():
        raise ConfigError(f"the folder {arguments.out.parent} does not exist", field="--out")
    headers = (("Authorization", f"Bearer {arguments.key}"),) if arguments.key else ()
    probe = Probe(Address.parse(arguments.url), headers)
    recording = Recording(model=arguments.model, keeps_tenants=arguments.tenants)
    code = 0
    try:
        _record(arguments, probe, recording)
    except KeyboardInterrupt:
        print(file=sys.stderr)
    except Unreachable as error:  # what was recorded until then is kept
        print(f"headway: {error}", file=sys.stderr)
        code = 1
    if not len(recording) and code:
        return code
    arguments.out.write_text("".join(f"{line}\n" for line in recording.lines()), encoding="utf-8")
    print(f"{len(recording)} requests in {arguments.out}")
    if recording.missed or recording.has_gap:
        missed = recording.missed or "some"
        print(
            f"headway: the server forgot {missed} batches before they were read",
            file=sys.stderr,
        )
    if recording.is_full:
        print(f"headway: stopped after {MOST_REQUESTS:,} requests", file=sys.stderr)
    return code


def _record(arguments: argparse.Namespace, probe: Probe, recording: Recording) -> None:
    page = _page(probe, since=None)
    began, following = page["now"], page["next"]
    end = None if arguments.seconds is None else time.monotonic() + arguments.seconds
    never = threading.Event()
    while not recording.is_full:
        left = _EVERY_S if end is None else min(_EVERY_S, end - time.monotonic())
        if left > 0:
            never.wait(left)  # ends with Ctrl-C
        try:
            page = _page(probe, since=following)
        except ConfigError as error:  # it has answered before: it drains, or its keys have changed
            raise Unreachable(str(error)) from None
        following = page["next"]
        recording.add(page, since=began)
        if sys.stderr.isatty():
            print(f"\r\x1b[K{len(recording)} requests", end="", file=sys.stderr, flush=True)
        if end is not None and time.monotonic() >= end:
            return


def _page(probe: Probe, *, since: int | None) -> dict:  # type: ignore[type-arg]
    query = f"?since={since}&limit={_BATCHES}" if since is not None else "?limit=0"
    status, body = probe.ask("GET", f"/admin/explain{query}")
    if status in (401, 403):
        raise ConfigError(f"{probe.address.url}: /admin wants a key with its right", field="--key")
    if status != 200:
        raise ConfigError(f"{probe.address.url} is no Headway that keeps its batches ({status})")
    try:
        found: dict = json.loads(body)  # type: ignore[type-arg]
    except ValueError:
        raise ConfigError(f"{probe.address.url} is no Headway: its answer is not JSON") from None
    return found
