"""`headway bench`: how much load a server carries, and how long its answers take."""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.cli import bench_flags as read
from headway.cli import simulate_flags as flags
from headway.cli.bench_requests import (
    check,
    check_target,
    law_of,
    probe_of,
    slo_s,
    tls_of,
    wanted_of,
)
from headway.cli.commands import Commands
from headway.cli.server_flags import DEFAULT_URL
from headway.cli.simulate_scenarios import naming
from headway.loadgen.against import in_turns, ratios
from headway.loadgen.against import told as compared
from headway.loadgen.asking import NoAnswer
from headway.loadgen.connection import LoadConnection, LostServer, opener
from headway.loadgen.driver import MAX_IN_FLIGHT, Driver, Tick
from headway.loadgen.exchange import Address
from headway.loadgen.openai_bodies import OPENAI_PATHS
from headway.loadgen.report import Point, table, to_json
from headway.loadgen.search import Objective, Search
from headway.loadgen.sweep import ArrivalLaw, Bench, Timing, swept
from headway.loadgen.target import Target, find_target
from headway.loadgen.tokens import TokenLimits

NOT_VALID = 3
_USUAL_CONNECTIONS = (1, 8, 64)
_SECONDS, _FIND_S = 10.0, 3.0
_BUDGET_S, _PRECISION = 58.0, 3.0  # of --find
_FIRST_CONNECTIONS, _FIRST_S, _FIRST_SHARE = 64, 1.0, 0.7
_ROUNDS = 5  # of --against
_LOST_TICKS = 3

_DESCRIPTION = """\
Measure a server under load: any that speaks KServe v2 or OpenAI's API, or takes JSON.

  headway bench                                  the local server, in closed loops
  headway bench URL --model minilm --rate 200    an open loop: 200 requests/s, independent
  headway bench URL --rate 50:400:50             a sweep; it stops at what the server can do
  headway bench URL --concurrency 1,8,64         closed loops: each connection waits for its answer
  headway bench URL --find 'p99<=50ms,errors<=0.1%'      the highest rate with which this holds
  headway bench URL --rate 200 --against http://other:8000      two servers, in turns
  headway bench URL --arrivals trace:azure.csv --rate 200      recorded times, stretched to 200/s
  headway bench URL --api chat --rate 4 --max-tokens 100       streamed answers, token by token
  headway bench http://host/my/route --data '{"text": "hello"}' --rate 50      any JSON route

The requests are made from the model's metadata, or taken from --data or --body. Latency counts
from the moment a request was due to leave, so a server that stalls cannot hide its queue.

Every run says whether it can be believed: were as many answered as were due, did no more and more
wait, and had this client room. If not, it says why, and exits with 3. Errors are counted by kind;
a failed request has no latency.
"""
_EXIT = """\
exit codes:
  0  measured
  1  the server cannot be reached or refuses the first request; or --find found no rate
  2  a flag is wrong
  3  the figures cannot be believed; the output says why. In a sweep, rates that are too much for
     the server do not count, if it could hold at least one
"""

