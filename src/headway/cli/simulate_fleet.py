"""`headway simulate --replicas`: several replicas behind a router, in virtual time."""

import argparse
from dataclasses import replace

from headway.cli import simulate_flags as flags
from headway.cli.simulate_scenarios import Composing, LoadPoint, naming, points_of, policy_of, tell
from headway.core.policy import Compose
from headway.core.routing import RoutingRule
from headway.errors import ConfigError
from headway.lab import report
from headway.lab.fleet import Autoscale, Fleet, simulate_fleet
from headway.lab.fleet_report import FleetResult, plot, to_table

_REQUESTS = 20_000
_ROUTES = (RoutingRule.ROUND_ROBIN, RoutingRule.RANDOM, RoutingRule.TWO_CHOICES, RoutingRule.FINISH)
_ONLY_HERE = ("routes", "lose_s", "autoscale", "cold_start_s", "target_wait_ms")


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--replicas",
        type=flags.workers,
        metavar="N|TIMES,TIMES",
        help="number of servers behind a router, each with its own queue, or how much slower each "
        "one is, e.g. 1,1,1,3; --load is then a share of the capacity of all",
    )
    add(
        "--route",
        action="append",
        dest="routes",
        choices=[each.value for each in _ROUTES],
        help="with --replicas: how the router chooses: by turns, at random, of two at random the "
        "one that is expected to answer first, or of all; repeatable; default: each",
    )
    add(
        "--lose-s",
        type=flags.positive,
        metavar="S",
        help="with --replicas: the first one is lost after S seconds, with all that it holds; "
        "these requests are sent again; it is back after --cold-start-s",
    )
    add(
        "--autoscale",
        type=_autoscale,
        metavar="LEAST,MOST",
        help="with --replicas: their number follows load and queued seconds, as Kubernetes' "
        "autoscaler has it: a look every 15 s, up at once, down after 2 minutes",
    )
    add(
        "--cold-start-s",
        type=flags.positive,
        metavar="S",
        help="how long a replica takes to start; default 30",
    )
    add(
        "--target-wait-ms",
        type=flags.positive,
        metavar="W",
        help="with --autoscale: the wait that is accepted in queues; default: twice a full batch",
    )


def _autoscale(text: str) -> tuple[int, int]:
    try:
        least, most = (int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} does not have the form LEAST,MOST") from None
    if not 1 <= least <= most <= 1024:
        raise argparse.ArgumentTypeError("needs 1 <= LEAST <= MOST <= 1024")
    return least, most


def check_unused(arguments: argparse.Namespace) -> None:
    """Raises ConfigError for flags that mean nothing without replicas."""
    for name in _ONLY_HERE:
        if getattr(arguments, name) is not None:
            flag = "--" + name.removesuffix("s" if name == "routes" else "").replace("_", "-")
            raise ConfigError("needs --replicas", field=flag)


def run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    if arguments.plot:
        with naming("--plot"):
            report.check_plot(arguments.plot)
    arguments.requests = arguments.requests or _REQUESTS
    speeds: tuple[float, ...] = arguments.replicas
    # Arrivals and capacity are those of as many workers.
    arguments.workers = speeds
    points = points_of(arguments, lambda done: None)
    results = [
        _result(arguments, point, spec, RoutingRule(route))
        for point in points
        for spec in arguments.policies or [flags.policy("auto")]
        for route in arguments.routes or _ROUTES
    ]
    title = (
        f"{arguments.arrivals.text}, {arguments.requests} requests, seed {arguments.seed}; "
        f"{len(speeds)} replicas, capacity {points[0].capacity_rps:.0f}/s"
    )
    tell(arguments, title, results, to_table, plot)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if arguments.workers != (1.0,):
        raise ConfigError("each of --replicas has one worker", field="--workers")
    if arguments.seeds != 1:
        raise ConfigError("not with --replicas; --seed chooses another sample", field="--seeds")
    if arguments.arrivals.clients:
        raise ConfigError("--replicas needs arrivals that do not wait", field="--arrivals")
    if arguments.composes and len(arguments.composes) > 1:
        raise ConfigError("one, with --replicas", field="--compose")
    for spec in arguments.policies or ():
        if spec.firing is None:
            raise ConfigError("the oracle has one replica", field="--policy")
    if arguments.autoscale is None and arguments.target_wait_ms is not None:
        raise ConfigError("needs --autoscale", field="--target-wait-ms")


def _result(
    arguments: argparse.Namespace, point: LoadPoint, spec: flags.PolicySpec, route: RoutingRule
) -> FleetResult:
    scenario = replace(point.scenario, workers=1, speeds=())
    composing = Composing((arguments.composes or [Compose.DP])[0], *arguments.buckets)
    outcome = simulate_fleet(
        scenario,
        policy_of(scenario, spec, composing),
        _fleet(arguments, route, 2.0 * scenario.seconds_by_rows[-1]),
        seed=arguments.seed,
    )
    return FleetResult(spec.text, route.value, point.load, scenario.slo_s, outcome)


def _fleet(arguments: argparse.Namespace, route: RoutingRule, usual_wait_s: float) -> Fleet:
    autoscale, wait_ms = None, arguments.target_wait_ms
    if arguments.autoscale is not None:
        wait_s = usual_wait_s if wait_ms is None else wait_ms / 1e3
        least, most = arguments.autoscale
        autoscale = Autoscale(least, most, wait_s)
    return Fleet(
        arguments.replicas,
        route,
        cold_start_s=arguments.cold_start_s or 30.0,
        autoscale=autoscale,
        lost_at=arguments.lose_s,
    )
