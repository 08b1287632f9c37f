"""`headway simulate`: compare batching policies on a workload, without a server."""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headway.core import Compose, CostTable, Firing
from headway.core.policy import read_buckets
from headway.errors import ConfigError
from headway.lab import report, workload
from headway.lab.oracle import oracle
from headway.lab.profiles import (
    PowerProfile,
    SizedProfile,
    TableProfile,
    TokenProfile,
    batch_seconds,
    capacity_rps,
    packed_capacity_rps,
)
from headway.lab.report import Result
from headway.lab.simulate import DEFAULT_MAX_QUEUE, Lengths, Scenario, simulate

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_DEFAULT_POLICIES = ("auto", "window:5", "static")
_OF_LENGTHS = {
    "token_ms": "--token-ms",
    "max_batch_cost": "--max-batch-cost",
    "composes": "--compose",
}
_MAX_LOAD = 20.0
_MAX_NOISE = 10.0
_LONG_RUN = 300_000  # items to simulate, all policies and loads together

_DESCRIPTION = """\
Compare batching policies side by side, without a server or a model.

The production scheduler runs in virtual time: you say who arrives (--arrivals) and how long a
batch takes (--latency or --profile), and read what each policy makes of it. Every policy meets
the same arrivals. Latencies are from arrival to answer, in milliseconds.

arrivals (RATE is requests per second; leave it out when --load sets it):
  poisson:RATE         independent requests
  mmpp:RATE            bursts: 1.8 times the rate a third of the time, 0.6 times the rest
  fanout:RATE          groups of 8 on average, within 2 ms of each other
  step:RATE            load that steps between low and high (20 to 90) every 2 s
  closed:CLIENTS,MS    clients that wait for their answer, think MS on average, and come again
  trace:FILE[@RATE]    times from a CSV file (a TIMESTAMP column, dates or seconds), at their
                       own pace or at RATE; repeated where more requests are asked for

lengths (where items differ in length, a batch is padded to its longest):
  lognormal:MEDIAN,SIGMA[,CLIP]   drawn, none longer than CLIP
  trace:FILE           from a CSV file: its column size, length, tokens or contexttokens

policies:
  auto                 the default of Headway: fires when idle, learns when to linger
  idle                 fires whenever a worker is free (auto with no linger)
  window:MS[,B]        waits for a full batch (of B) at most MS
  static               full batches only; with --slo-ms a rest leaves in time for it
  oracle               the best fixed window and batch size for this very sample, by p99
"""

_EXAMPLES = """\
examples:
  a GPU-like model (5 ms and 0.05 ms per row), three policies from idle to busy, as a picture:
    headway simulate --arrivals poisson --load 0.02,0.3,0.6,0.9 --latency 5,0.05 \\
        --policy auto --policy window:5 --policy oracle --plot loads.png

  a recorded trace at 200 requests/s on measured batch times, answers wanted within 50 ms:
    headway simulate --arrivals trace:azure.csv@200 --profile minilm.json --slo-ms 50

  texts of very different lengths, 0.004 ms for each token of a padded batch, two ways to mix them:
    headway simulate --arrivals poisson --load 0.7 --latency 4,0 --token-ms 0.004 \\
        --lengths lognormal:64,1,512 --max-batch-cost 16384 --policy auto \\
        --compose dp --compose fifo
"""


