"""`headway bench`: how much load a server carries, and how long its answers take."""

import argparse
import json
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli import bench_flags as read
from headway.cli import simulate_flags as flags
from headway.cli.health import DEFAULT_URL
from headway.errors import ConfigError
from headway.lab import workload
from headway.loadgen.connection import Refused, opener
from headway.loadgen.driver import MAX_IN_FLIGHT, Driver, Tick
from headway.loadgen.exchange import Address
from headway.loadgen.report import Point, table, to_json
from headway.loadgen.sweep import ArrivalLaw, Bench, Timing, swept
from headway.loadgen.target import Probe, Target, Unreachable, Wanted, find_target, read_bodies

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

NOT_VALID = 3
_USUAL_CONNECTIONS = (1, 8, 64)
_MANY_LENGTHS = 4096

_DESCRIPTION = """\
Measure a server under load: any that speaks KServe v2 or takes JSON.

  headway bench                                  the local server, in closed loops
  headway bench URL --model minilm --rate 200    an open loop: 200 requests/s, independent
  headway bench URL --rate 50:400:50             a sweep; it stops at what the server can do
  headway bench URL --concurrency 1,8,64         closed loops: each connection waits for its answer
  headway bench URL --arrivals trace:azure.csv --rate 200      recorded times, stretched to 200/s
  headway bench http://host/my/route --data '{"text": "hello"}' --rate 50      any JSON route

The requests are made from the model's metadata, or taken from --data or --body. Latency counts
from the moment a request was due to leave, so a server that stalls cannot hide its queue.

Every run says whether it can be believed: were as many answered as were due, did no more and more
wait, and had this client room. If not, it says why, and exits with 3. Errors are counted by kind;
a failed request has no latency.
"""
_EXIT = """\
exit codes: 0 measured; 1 the server cannot be reached, or refuses the first request; 2 a flag is
wrong; 3 not a valid measurement (of a sweep: no point is valid, or the client had no room)
"""

_HELP = {
    "--model": "which model; default: the only one there",
    "--rate": "requests due in a second: a number, several (50,100) or a sweep (50:400:50)",
    "--arrivals": "the law of their times, as for headway simulate, without a rate: poisson "
    "(default), constant, gamma, mmpp, …, or trace:FILE",
    "--concurrency": "closed loops of so many connections, e.g. 1,8,64",
    "--seconds": "how long each point is measured; default 10",
    "--warm-up": "seconds of the same load before that; default 1",
    "--rows": "rows of each request; default 1",
    "--shape": "the shape of an input, where the metadata leaves it open; may be repeated",
    "--lengths": "of axes without a length, and of texts in words: N, lognormal:MEDIAN,SIGMA[,CLIP]"
    " or trace:FILE",
    "--data": "the JSON to send, as it is",
    "--body": "a file of JSON lines, sent in turn",
    "--json-tensors": "tensors as JSON even where the server takes bytes",
    "--header": "a header of every request; may be repeated",
    "--key": "the API key",
    "--slo-ms": "also tell the share that was answered within this time",
    "--timeout": "seconds after which a request has failed; default 30",
    "--max-in-flight": f"most requests in flight; others wait, which counts; {MAX_IN_FLIGHT}",
    "--seed": "of all random numbers; default 0",
    "--ca": "PEM; the authority that signed the server's certificate",
    "--insecure": "accept any certificate (on this machine)",
    "--json": "print the results as a JSON list",
}


