"""`headway simulate`: compare batching policies on a workload, without a server."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from headway.cli import simulate_flags as flags
from headway.cli import simulate_fleet, simulate_generation
from headway.cli.commands import Commands
from headway.cli.simulate_scenarios import Composing, check_batch_sizes, naming, points_of, tell
from headway.core.policy import Compose, Order
from headway.errors import ConfigError
from headway.lab import report
from headway.lab.profiles import NOISE_LAWS, Noise
from headway.lab.report import Result
from headway.lab.simulate import DEFAULT_MAX_QUEUE, Scenario

_DEFAULT_POLICIES = ("auto", "window:5", "static")
_REQUESTS = 20_000
_LONG_RUN = 300_000  # items to simulate, all policies and loads together

_HELP = {
    "--arrivals": "when requests arrive; see above",
    "--latency": "a batch of b rows takes ALPHA + BETA * b ** EXPONENT (default 1)",
    "--profile": 'measured times: JSON {"rows": [1,2,...], "sizes": null, "ms": [[...],...]}',
    "--size": "item size at which a profile with several sizes is read",
    "--lengths": "lengths of the items, see above; default: all alike",
    "--token-ms": "added to a batch's time per padded token (rows times longest item); default 0",
    "--max-batch-cost": "most rows times longest item in one batch; default: any",
    "--compose": "how sizes share batches: dp (default), fifo, buckets, sort, packed; repeatable",
    "--buckets": "for --compose buckets: 64,128,256 (largest sizes), pow2 (default), quantile:N",
    "--max-batch-size": "most rows in one batch; default 64",
    "--slo-ms": "wanted latency: auto refuses items that would miss it; default: none",
    "--max-queue": f"most rows waiting; more are refused; default {DEFAULT_MAX_QUEUE}",
    "--noise": f"spread of batch times, e.g. 0.1; LAW: {', '.join(NOISE_LAWS)}; default: no noise",
    "--workers": "number of workers (default 1), or how much slower each one is, e.g. 1,1,3",
    "--classes": "shares of the priority classes, e.g. high=0.1,low=0.5; other items are normal",
    "--tenants": "tenants and their weights, e.g. a=1,b=8: they send equally many items; or each "
    "at a rate of its own: a=1:rate=1.5,b=8:rate=3",
    "--deadline-ms": "deadline of every item; default: none",
    "--order": "which item of a priority class is next; default fifo",
    "--slo-percentile": "percentage of answers that must meet --slo-ms; default 99",
    "--seeds": "run N seeds, and show how far their figures spread; default 1",
    "--policy": "a policy, see above; may be repeated; default: auto, window:5 and static",
    "--requests": f"how many to simulate; default {_REQUESTS}, with --generate 2000",
    "--seed": "seed of all random numbers; default 0",
    "--load": "rates as shares of capacity, e.g. 0.02,0.3,0.9; overrides RATE",
    "--json": "print the results as a JSON list",
    "--plot": "also draw them (.png, .svg, .pdf)",
}

_DESCRIPTION = """\
Compare batching policies side by side, without a server or a model.

The production scheduler runs in virtual time: you say when requests arrive (--arrivals) and how
long a batch takes (--latency or --profile); the table shows what each policy makes of it. Every
policy meets the same arrivals. Latencies are from arrival to answer, in milliseconds.

arrivals (RATE is requests per second; leave it out when --load sets it):
  poisson:RATE         independent requests
  constant:RATE        a metronome
  mmpp:RATE            bursts: 1.8 times the rate a third of the time, 0.6 times the rest
  fanout:RATE          groups of 8 on average, within 2 ms of each other
  step:RATE            load that steps between low and high (20 to 90) every 2 s
  gamma:RATE,CV        gaps with a gamma law: CV 0 a metronome, 1 poisson, 3 (default) clusters
  pareto:RATE,SHAPE    gaps with a heavy tail (default 1.5)
  diurnal:RATE,SWING   a rate that rises and falls by SWING (default 0.8) of itself in 10 s
  cron:RATE,SECONDS    7 of 10 requests at one instant every SECONDS (default 0.25)
  trains:RATE          groups of 8, each request 1 ms behind the one before
  closed:CLIENTS,MS[,LAW]
                       clients that wait for their answer, think MS on average, and ask again; LAW
                       constant: all think for the same time; mixed: some think much longer
  barrier:CLIENTS,MS,JITTER_MS
                       clients that wait until all of them are answered, think MS, ask again
  trace:FILE[@RATE]    times from a CSV file (a TIMESTAMP column, dates or seconds) or from JSON
                       lines ("timestamp" in ms), at their own pace or at RATE; repeated where more
                       requests are asked for. A column "tenant" names the tenant of each

lengths (where items differ in length, a batch is padded to its longest):
  N                    all of them N long
  lognormal:MEDIAN,SIGMA[,CLIP]   drawn, none longer than CLIP
  trace:FILE           from a CSV file, its column size, length, tokens or contexttokens; or from
                       JSON lines, their input_length

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

  four servers behind a router, one of them three times slower; and a number that follows the load:
    headway simulate --arrivals poisson --load 0.5 --latency 5,0.05 --replicas 1,1,1,3
    headway simulate --arrivals diurnal:2000 --latency 50,2 --replicas 2 --autoscale 1,20 \\
        --route finish --plot fleet.png