def add_parser(commands: "Commands") -> None:
    parser = commands.add_parser(
        "simulate",
        help="compare batching policies on a workload, without a server",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--arrivals", required=True, type=_arrivals, metavar="SPEC", help="who arrives; see above")
    truth = parser.add_mutually_exclusive_group(required=True)
    truth.add_argument(
        "--latency",
        type=_latency,
        metavar="ALPHA_MS,BETA_MS[,EXPONENT]",
        help="a batch of b rows takes ALPHA + BETA * b ** EXPONENT (default 1)",
    )
    truth.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help='measured times: JSON {"rows": [1,2,...], "sizes": null, "ms": [[...],...]}',
    )
    add("--size", type=_count(2**31), help="item size at which to read a profile with sizes")
    _add_lengths(parser)
    add("--max-batch-size", type=_count(65_536), default=64, metavar="B", help="rows; default 64")
    add(
        "--slo-ms",
        type=_positive,
        metavar="S",
        help="latency wanted; auto sheds what would miss it",
    )
    add(
        "--max-queue",
        type=_count(10_000_000),
        default=DEFAULT_MAX_QUEUE,
        metavar="N",
        help=f"rows that may wait; more are refused; default {DEFAULT_MAX_QUEUE}",
    )
    add("--noise", type=_noise, default=0.0, metavar="CV", help="spread of batch times, e.g. 0.1")
    add("--workers", type=_count(1024), default=1, metavar="N", help="default 1")
    add(
        "--policy",
        type=_policy,
        action="append",
        dest="policies",
        metavar="SPEC",
        help="see above; may be repeated; default: auto, window:5 and static",
    )
    add("--requests", type=_count(20_000_000), default=20_000, metavar="N", help="default 20000")
    add("--seed", type=_count(2**63, least=0), default=0, metavar="K", help="default 0")
    add(
        "--load",
        type=_loads,
        default=(),
        metavar="SHARES",
        help="rates as shares of capacity, e.g. 0.02,0.3,0.9; overrides RATE",
    )
    add("--json", action="store_true", help="print the results as a JSON list")
    add("--plot", type=Path, metavar="FILE", help="also draw them (.png, .svg, .pdf)")
    parser.set_defaults(run=run)


