"""`headway record`: a server's traffic, as a trace for `simulate`, `bench` and `tune`."""

import argparse
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headway.cli import simulate_flags as flags
from headway.cli.commands import Commands
from headway.cli.server_flags import add_server, server_of
from headway.errors import ConfigError
from headway.lab.recording import MOST_REQUESTS, Recording
from headway.loadgen.asking import NoAnswer, RemoteServer, as_expected

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
simulate, bench and tune read the times, simulate also lengths and tenants: it takes every request
for one row of the class normal. Requests that were refused came to no batch, and are not in it.

Ctrl-C ends a recording and keeps it. It takes an API key with the right `admin`, or a server that
was started with --admin-without-key.
"""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "record",
        usage="%(prog)s [URL] --out FILE [options]",
        help="a server's traffic as a trace for simulate, bench and tune",
        description=_DESCRIPTION,
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FILE", help="a new file, as traffic.jsonl")
    add("--seconds", type=flags.positive, metavar="S", help="how long; default: until Ctrl-C")
    add("--model", default="", metavar="NAME", help="only this model's requests")
    add("--tenants", action="store_true", help="keep the names of tenants")
    add_server(parser, right="with the right `admin`")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    server, out = server_of(arguments), arguments.out
    recording = Recording(keeps_tenants=arguments.tenants)
    try:
        with out.open("x", encoding="utf-8") as file:
            try:
                code = _recorded(arguments, server, recording)
                file.writelines(f"{line}\n" for line in recording.lines())
            finally:
                if not len(recording):
                    out.unlink()
    except OSError as error:
        raise ConfigError(f"{out}: {error.strerror}", field="--out") from None
    if not len(recording):
        print("headway: no request came, and nothing is written", file=sys.stderr)
        return 1
    print(f"{len(recording)} requests in {out}")
    if recording.missed or recording.has_gap:
        missed = recording.missed or "some"
        print(f"headway: the server forgot {missed} batches before they were read", file=sys.stderr)
    if recording.is_full:
        print(f"headway: stopped after {MOST_REQUESTS:,} requests", file=sys.stderr)
    return code


def _recorded(arguments: argparse.Namespace, server: RemoteServer, recording: Recording) -> int:
    """The exit code. What has been recorded is kept where the server goes away."""
    try:
        with _stoppable():
            _record(arguments, server, recording)
    except KeyboardInterrupt:
        print(file=sys.stderr)
    except (NoAnswer, ConfigError) as error:
        if not len(recording):
            raise
        print(f"headway: {error}", file=sys.stderr)
        return 1
    return 0


@contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM keeps what is recorded, as Ctrl-C does; a script's background job ignores Ctrl-C."""
    stops = (signal.SIGINT, signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [signal.signal(each, signal.default_int_handler) for each in stops]
    try:
        yield
    finally:
        for each, handler in zip(stops, before, strict=True):
            signal.signal(each, handler)


def _record(arguments: argparse.Namespace, server: RemoteServer, recording: Recording) -> None:
    def look(**query: int) -> dict[str, Any]:
        return server.json("/admin/explain", has="batches", model=arguments.model, **query)

    page = look(limit=0)
    with as_expected(server.url):
        began, following = float(page["now"]), int(page["next"])
    end = None if arguments.seconds is None else time.monotonic() + arguments.seconds
    never = threading.Event()
    while not recording.is_full:
        left = _EVERY_S if end is None else min(_EVERY_S, end - time.monotonic())
        if left > 0:
            never.wait(left)  # ends with Ctrl-C
        try:
            page = look(since=following, limit=_BATCHES)
        except ConfigError as error:  # it has answered before: it drains, or its keys have changed
            raise NoAnswer(str(error)) from None
        with as_expected(server.url):
            following = int(page["next"])
            recording.add(page, since=began)
        if sys.stderr.isatty():
            print(f"\r\x1b[K{len(recording)} requests", end="", file=sys.stderr, flush=True)
        if end is not None and time.monotonic() >= end:
            return
