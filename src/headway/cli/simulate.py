"""`headway simulate`: compare batching policies on a workload, without a server."""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headway.cli import simulate_flags as flags
from headway.cli import simulate_generation
from headway.core import Compose, CostTable, Firing, Order
from headway.errors import ConfigError
from headway.lab import report, workload
from headway.lab.oracle import oracle
from headway.lab.profiles import (
    NOISE_LAWS,
    KneeProfile,
    Noise,
    Profile,
    SizedProfile,
    TableProfile,
    TileProfile,
    TokenProfile,
    batch_seconds,
    capacity_rps,
    packed_capacity_rps,
    sorted_capacity_rps,
)
from headway.lab.report import Result
from headway.lab.simulate import (
    DEFAULT_MAX_QUEUE,
    Callers,
    Drift,
    Lengths,
    Scenario,
    simulate,
)

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_DEFAULT_POLICIES = ("auto", "window:5", "static")
_OF_LENGTHS = {
    "token_ms": "--token-ms",
    "max_batch_cost": "--max-batch-cost",
    "composes": "--compose",
}
_LONG_RUN = 300_000  # items to simulate, all policies and loads together

_TILE = "rows are computed in tiles of N: one that is begun takes as long as a full one"
_BEST_SIZE = "rows beyond N take three times as long: a best size between powers of two"
_NOISE = f"spread of batch times, e.g. 0.1; LAW is one of {', '.join(NOISE_LAWS)}"
_STRAGGLERS = "a SHARE of batches takes so many TIMES as long, e.g. 0.02,10"
_DRIFT = "from the middle of the run on, batches take so many TIMES as long"
_WORKERS = "how many (default 1), or how many TIMES as long a batch takes on each, e.g. 1,1,3"
_CLASSES = "shares of all items, e.g. high=0.1,low=0.5; the others are normal"
_TENANTS = "tenants that send alike, and their weights, e.g. a=1,b=8"
_SEEDS = "also say how far the figures of N seeds spread; default 1"