def add_parser(commands: "Commands") -> None:
    parser = commands.add_parser(
        "bench",
        usage="%(prog)s [URL] [options]",
        help="measure a server under load",
        description=_DESCRIPTION,
        epilog=_EXIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "url", nargs="?", default=DEFAULT_URL, metavar="URL", help=f"default: {DEFAULT_URL}"
    )

    def add(flag: str, **options: Any) -> None:
        parser.add_argument(flag, help=_HELP[flag], **options)

    add("--model", default="", metavar="NAME")
    add("--rate", type=read.rates, default=(), metavar="R|A:B:STEP")
    add("--arrivals", type=flags.arrivals, metavar="LAW")
    add("--concurrency", type=read.counts, default=(), metavar="N,…")
    add("--seconds", type=flags.positive, default=10.0, metavar="S")
    add("--warm-up", type=flags.not_negative, default=1.0, metavar="S")
    add("--rows", type=flags.count(65_536), default=1, metavar="N")
    add("--shape", type=read.shape, action="append", default=[], metavar="INPUT:N,N")
    add("--lengths", type=flags.lengths, metavar="SPEC")
    add("--data", metavar="JSON")
    add("--body", type=Path, metavar="FILE")
    add("--json-tensors", action="store_true")
    add("--header", type=read.header, action="append", default=[], metavar="NAME:VALUE")
    add("--key", metavar="KEY")
    add("--slo-ms", type=flags.positive, metavar="S")
    add("--timeout", type=flags.positive, default=30.0, metavar="S")
    add("--max-in-flight", type=flags.count(65_536), default=MAX_IN_FLIGHT, metavar="N")
    add("--seed", type=flags.count(2**63, least=0), default=0, metavar="K")
    add("--ca", metavar="FILE")
    add("--insecure", action="store_true")
    add("--json", action="store_true")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    law = _law(arguments)
    try:
        target = find_target(_probe(arguments), _wanted(arguments))
        points = list(_points(arguments, target, law))
    except (Unreachable, Refused) as error:
        print(f"headway: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps([to_json(point) for point in points], indent=2, allow_nan=False))
    else:
        what = f"{target.model} on " if target.model else ""
        print(
            f"{what}{arguments.url} ({target.server}, {target.api}), {arguments.seconds:g} s after "
            f"{arguments.warm_up:g} s of warm-up, seed {arguments.seed}\n"
        )
        print(table(points, _slo_s(arguments)))
    return exit_code(points)


def exit_code(points: list[Point]) -> int:
    """Of a sweep, the last point is meant to be too much; only the client may not be."""
    wrong = [point for point in points if not point.summary.is_valid]
    if len(points) > 1:
        wrong = [point for point in wrong if not point.summary.is_saturated]
    is_any_valid = any(point.summary.is_valid for point in points)
    return NOT_VALID if wrong or not is_any_valid else 0


def _points(arguments: argparse.Namespace, target: Target, law: ArrivalLaw) -> Iterator[Point]:
    with _progress(arguments) as progress:
        connect = opener(target.address, _tls(arguments))
        timing = Timing(arguments.seconds, arguments.warm_up, arguments.timeout)
        with Driver(
            connect,
            target.exchanges,
            timeout_s=arguments.timeout,
            max_in_flight=arguments.max_in_flight,
            on_tick=progress.tick,
        ) as driver:
            driver.try_once()
            bench = Bench(
                driver, law, timing, arguments.seed, _slo_s(arguments), target.address.url
            )

            def at_rate(rate: float) -> Point:
                progress.label = f"{law.kind} {rate:g}/s"
                return bench.at_rate(rate)

            yield from swept(arguments.rate, at_rate)
            if arguments.rate:
                return
            for connections in arguments.concurrency or _USUAL_CONNECTIONS:
                progress.label = f"{connections} in a closed loop"
                yield bench.with_connections(connections)


# ---- flags


def _check(arguments: argparse.Namespace) -> None:
    if arguments.rate and arguments.concurrency:
        raise ConfigError("--rate is an open loop, --concurrency a closed one: one of them")
    if arguments.arrivals is not None and not arguments.rate:
        raise ConfigError("needs --rate", field="--arrivals")
    if arguments.data is not None and arguments.body is not None:
        raise ConfigError("--data and --body both say what to send: one of them")
    made = {"--shape": arguments.shape, "--lengths": arguments.lengths}
    made["--rows"] = arguments.rows != 1
    for flag, value in made.items():
        if value and (arguments.data is not None or arguments.body is not None):
            raise ConfigError(
                "is about requests that bench makes, not about given ones", field=flag
            )


def _law(arguments: argparse.Namespace) -> ArrivalLaw:
    spec: flags.ArrivalSpec | None = arguments.arrivals
    if spec is None:
        return ArrivalLaw("poisson")
    if spec.clients:
        raise ConfigError("a closed loop is asked for with --concurrency", field="--arrivals")
    if spec.rate_rps is not None:
        raise ConfigError("the rate is given by --rate", field="--arrivals")
    trace = None if spec.file is None else workload.read_trace(spec.file)
    return ArrivalLaw(spec.kind, spec.options, trace)


def _wanted(arguments: argparse.Namespace) -> Wanted:
    spec: flags.LengthSpec | None = arguments.lengths
    bodies: list[bytes] = []
    if arguments.body is not None:
        bodies = read_bodies(arguments.body)
    elif arguments.data is not None:
        try:
            json.loads(arguments.data)
        except ValueError as error:
            raise ConfigError(f"no JSON: {error}", field="--data") from error
        bodies = [arguments.data.encode()]
    return Wanted(
        model=arguments.model,
        rows=arguments.rows,
        shapes=dict(arguments.shape),
        lengths=None if spec is None else spec.sizes(_MANY_LENGTHS, arguments.seed),
        is_binary=False if arguments.json_tensors else None,
        bodies=bodies,
        headers=_headers(arguments),
        seed=arguments.seed,
    )


def _headers(arguments: argparse.Namespace) -> tuple[tuple[str, str], ...]:
    key = [("Authorization", f"Bearer {arguments.key}")] if arguments.key else []
    return (*key, *arguments.header)


def _probe(arguments: argparse.Namespace) -> Probe:
    return Probe(Address.parse(arguments.url), _headers(arguments), _tls(arguments))


def _tls(arguments: argparse.Namespace) -> ssl.SSLContext | None:
    if not arguments.url.startswith("https:"):
        return None
    try:
        context = ssl.create_default_context(cafile=arguments.ca)
    except OSError as error:
        raise ConfigError(f"{arguments.ca}: {error}", field="--ca") from error
    if arguments.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _slo_s(arguments: argparse.Namespace) -> float | None:
    return None if arguments.slo_ms is None else arguments.slo_ms / 1e3


# ---- progress


class Progress:
    """One line on a terminal, written anew while a point is measured."""

    def __init__(self, seconds: float) -> None:
        self.label = ""
        self._seconds = seconds
        self._last = 0.0

    def tick(self, tick: Tick) -> None:
        if time.monotonic() - self._last < 0.5:
            return
        self._last = time.monotonic()
        failed = f", {tick.failed} failed" if tick.failed else ""
        line = (
            f"{self.label}: {min(tick.elapsed_s, self._seconds):.0f} s of {self._seconds:.0f}, "
            f"{tick.answered - tick.failed} answered{failed}, {tick.in_flight} in flight"
        )
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


class _Silent(Progress):
    def tick(self, tick: Tick) -> None:
        pass


@contextmanager
def _progress(arguments: argparse.Namespace) -> Iterator[Progress]:
    seconds = arguments.seconds + arguments.warm_up
    if not sys.stderr.isatty():
        yield _Silent(seconds)
        return
    try:
        yield Progress(seconds)
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