def _add_lengths(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--lengths", type=_lengths, metavar="SPEC", help="how long the items are; see above")
    add(
        "--token-ms",
        type=_not_negative,
        metavar="MS",
        help="a batch takes so much more for each of its rows times its longest item",
    )
    add(
        "--max-batch-cost",
        type=_count(2**53),
        metavar="TOKENS",
        help="most rows times longest item in one batch",
    )
    add(
        "--compose",
        type=_compose,
        action="append",
        dest="composes",
        metavar="HOW",
        help="who goes together: dp (default), fifo, buckets, sort, packed; may be repeated",
    )
    add(
        "--buckets",
        type=_buckets,
        default=((), 0),
        metavar="SPEC",
        help="for --compose buckets: 64,128,256 (largest size of each), pow2 (default), quantile:N",
    )


def run(arguments: argparse.Namespace) -> int:
    policies: list[_PolicySpec] = arguments.policies or [
        _policy(name) for name in _DEFAULT_POLICIES
    ]
    plot: Path | None = arguments.plot
    if plot:
        with _naming("--plot"):
            report.check_plot(plot)
    has_curve = len(arguments.load) > 0
    composes: list[Compose] = arguments.composes or [Compose.DP]
    runs = len(policies) * len(composes) * max(1, len(arguments.load))
    with _progress(arguments.requests * runs) as on_progress:
        points = _points(arguments, on_progress)
        _check_batch_sizes(policies, points[0].scenario.max_rows)
        results = [
            point.result(
                policy,
                _Composing(compose, *arguments.buckets),
                record=plot is not None and not has_curve,
            )
            for point in points
            for policy in policies
            for compose in composes
        ]
    title = _title(arguments, points[0].scenario)
    if arguments.json:
        print(json.dumps([result.to_json() for result in results], indent=2, allow_nan=False))
    else:
        print(f"{title}\n\n{report.to_table(results)}")
    if plot:
        draw = report.plot_loads if has_curve else report.plot_point
        with _naming("--plot"):
            draw(results, plot, title=title)
        print(f"wrote {plot}", file=sys.stderr)
    return 0


# ---- what to simulate


@dataclass(frozen=True, slots=True)
class _ArrivalSpec:
    text: str
    kind: str
    rate_rps: float | None = None
    file: Path | None = None
    clients: int = 0
    think_s: float = 0.0

    @property
    def text_without_rate(self) -> str:
        return self.kind if self.file is None else f"{self.kind}:{self.file}"


@dataclass(frozen=True, slots=True)
class _PolicySpec:
    text: str
    firing: Firing | None  # None: the oracle's choice
    max_wait_s: float | None = None
    max_rows: int | None = None


@dataclass(frozen=True, slots=True)
class _LengthSpec:
    text: str
    file: Path | None = None
    median: float = 0.0
    sigma: float = 0.0
    clip: int | None = None

    def sizes(self, requests: int, seed: int) -> workload.Sizes:
        if self.file is not None:
            return np.resize(workload.read_sizes(self.file), requests)
        rng = np.random.default_rng([seed, 3])
        return workload.lognormal_sizes(requests, self.median, self.sigma, self.clip, rng)


@dataclass(frozen=True, slots=True)
class _Composing:
    compose: Compose
    buckets: tuple[int, ...] = ()
    quantiles: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Point:
    """One load."""

    scenario: Scenario
    load: float | None
    rate_rps: float | None

    def result(self, spec: _PolicySpec, composing: _Composing, *, record: bool) -> Result:
        scenario, config = self.scenario, spec.text
        if spec.firing is None:
            best, outcome = oracle(scenario)
            config = str(best)
        else:
            policy = scenario.policy(
                spec.firing,
                max_wait_s=spec.max_wait_s,
                max_rows=spec.max_rows,
                compose=composing.compose,
                buckets=composing.buckets,
                quantiles=composing.quantiles,
            )
            outcome = simulate(scenario, policy, record=record and spec.firing is Firing.AUTO)
        compose = None if scenario.lengths is None else composing.compose.value
        return Result(spec.text, config, self.load, self.rate_rps, scenario.slo_s, outcome, compose)


def _points(arguments: argparse.Namespace, on_progress: Callable[[int], object]) -> list[_Point]:
    profile = _profile(arguments)
    lengths = _lengths_of(arguments, profile)
    capacity = _capacity(arguments, profile, lengths)
    with _naming("--arrivals"):
        stream = _Stream(arguments.arrivals, arguments.requests, arguments.seed)
        rates = [stream.own_rate_rps]
        if arguments.load:
            rates = [stream.checked_rate(load * capacity) for load in arguments.load]
        arrivals = [stream.at(rate_rps) for rate_rps in rates]
    scenarios = [
        Scenario.build(
            each,
            profile,
            max_rows=arguments.max_batch_size,
            seed=arguments.seed,
            noise_cv=arguments.noise,
            workers=arguments.workers,
            max_queue=arguments.max_queue,
            slo_s=None if arguments.slo_ms is None else arguments.slo_ms / 1e3,
            on_progress=on_progress,
            lengths=lengths,
        )
        for each in arrivals
    ]
    return [
        _Point(scenario, None if rate_rps is None else rate_rps / capacity, rate_rps)
        for scenario, rate_rps in zip(scenarios, rates, strict=True)
    ]


class _Stream:
    """The arrivals asked for, at any rate."""

    def __init__(self, spec: _ArrivalSpec, requests: int, seed: int) -> None:
        self._spec = spec
        self._requests = requests
        self._seed = seed
        self._trace = None if spec.file is None else workload.read_trace(spec.file)

    @property
    def own_rate_rps(self) -> float | None:
        """As asked for, or as recorded; None in a closed loop."""
        spec = self._spec
        if spec.rate_rps is None and self._trace is not None:
            return workload.rate_of(self._trace)
        return spec.rate_rps

    def checked_rate(self, rate_rps: float) -> float:
        if self._spec.kind == "closed":
            raise ConfigError("the clients of a closed loop set their own rate", field="--load")
        return rate_rps

    def at(self, rate_rps: float | None) -> workload.Times | workload.ClosedLoop:
        spec, requests = self._spec, self._requests
        rng = np.random.default_rng([self._seed, 0])
        if spec.kind == "closed":
            return workload.closed_loop(spec.clients, spec.think_s, requests, rng)
        if self._trace is not None:
            return workload.replay(self._trace, requests, rate_rps)
        if rate_rps is None:
            raise ConfigError(f"{spec.text} needs a rate ({spec.kind}:200), or --load")
        return workload.OPEN_LOOPS[spec.kind](requests, rate_rps, rng)


def _lengths_of(
    arguments: argparse.Namespace, profile: PowerProfile | TableProfile
) -> Lengths | None:
    spec: _LengthSpec | None = arguments.lengths
    if spec is None:
        for flag in ("token_ms", "max_batch_cost", "composes"):
            if getattr(arguments, flag) is not None:
                raise ConfigError(
                    "needs --lengths", field="--" + flag.rstrip("s").replace("_", "-")
                )
        return None
    with _naming("--lengths"):
        sizes = spec.sizes(arguments.requests, arguments.seed)
    sized: SizedProfile
    if isinstance(profile, TableProfile) and arguments.token_ms is None:
        sized = profile
    else:
        sized = TokenProfile(profile, (arguments.token_ms or 0.0) / 1e3)
    return Lengths(sizes, sized, arguments.max_batch_cost)


def _capacity(
    arguments: argparse.Namespace, profile: PowerProfile | TableProfile, lengths: Lengths | None
) -> float:
    max_rows, workers = arguments.max_batch_size, arguments.workers
    if lengths is None:
        return capacity_rps(batch_seconds(profile, max_rows), workers)
    max_cost = lengths.max_cost or math.inf
    return packed_capacity_rps(lengths.profile, lengths.mean, max_rows, max_cost, workers)


def _profile(arguments: argparse.Namespace) -> PowerProfile | TableProfile:
    latency: PowerProfile | None = arguments.latency
    if latency is not None:
        return latency
    file: Path = arguments.profile
    try:
        table = CostTable.from_json(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, ConfigError) as error:
        raise ConfigError(f"{file}: {error}", field="--profile") from error
    return TableProfile(table, arguments.size)


def _check_batch_sizes(policies: Iterable[_PolicySpec], max_rows: int) -> None:
    for policy in policies:
        if policy.max_rows is not None and policy.max_rows > max_rows:
            raise ConfigError(
                f"{policy.text} has larger batches than --max-batch-size {max_rows}",
                field="--policy",
            )


@contextmanager
def _naming(flag: str) -> Iterator[None]:
    """A mistake found below is a mistake in this flag."""
    try:
        yield
    except ConfigError as error:
        if error.field is not None:
            raise
        raise ConfigError(str(error), field=flag) from error


# ---- reading flags


def _arrivals(text: str) -> _ArrivalSpec:
    kind, _, rest = text.partition(":")
    if kind in workload.OPEN_LOOPS:
        return _ArrivalSpec(text, kind, rate_rps=_positive(rest) if rest else None)
    if kind == "closed":
        clients, think_ms = _fields(rest, "closed:CLIENTS,THINK_MS", at_least=2, at_most=2)
        return _ArrivalSpec(
            text, kind, clients=_count(1_000_000)(clients), think_s=_not_negative(think_ms) / 1e3
        )
    if kind == "trace" and rest:
        file, at, rate = rest.rpartition("@")
        with suppress(argparse.ArgumentTypeError):
            if at:  # unless the @ is part of the name
                return _ArrivalSpec(text, kind, rate_rps=_positive(rate), file=Path(file))
        return _ArrivalSpec(text, kind, file=Path(rest))
    kinds = ", ".join([*workload.OPEN_LOOPS, "closed:CLIENTS,MS", "trace:FILE"])
    raise argparse.ArgumentTypeError(f"{text!r} is not one of {kinds}")


def _lengths(text: str) -> _LengthSpec:
    kind, _, rest = text.partition(":")
    if kind == "trace" and rest:
        return _LengthSpec(text, file=Path(rest))
    form = "lognormal:MEDIAN,SIGMA[,CLIP] or trace:FILE"
    if kind != "lognormal":
        raise argparse.ArgumentTypeError(f"{text!r} does not read {form}")
    median, sigma, *clip = _fields(rest, form, at_least=2, at_most=3)
    return _LengthSpec(
        text,
        median=_positive(median),
        sigma=_not_negative(sigma),
        clip=_count(2**31)(clip[0]) if clip else None,
    )


def _compose(text: str) -> Compose:
    try:
        return Compose(text)
    except ValueError:
        choices = ", ".join(Compose)
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {choices}") from None


def _buckets(text: str) -> tuple[tuple[int, ...], int]:
    try:
        return read_buckets(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _policy(text: str) -> _PolicySpec:
    match text.partition(":"):
        case ("auto", "", ""):
            return _PolicySpec(text, Firing.AUTO)
        case ("idle", "", ""):
            return _PolicySpec(text, Firing.AUTO, max_wait_s=0.0)
        case ("static", "", ""):
            return _PolicySpec(text, Firing.STATIC)
        case ("oracle", "", ""):
            return _PolicySpec(text, None)
        case ("window", ":", rest):
            wait_ms, *rows = _fields(rest, "window:MS or window:MS,B", at_least=1, at_most=2)
            max_rows = _count(65_536)(rows[0]) if rows else None
            return _PolicySpec(text, Firing.WINDOW, _not_negative(wait_ms) / 1e3, max_rows)
    raise argparse.ArgumentTypeError(
        f"{text!r} is not one of auto, idle, window:MS, window:MS,B, static, oracle"
    )


def _latency(text: str) -> PowerProfile:
    form = "ALPHA_MS,BETA_MS or ALPHA_MS,BETA_MS,EXPONENT"
    alpha, beta, *exponent = map(_not_negative, _fields(text, form, at_least=2, at_most=3))
    try:
        return PowerProfile(alpha / 1e3, beta / 1e3, *exponent)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _loads(text: str) -> tuple[float, ...]:
    loads = tuple(map(_positive, text.split(",")))
    if max(loads) > _MAX_LOAD:
        raise argparse.ArgumentTypeError(
            f"{max(loads):g} is more than {_MAX_LOAD:g}: loads are shares, 0.9 for 90 %"
        )
    return loads


def _fields(text: str, form: str, *, at_least: int, at_most: int) -> list[str]:
    fields = text.split(",")
    if not at_least <= len(fields) <= at_most or not all(fields):
        raise argparse.ArgumentTypeError(f"{text!r} does not read {form}")
    return fields


def _count(most: int, *, least: int = 1) -> Callable[[str], int]:
    def count(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} does not lie between {least} and {most}")
        return value

    return count


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not (value >= 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 up")
    return value


def _positive(text: str) -> float:
    value = _not_negative(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value


def _noise(text: str) -> float:
    value = _not_negative(text)
    if value > _MAX_NOISE:
        raise argparse.ArgumentTypeError(f"{text} is more than {_MAX_NOISE:g}; 0.1 means 10 %")
    return value


# ---- telling


def _title(arguments: argparse.Namespace, scenario: Scenario) -> str:
    seconds, lengths = scenario.seconds, scenario.lengths
    one_s, full_s, capacity = seconds[1], seconds[-1], "capacity"
    spec: _ArrivalSpec = arguments.arrivals
    arrivals = spec.text_without_rate if arguments.load else spec.text
    parts = [f"{arrivals}, {scenario.requests} requests, seed {arguments.seed}"]
    if lengths is not None:
        parts.append(f"lengths {arguments.lengths.text}, mean {lengths.mean:.4g}")
        one_s = lengths.profile.seconds_at(1, lengths.mean)
        full_s = lengths.profile.seconds_at(scenario.max_rows, lengths.mean)
        capacity = "capacity without padding"
    parts += [
        f"batch of 1 {one_s * 1e3:.4g} ms, of {scenario.max_rows} {full_s * 1e3:.4g} ms",
        f"{capacity} {scenario.capacity_rps:.0f}/s",
    ]
    if scenario.workers > 1:
        parts.append(f"{scenario.workers} workers")
    if scenario.slo_s is not None:
        parts.append(f"SLO {scenario.slo_s * 1e3:g} ms")
    return "; ".join(parts)


@contextmanager
def _progress(items: int) -> Iterator[Callable[[int], object]]:
    """Takes how many more items are done; a bar for a person who waits long."""
    if items < _LONG_RUN or not sys.stderr.isatty():
        yield lambda done: None
        return
    from tqdm import tqdm

    with tqdm(total=items, unit=" items", unit_scale=True, leave=False) as bar:
        yield bar.update