"""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "simulate",
        usage="%(prog)s --arrivals SPEC --latency A,B|--profile FILE [options]",
        help="compare batching policies on a workload, without a server",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    _add_truth(parser)
    _add_lengths(parser)
    simulate_generation.add_flags(parser, flags.lengths)
    simulate_fleet.add_flags(parser)
    _add_limits(parser)
    _add_world(parser)
    _add_runs(parser)
    parser.set_defaults(run=run)


def _adder(group: argparse._ActionsContainer) -> Callable[..., object]:
    return lambda flag, **options: group.add_argument(flag, help=_HELP[flag], **options)


def _add_truth(parser: argparse.ArgumentParser) -> None:
    add = _adder(parser)
    add("--arrivals", required=True, type=flags.arrivals, metavar="SPEC")
    add_one = _adder(parser.add_mutually_exclusive_group(required=True))
    add_one("--latency", type=flags.latency, metavar="ALPHA_MS,BETA_MS[,EXPONENT]")
    add_one("--profile", type=Path, metavar="FILE")
    add("--size", type=flags.count(2**31))


def _add_lengths(parser: argparse.ArgumentParser) -> None:
    add = _adder(parser)
    add("--lengths", type=flags.lengths, metavar="SPEC")
    add("--token-ms", type=flags.not_negative, metavar="MS")
    add("--max-batch-cost", type=flags.count(2**53), metavar="TOKENS")
    add("--compose", type=flags.compose, action="append", dest="composes", metavar="HOW")
    add("--buckets", type=flags.buckets, default=((), 0), metavar="SPEC")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    add = _adder(parser)
    add("--max-batch-size", type=flags.count(65_536), default=64, metavar="B")
    add("--slo-ms", type=flags.positive, metavar="S")
    add("--max-queue", type=flags.count(10_000_000), default=DEFAULT_MAX_QUEUE, metavar="N")


def _add_world(parser: argparse.ArgumentParser) -> None:
    add = _adder(parser)
    add("--noise", type=flags.noise, default=Noise(), metavar="CV[,LAW]")
    add("--workers", type=flags.workers, default=(1.0,), metavar="N|TIMES,TIMES")
    add("--classes", type=flags.classes, metavar="CLASS=SHARE,...")
    add("--tenants", type=flags.tenants, metavar="NAME=WEIGHT[:rate=R],...")
    add("--deadline-ms", type=flags.positive, metavar="D")
    add("--order", choices=[each.value for each in Order], default=Order.FIFO.value)
    add("--slo-percentile", type=flags.positive, default=99.0, metavar="P")
    add("--seeds", type=flags.count(1000), default=1, metavar="N")


def _add_runs(parser: argparse.ArgumentParser) -> None:
    add = _adder(parser)
    add("--policy", type=flags.policy, action="append", dest="policies", metavar="SPEC")
    add("--requests", type=flags.count(20_000_000), metavar="N")
    add("--seed", type=flags.count(2**63, least=0), default=0, metavar="K")
    add("--load", type=flags.loads, default=(), metavar="SHARES")
    add("--json", action="store_true")
    add("--plot", type=Path, metavar="FILE")


def run(arguments: argparse.Namespace) -> int:
    from tqdm import tqdm

    if arguments.generate and arguments.replicas is not None:
        raise ConfigError("not with --replicas", field="--generate")
    if arguments.replicas is not None:
        return simulate_fleet.run(arguments)
    simulate_fleet.check_unused(arguments)
    if arguments.generate:
        return simulate_generation.run(arguments)
    arguments.requests = arguments.requests or _REQUESTS
    policies: list[flags.PolicySpec] = arguments.policies or [
        flags.policy(name) for name in _DEFAULT_POLICIES
    ]
    plot: Path | None = arguments.plot
    if plot:
        with naming("--plot"):
            report.check_plot(plot)
    has_curve = len(arguments.load) > 0
    composes: list[Compose] = arguments.composes or [Compose.DP]
    runs = len(policies) * len(composes) * max(1, len(arguments.load)) * arguments.seeds
    by_seed: list[list[Result]] = []
    items = arguments.requests * runs
    is_hidden = True if items < _LONG_RUN else None  # None: unless a person is watching
    with tqdm(total=items, unit=" items", unit_scale=True, leave=False, disable=is_hidden) as bar:
        for seed in range(arguments.seed, arguments.seed + arguments.seeds):
            points = points_of(_with_seed(arguments, seed), bar.update)
            check_batch_sizes(policies, points[0].scenario.max_rows)
            record = plot is not None and not has_curve and not by_seed
            by_seed.append(
                [
                    point.result(policy, Composing(compose, *arguments.buckets), record=record)
                    for point in points
                    for policy in policies
                    for compose in composes
                ]
            )
    results = report.over_seeds(by_seed)
    title = _title(arguments, points[0].scenario, points[0].capacity_rps)
    tell(arguments, title, results, _to_text, report.plot_loads if has_curve else report.plot_point)
    return 0


def _with_seed(arguments: argparse.Namespace, seed: int) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(arguments), "seed": seed})


# ---- telling


def _to_text(results: Sequence[Result]) -> str:
    tenants = report.to_tenants_table(results)
    return f"{report.to_table(results)}\n\n{tenants}" if tenants else report.to_table(results)


def _title(arguments: argparse.Namespace, scenario: Scenario, capacity_rps: float) -> str:
    seconds, lengths = scenario.seconds_by_rows, scenario.lengths
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