_DESCRIPTION = """\
Compare batching policies side by side, without a server or a model.

The production scheduler runs in virtual time: you say when requests arrive (--arrivals) and how
long a batch takes (--latency or --profile), and read what each policy makes of it. Every policy
meets the same arrivals. Latencies are from arrival to answer, in milliseconds.

arrivals (RATE is requests per second; leave it out when --load sets it):
  poisson:RATE         independent requests
  mmpp:RATE            bursts: 1.8 times the rate a third of the time, 0.6 times the rest
  fanout:RATE          groups of 8 on average, within 2 ms of each other
  step:RATE            load that steps between low and high (20 to 90) every 2 s
  gamma:RATE,CV        gaps with a gamma law: CV 0 a metronome, 1 poisson, 3 (default) clusters
  pareto:RATE,SHAPE    gaps with a heavy tail (default 1.5)
  diurnal:RATE,SWING   a rate that rises and falls by SWING (default 0.8) of itself in 10 s
  cron:RATE,SECONDS    7 of 10 requests at one instant every SECONDS (default 0.25)
  trains:RATE          groups of 8, each request 1 ms behind the one before
  closed:CLIENTS,MS    clients that wait for their answer, think MS on average, and come again;
                       closed:CLIENTS,MS,constant all think alike, ...,mixed some much longer
  barrier:CLIENTS,MS,JITTER_MS
                       clients that wait until all of them are answered, think MS, come again
  trace:FILE[@RATE]    times from a CSV file (a TIMESTAMP column, dates or seconds), at their
                       own pace or at RATE; repeated where more requests are asked for

lengths (where items differ in length, a batch is padded to its longest):
  lognormal:MEDIAN,SIGMA[,CLIP]   drawn, none longer than CLIP
  trace:FILE           from a CSV file: its column size, length, tokens or contexttokens

policies:
  auto                 the default of Headway: fires when idle, learns when to linger
  idle                 fires whenever a worker is free (auto with no linger)
  window:MS[,B]        waits for a full batch (of B) at most MS
  static               full batches only; with --slo-ms an incomplete one leaves in time
  oracle               the best fixed window and batch size for this very sample, by p99;
                       oracle:mean the same by the mean
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
    add(
        "--arrivals",
        required=True,
        type=flags.arrivals,
        metavar="SPEC",
        help="when requests arrive; see above",
    )
    truth = parser.add_mutually_exclusive_group(required=True)
    truth.add_argument(
        "--latency",
        type=flags.latency,
        metavar="ALPHA_MS,BETA_MS[,EXPONENT]",
        help="a batch of b rows takes ALPHA + BETA * b ** EXPONENT (default 1)",
    )
    truth.add_argument(
        "--profile",
        type=Path,
        metavar="FILE",
        help='measured times: JSON {"rows": [1,2,...], "sizes": null, "ms": [[...],...]}',
    )
    add("--size", type=flags.count(2**31), help="item size at which to read a profile with sizes")
    _add_lengths(parser)
    simulate_generation.add_flags(parser, flags.lengths)
    add(
        "--max-batch-size",
        type=flags.count(65_536),
        default=64,
        metavar="B",
        help="rows; default 64",
    )
    add(
        "--slo-ms",
        type=flags.positive,
        metavar="S",
        help="latency wanted; auto sheds what would miss it",
    )
    add(
        "--max-queue",
        type=flags.count(10_000_000),
        default=DEFAULT_MAX_QUEUE,
        metavar="N",
        help=f"rows that may wait; more are refused; default {DEFAULT_MAX_QUEUE}",
    )
    _add_world(parser)
    add(
        "--policy",
        type=flags.policy,
        action="append",
        dest="policies",
        metavar="SPEC",
        help="see above; may be repeated; default: auto, window:5 and static",
    )
    add(
        "--requests",
        type=flags.count(20_000_000),
        default=20_000,
        metavar="N",
        help="default 20000",
    )
    add("--seed", type=flags.count(2**63, least=0), default=0, metavar="K", help="default 0")
    add(
        "--load",
        type=flags.loads,
        default=(),
        metavar="SHARES",
        help="rates as shares of capacity, e.g. 0.02,0.3,0.9; overrides RATE",
    )
    add("--json", action="store_true", help="print the results as a JSON list")
    add("--plot", type=Path, metavar="FILE", help="also draw them (.png, .svg, .pdf)")
    parser.set_defaults(run=run)


def _add_world(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--tile", type=flags.count(65_536), default=1, metavar="N", help=_TILE)
    add("--best-size", type=flags.count(65_536), metavar="N", help=_BEST_SIZE)
    add("--noise", type=flags.noise, default=Noise(), metavar="CV[,LAW]", help=_NOISE)
    add("--stragglers", type=flags.stragglers, metavar="SHARE,TIMES", help=_STRAGGLERS)
    add("--drift", type=flags.positive, default=1.0, metavar="TIMES", help=_DRIFT)
    add("--workers", type=flags.workers, default=(1.0,), metavar="N|TIMES,TIMES", help=_WORKERS)
    add("--classes", type=flags.classes, metavar="CLASS=SHARE,...", help=_CLASSES)
    add("--tenants", type=flags.tenants, metavar="NAME=WEIGHT,...", help=_TENANTS)
    add("--deadline-ms", type=flags.positive, metavar="D", help="every item's own deadline")
    add("--order", choices=[each.value for each in Order], default=Order.FIFO.value)
    add("--slo-percentile", type=flags.positive, default=99.0, metavar="P", help="default 99")
    add("--seeds", type=flags.count(1000), default=1, metavar="N", help=_SEEDS)


def _add_lengths(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--lengths", type=flags.lengths, metavar="SPEC", help="how long the items are; see above")
    add(
        "--token-ms",
        type=flags.not_negative,
        metavar="MS",
        help="a batch takes so much more for each of its rows times its longest item",
    )
    add(
        "--max-batch-cost",
        type=flags.count(2**53),
        metavar="TOKENS",
        help="most rows times longest item in one batch",
    )
    add(
        "--compose",
        type=flags.compose,
        action="append",
        dest="composes",
        metavar="HOW",
        help="how sizes share batches: dp (default), fifo, buckets, sort, packed; may be repeated",
    )
    add(
        "--buckets",
        type=flags.buckets,
        default=((), 0),
        metavar="SPEC",
        help="for --compose buckets: 64,128,256 (largest size of each), pow2 (default), quantile:N",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.generate:
        return simulate_generation.run(arguments)
    policies: list[flags.PolicySpec] = arguments.policies or [
        flags.policy(name) for name in _DEFAULT_POLICIES
    ]
    plot: Path | None = arguments.plot
    if plot:
        with _naming("--plot"):
            report.check_plot(plot)
    has_curve = len(arguments.load) > 0
    composes: list[Compose] = arguments.composes or [Compose.DP]
    runs = len(policies) * len(composes) * max(1, len(arguments.load)) * arguments.seeds
    by_seed: list[list[Result]] = []
    with _progress(arguments.requests * runs) as on_progress:
        for seed in range(arguments.seed, arguments.seed + arguments.seeds):
            points = _points(_with_seed(arguments, seed), on_progress)
            _check_batch_sizes(policies, points[0].scenario.max_rows)
            record = plot is not None and not has_curve and not by_seed
            by_seed.append(
                [
                    point.result(policy, _Composing(compose, *arguments.buckets), record=record)
                    for point in points
                    for policy in policies
                    for compose in composes
                ]
            )
    results = report.over_seeds(by_seed)
    title = _title(arguments, points[0].scenario, points[0].capacity_rps)
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


def _with_seed(arguments: argparse.Namespace, seed: int) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(arguments), "seed": seed})


# ---- what to simulate


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
    capacity_rps: float

    def result(self, spec: flags.PolicySpec, composing: _Composing, *, record: bool) -> Result:
        scenario, config = self.scenario, spec.text
        if spec.firing is None:
            by_mean = spec.text == "oracle:mean"
            best, outcome = oracle(scenario, by_mean=by_mean, compose=composing.compose)
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
            noise=_noise(arguments),
            speeds=arguments.workers,
            drift=_drift(arguments, each),
            callers=_callers(arguments),
            slo_percentile=arguments.slo_percentile,
            max_queue=arguments.max_queue,
            slo_s=None if arguments.slo_ms is None else arguments.slo_ms / 1e3,
            on_progress=on_progress,
            lengths=lengths,
        )
        for each in arrivals
    ]
    return [
        _Point(scenario, None if rate_rps is None else rate_rps / capacity, rate_rps, capacity)
        for scenario, rate_rps in zip(scenarios, rates, strict=True)
    ]


def _noise(arguments: argparse.Namespace) -> Noise:
    noise: Noise = arguments.noise
    if arguments.stragglers is None:
        return noise
    share, times = arguments.stragglers
    return replace(noise, stragglers=share, times_slower=times)


def _drift(
    arguments: argparse.Namespace, arrivals: workload.Times | workload.ClosedLoop
) -> Drift | None:
    if arguments.drift == 1.0:
        return None
    if isinstance(arrivals, workload.ClosedLoop):
        raise ConfigError(
            "a closed loop has no known middle, where the drift would start", field="--drift"
        )
    return Drift(float(arrivals[len(arrivals) // 2]), arguments.drift)


def _callers(arguments: argparse.Namespace) -> Callers | None:
    shares, weights = arguments.classes, arguments.tenants
    order = Order(arguments.order)
    if not shares and not weights and arguments.deadline_ms is None and order is Order.FIFO:
        return None
    rng, requests = np.random.default_rng([arguments.seed, 4]), arguments.requests
    priorities = tenants = None
    if shares:
        names = list(shares)
        drawn = rng.choice(len(names), requests, p=[shares[name] for name in names])
        priorities = [names[each] for each in drawn]
    if weights:
        tenants = [list(weights)[each] for each in rng.integers(len(weights), size=requests)]
    deadlines_s = None
    if arguments.deadline_ms is not None:
        deadlines_s = np.full(requests, arguments.deadline_ms / 1e3)
    return Callers(priorities, tenants, tuple((weights or {}).items()), deadlines_s, order)


class _Stream:
    """The arrivals asked for, at any rate."""

    def __init__(self, spec: flags.ArrivalSpec, requests: int, seed: int) -> None:
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
        if self._spec.clients:
            raise ConfigError("the clients of a closed loop set their own rate", field="--load")
        return rate_rps

    def at(self, rate_rps: float | None) -> workload.Times | workload.ClosedLoop:
        spec, requests = self._spec, self._requests
        rng = np.random.default_rng([self._seed, 0])
        if spec.kind == "closed":
            return workload.closed_loop(spec.clients, spec.think_s, requests, rng, spec.thinking)
        if spec.kind == "barrier":
            return workload.barrier(spec.clients, spec.think_s, spec.jitter_s, requests, rng)
        if self._trace is not None:
            return workload.replay(self._trace, requests, rate_rps)
        if rate_rps is None:
            raise ConfigError(f"{spec.text} needs a rate ({spec.kind}:200), or --load")
        return workload.OPEN_LOOPS[spec.kind](requests, rate_rps, rng, **dict(spec.options))


def _lengths_of(arguments: argparse.Namespace, profile: Profile) -> Lengths | None:
    spec: flags.LengthSpec | None = arguments.lengths
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


def _capacity(arguments: argparse.Namespace, profile: Profile, lengths: Lengths | None) -> float:
    """Where lengths differ: of full batches of items as long as each other, as the model pads."""
    max_rows, workers = arguments.max_batch_size, sum(1.0 / each for each in arguments.workers)
    if lengths is None:
        return capacity_rps(batch_seconds(profile, max_rows), workers)
    max_cost = lengths.max_cost or math.inf
    if arguments.composes == [Compose.PACKED]:
        return packed_capacity_rps(lengths.profile, lengths.mean, max_rows, max_cost, workers)
    return sorted_capacity_rps(lengths.profile, lengths.sizes, max_rows, max_cost, workers)


def _profile(arguments: argparse.Namespace) -> Profile:
    profile: Profile = _measured(arguments) if arguments.latency is None else arguments.latency
    if arguments.tile > 1:
        profile = TileProfile(profile, arguments.tile)
    return profile if arguments.best_size is None else KneeProfile(profile, arguments.best_size)


def _measured(arguments: argparse.Namespace) -> TableProfile:
    file: Path = arguments.profile
    try:
        table = CostTable.from_json(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, ConfigError) as error:
        raise ConfigError(f"{file}: {error}", field="--profile") from error
    return TableProfile(table, arguments.size)


def _check_batch_sizes(policies: Iterable[flags.PolicySpec], max_rows: int) -> None:
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


# ---- telling


def _title(arguments: argparse.Namespace, scenario: Scenario, capacity_rps: float) -> str:
    seconds, lengths = scenario.seconds, scenario.lengths
    one_s, full_s, capacity = seconds[1], seconds[-1], "capacity"
    spec: flags.ArrivalSpec = arguments.arrivals
    arrivals = spec.text_without_rate if arguments.load else spec.text
    parts = [f"{arrivals}, {scenario.requests} requests, seed {arguments.seed}"]
    if lengths is not None:
        parts.append(f"lengths {arguments.lengths.text}, mean {lengths.mean:.4g}")
        one_s = lengths.profile.seconds_at(1, lengths.mean)
        full_s = lengths.profile.seconds_at(scenario.max_rows, lengths.mean)
        capacity = "capacity sorted by length"
    parts += [
        f"batch of 1 {one_s * 1e3:.4g} ms, of {scenario.max_rows} {full_s * 1e3:.4g} ms",
        f"{capacity} {capacity_rps:.0f}/s",
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