_HELP = {
    "--model": "which model; default: the only one there",
    "--rate": "requests due in a second: a number, several (50,100) or a sweep (50:400:50)",
    "--arrivals": "the law of their times, as for headway simulate, without a rate: poisson "
    "(default), constant, gamma, mmpp, …, or trace:FILE",
    "--find": "the highest rate that meets limits of p50, p90, p99, mean, max or errors",
    "--precision": "how close --find comes to the highest rate; default 3 %%",
    "--against": "another server, under the same load in turns",
    "--concurrency": "closed loops, each with that many connections, e.g. 1,8,64",
    "--seconds": "how long each point is measured; default 10, of --find 3",
    "--warm-up": "seconds of the same load before that; default 1",
    "--api": "what the server speaks; auto: chat where the model is a language model, else v2, or "
    "plain JSON with --data or --body; or a route of OpenAI's; chat, completions and responses "
    "are streamed, and their tokens timed",
    "--max-tokens": "of each streamed answer; default 64",
    "--ignore-eos": "ask that answers be no shorter than --max-tokens (Headway and vLLM can)",
    "--first-ms": "a request counts as good if its first token comes within this time",
    "--between-ms": "… and if the mean time between its tokens is no longer than this",
    "--rows": "rows of each request; default 1",
    "--shape": "the shape of an input, where the metadata leaves it open; may be repeated",
    "--lengths": "of axes without a length, of texts in words, of clips in seconds: N, "
    "lognormal:MEDIAN,SIGMA[,CLIP] or trace:FILE",
    "--data": "the JSON to send, as it is",
    "--body": "a file of JSON lines, sent in turn; with --api transcriptions, a clip of speech",
    "--json-tensors": "tensors as JSON even where the server takes bytes",
    "--header": "a header of every request; may be repeated",
    "--deadline-ms": "the time limit of every request, as Headway-Timeout-Ms",
    "--classes": "shares of priorities, e.g. high=1,low=3, as Headway-Priority",
    "--tenants": "shares of tenants, e.g. a=1,b=8, as Headway-Tenant",
    "--cancel": "the share of requests whose client leaves before its answer, e.g. 1%%",
    "--api-key": "default: $HEADWAY_API_KEY",
    "--slo-ms": "also tell the share that was answered within this time",
    "--timeout": "seconds to wait for an answer; a request without one has failed; default 30",
    "--max-in-flight": "with --rate or --find: the most requests in flight at once; the others "
    f"wait, and their latency includes this; default {MAX_IN_FLIGHT}",
    "--seed": "of all random numbers; default 0",
    "--ca": "PEM: the authority that signed the server's certificate",
    "--cert": "PEM: your certificate, where the server wants one",
    "--key": "PEM: the private key of --cert",
    "--insecure": "accept any certificate of the server",
    "--plot": "also draw them (.png, .svg, .pdf)",
    "--json": "print the results as a JSON list",
}


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "bench",
        usage="%(prog)s [URL] [options]",
        help="measure a server under load",
        description=_DESCRIPTION,
        epilog=_EXIT,
    )
    parser.add_argument(
        "url",
        nargs="?",
        default=DEFAULT_URL,
        metavar="URL",
        help=f"http(s):// or grpc(s)://HOST:PORT; default: {DEFAULT_URL}",
    )

    def add(flag: str, **options: Any) -> None:
        parser.add_argument(flag, help=_HELP[flag], **options)

    add("--model", default="", metavar="NAME")
    add("--rate", type=read.rates, default=(), metavar="R|A:B:STEP")
    add("--arrivals", type=flags.arrivals, metavar="LAW")
    add("--concurrency", type=read.counts, default=(), metavar="N,…")
    add("--find", metavar="LIMITS")
    add("--precision", type=flags.positive, metavar="PERCENT")
    add("--against", metavar="URL")
    add("--seconds", type=flags.positive, metavar="S")
    add("--warm-up", type=flags.not_negative, default=1.0, metavar="S")
    add("--api", choices=["auto", *OPENAI_PATHS], default="auto")
    add("--max-tokens", type=flags.count(1_000_000), metavar="N")
    add("--ignore-eos", action="store_true")
    add("--first-ms", type=flags.positive, metavar="S")
    add("--between-ms", type=flags.positive, metavar="S")
    add("--rows", type=flags.count(65_536), default=1, metavar="N")
    add("--shape", type=read.shape, action="append", default=[], metavar="INPUT:N,N")
    add("--lengths", type=flags.lengths, metavar="SPEC")
    add("--data", metavar="JSON")
    add("--body", type=Path, metavar="FILE")
    add("--json-tensors", action="store_true")
    add("--header", type=read.header, action="append", default=[], metavar="NAME:VALUE")
    add("--deadline-ms", type=flags.positive, metavar="D")
    add("--classes", type=read.shares, default={}, metavar="CLASS=SHARE,…")
    add("--tenants", type=read.shares, default={}, metavar="NAME=SHARE,…")
    add("--cancel", type=read.percent, default=0.0, metavar="PERCENT")
    add("--api-key", metavar="KEY")
    add("--slo-ms", type=flags.positive, metavar="S")
    add("--timeout", type=flags.positive, default=30.0, metavar="S")
    add("--max-in-flight", type=flags.count(65_536), metavar="N")
    add("--seed", type=flags.count(2**63, least=0), default=0, metavar="K")
    for flag in ("--ca", "--cert", "--key"):
        add(flag, metavar="FILE")
    add("--insecure", action="store_true")
    add("--plot", type=Path, metavar="FILE")
    add("--json", action="store_true")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    check(arguments)
    if arguments.seconds is None:
        arguments.seconds = _FIND_S if arguments.find else _SECONDS
    law, probe, wanted = law_of(arguments), probe_of(arguments, arguments.url), wanted_of(arguments)
    objective = None
    if arguments.find:
        with naming("--find"):
            objective = Objective.parse(arguments.find)
    try:
        target = find_target(probe, wanted)
        check_target(arguments, target)
        with _progress(arguments) as progress, _driver(arguments, target, progress) as driver:
            bench = _bench(arguments, driver, target, law)
            if objective is not None:
                return _find(arguments, bench, target, objective, progress)
            if arguments.against:
                other = find_target(probe_of(arguments, arguments.against), wanted)
                with _driver(arguments, other, progress) as second:
                    theirs = _bench(arguments, second, other, law)
                    return _compare(arguments, (bench, target), (theirs, other), progress)
            points = list(_points(arguments, bench, progress))
    except (NoAnswer, LostServer) as error:
        print(f"headway: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        _print_json([to_json(point) for point in points])
    else:
        print(f"{_title(arguments, target)}\n\n{table(points, slo_s(arguments))}")
    _plot(arguments, target, points)
    return exit_code(points)


def _plot(arguments: argparse.Namespace, target: Target, points: Sequence[Point]) -> None:
    if arguments.plot is None:
        return
    from headway.loadgen.picture import draw

    with naming("--plot"):
        draw(points, arguments.plot, title=_title(arguments, target))
    print(f"wrote {arguments.plot}", file=sys.stderr)


def _find(
    arguments: argparse.Namespace,
    bench: Bench,
    target: Target,
    objective: Objective,
    progress: "BenchProgress",
) -> int:
    def probe(rate: float, seed: int, times: int) -> Point:
        progress.label = f"{bench.law.kind} {rate:.4g}/s"
        lost = _Lost(max(50.0, 3 * rate * objective.longest_s))
        timing = replace(bench.timing, seconds=times * bench.timing.seconds)
        measured = replace(bench, timing=timing)
        return measured.at_rate(rate, seed=arguments.seed + seed, stop_when=lost)

    search = Search(
        probe,
        objective,
        text=arguments.find,
        precision=(arguments.precision or _PRECISION) / 100,
        budget_s=max(_BUDGET_S, 14 * bench.timing.end_s),
        probe_s=bench.timing.end_s,
    )
    progress.label = "throughput in a closed loop"
    closed = bench.driver.closed_loop(_FIRST_CONNECTIONS, _FIRST_S)
    found = search.run(_FIRST_SHARE * len(closed.due_s) / _FIRST_S)
    if arguments.json:
        _print_json({"search": found.to_json(), "probes": [to_json(each) for each in found.probes]})
    else:
        print(f"{_title(arguments, target)}\n\n{table(found.probes, slo_s(arguments))}")
        print(f"\n{found.told()}")
    _plot(arguments, target, found.probes)
    if not found.had_room or found.was_away:
        return NOT_VALID
    return 1 if found.rate_rps is None else 0


class _Lost:
    """Stops a run that cannot pass: at several looks in a row, more requests wait for their answers
    than could all be answered within the limit."""

    def __init__(self, most: float) -> None:
        self._most = most
        self._times = 0

    def __call__(self, tick: Tick) -> bool:
        self._times = self._times + 1 if tick.in_flight > self._most else 0
        return self._times == _LOST_TICKS


def _compare(
    arguments: argparse.Namespace,
    ours: tuple[Bench, Target],
    theirs: tuple[Bench, Target],
    progress: "BenchProgress",
) -> int:
    def in_round(bench: Bench, number: int) -> Point:
        progress.label = f"round {number + 1} of {_ROUNDS}, {bench.url}"
        if arguments.rate:
            return bench.at_rate(arguments.rate[0], seed=arguments.seed + number)
        return bench.with_connections(arguments.concurrency[0])

    pairs = in_turns(
        lambda number: in_round(ours[0], number),
        lambda number: in_round(theirs[0], number),
        _ROUNDS,
    )
    found = ratios(*pairs)
    if arguments.json:
        told = [{"figure": r.name, "ratio": r.value, "low": r.low, "high": r.high} for r in found]
        measured = [to_json(each) for each in (*pairs[0], *pairs[1])]
        _print_json({"second_over_first": told, "points": measured})
    else:
        for points, (_, target) in zip(pairs, (ours, theirs), strict=True):
            print(f"{_title(arguments, target)}\n\n{table(points, slo_s(arguments))}\n")
        print(compared(found, ours[1].address.url, theirs[1].address.url))
    is_valid = all(point.summary.is_valid for points in pairs for point in points)
    return 0 if is_valid else NOT_VALID


def _title(arguments: argparse.Namespace, target: Target) -> str:
    what = f"{target.model} on " if target.model else ""
    return (
        f"{what}{target.address.url} ({target.server}, {target.api}), {arguments.seconds:g} s "
        f"after {arguments.warm_up:g} s of warm-up, seed {arguments.seed}"
    )


def _print_json(told: object) -> None:
    print(json.dumps(told, indent=2, allow_nan=False))


def exit_code(points: list[Point]) -> int:
    """Of a sweep, the last point is meant to be too much; only the client may not be."""
    wrong = [point for point in points if not point.summary.is_valid]
    if len(points) > 1:
        wrong = [point for point in wrong if not point.summary.is_saturated]
    is_any_valid = any(point.summary.is_valid for point in points)
    return NOT_VALID if wrong or not is_any_valid else 0


def _points(
    arguments: argparse.Namespace, bench: Bench, progress: "BenchProgress"
) -> Iterator[Point]:
    def at_rate(rate: float) -> Point:
        progress.label = f"{bench.law.kind} {rate:g}/s"
        return bench.at_rate(rate)

    yield from swept(arguments.rate, at_rate)
    if arguments.rate:
        return
    for connections in arguments.concurrency or _USUAL_CONNECTIONS:
        progress.label = f"{connections} in a closed loop"
        yield bench.with_connections(connections)


def _opener(arguments: argparse.Namespace, address: Address) -> Callable[[], LoadConnection]:
    tls = tls_of(arguments, address)
    if not address.is_grpc:
        return opener(address, tls)
    from headway.loadgen.grpc import grpc_opener  # needs headway[grpc]

    return grpc_opener(address, tls)


@contextmanager
def _driver(
    arguments: argparse.Namespace, target: Target, progress: "BenchProgress"
) -> Iterator[Driver]:
    with Driver(
        _opener(arguments, target.address),
        target.exchanges,
        timeout_s=arguments.timeout,
        max_in_flight=arguments.max_in_flight or MAX_IN_FLIGHT,
        cancelled=arguments.cancel,
        seed=arguments.seed,
        on_tick=progress.tick,
    ) as driver:
        driver.try_once()
        yield driver


def _bench(arguments: argparse.Namespace, driver: Driver, target: Target, law: ArrivalLaw) -> Bench:
    return Bench(
        driver,
        law,
        Timing(arguments.seconds, arguments.warm_up, arguments.timeout),
        arguments.seed,
        slo_s(arguments),
        target.address.url,
        TokenLimits(
            first_s=math.inf if arguments.first_ms is None else arguments.first_ms / 1e3,
            between_s=math.inf if arguments.between_ms is None else arguments.between_ms / 1e3,
        ),
    )


# ---- progress


class BenchProgress:
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


class _Silent(BenchProgress):
    def tick(self, tick: Tick) -> None:
        pass


@contextmanager
def _progress(arguments: argparse.Namespace) -> Iterator[BenchProgress]:
    seconds = arguments.seconds + arguments.warm_up
    if not sys.stderr.isatty():
        yield _Silent(seconds)
        return
    try:
        yield BenchProgress(seconds)
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
