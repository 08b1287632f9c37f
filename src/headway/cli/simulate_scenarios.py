"""Turns the flags of `headway simulate` into arrivals, batch times, callers and loads."""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from headway.cli import simulate_flags as flags
from headway.core.costs import CostTable
from headway.core.policy import Compose, Firing, Order, Policy
from headway.errors import ConfigError
from headway.lab import traces, workload
from headway.lab.fleet_report import FleetResult
from headway.lab.generation import GenerationOutcome
from headway.lab.oracle import oracle
from headway.lab.profiles import (
    Profile,
    SizedProfile,
    TableProfile,
    TokenProfile,
    batch_seconds,
    capacity_rps,
    packed_capacity_rps,
    sorted_capacity_rps,
)
from headway.lab.report import Result, by_tenant
from headway.lab.simulate import Callers, Lengths, Scenario, simulate

R = TypeVar("R", Result, FleetResult, GenerationOutcome)


@dataclass(frozen=True, slots=True)
class Composing:
    compose: Compose
    buckets: tuple[int, ...] = ()
    quantiles: int = 0


def policy_of(scenario: Scenario, spec: flags.PolicySpec, composing: Composing) -> Policy:
    assert spec.firing is not None, "the oracle chooses its own"
    return scenario.policy(
        spec.firing,
        max_wait_s=spec.max_wait_s,
        max_rows=spec.max_rows,
        compose=composing.compose,
        buckets=composing.buckets,
        quantiles=composing.quantiles,
    )


@dataclass(frozen=True, slots=True, eq=False)
class LoadPoint:
    """A scenario at one load."""

    scenario: Scenario
    load: float | None
    rate_rps: float | None
    capacity_rps: float

    def result(self, spec: flags.PolicySpec, composing: Composing, *, record: bool) -> Result:
        scenario, config = self.scenario, spec.text
        if spec.firing is None:
            by_mean = spec.text == "oracle:mean"
            best, outcome = oracle(scenario, by_mean=by_mean, compose=composing.compose)
            config = str(best)
        else:
            policy = policy_of(scenario, spec, composing)
            outcome = simulate(scenario, policy, record=record and spec.firing is Firing.AUTO)
        compose = None if scenario.lengths is None else composing.compose.value
        owners = None if scenario.callers is None else scenario.callers.tenants
        return Result(
            spec.text,
            config,
            self.load,
            self.rate_rps,
            scenario.slo_s,
            outcome,
            compose,
            tenants=by_tenant(outcome, owners),
        )


def points_of(
    arguments: argparse.Namespace, on_progress: Callable[[int], object]
) -> list[LoadPoint]:
    profile = _profile(arguments)
    lengths = _lengths_of(arguments, profile)
    capacity = _capacity(arguments, profile, lengths)
    with naming("--arrivals"):
        stream = _Stream(arguments.arrivals, arguments.tenants, arguments.requests, arguments.seed)
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
            noise=arguments.noise,
            speeds=arguments.workers,
            callers=_callers(arguments, stream.owners),
            slo_percentile=arguments.slo_percentile,
            max_queue=arguments.max_queue,
            slo_s=None if arguments.slo_ms is None else arguments.slo_ms / 1e3,
            on_progress=on_progress,
            lengths=lengths,
        )
        for each in arrivals
    ]
    return [
        LoadPoint(scenario, None if rate_rps is None else rate_rps / capacity, rate_rps, capacity)
        for scenario, rate_rps in zip(scenarios, rates, strict=True)
    ]


def _callers(arguments: argparse.Namespace, owners: list[str] | None) -> Callers | None:
    """`owners`: the tenant of each item, where its arrival says so."""
    shares, spec = arguments.classes, arguments.tenants
    weights = {} if spec is None else spec.weights
    order = Order(arguments.order)
    is_plain = not shares and not weights and owners is None and order is Order.FIFO
    if is_plain and arguments.deadline_ms is None:
        return None
    rng, requests = np.random.default_rng([arguments.seed, 4]), arguments.requests
    priorities, tenants = None, owners
    if shares:
        names = list(shares)
        drawn = rng.choice(len(names), requests, p=[shares[name] for name in names])
        priorities = [names[each] for each in drawn]
    if weights and owners is None:
        tenants = [list(weights)[each] for each in rng.integers(len(weights), size=requests)]
    deadlines_s = None
    if arguments.deadline_ms is not None:
        deadlines_s = np.full(requests, arguments.deadline_ms / 1e3)
    return Callers(priorities, tenants, tuple(weights.items()), deadlines_s, order)


class _Stream:
    """The arrivals asked for, at any rate."""

    def __init__(
        self, spec: flags.ArrivalSpec, tenants: flags.TenantSpec | None, requests: int, seed: int
    ) -> None:
        self._spec = spec
        self._rates = {} if tenants is None else tenants.rates
        self._check_rates()
        self._requests = requests
        self._seed = seed
        self._trace = None if spec.file is None else traces.read_trace(spec.file)
        self.owners: list[str] | None = None  # of the items, where the arrivals say so
        if spec.file is not None and (names := traces.read_tenants(spec.file)) is not None:
            self.owners = [names[number % len(names)] for number in range(requests)]

    def _check_rates(self) -> None:
        if not self._rates:
            return
        if self._spec.kind not in workload.OPEN_LOOPS:
            raise ConfigError("rates of tenants need an open loop, as poisson", field="--tenants")
        if self._spec.rate_rps is not None:
            raise ConfigError(f"the tenants have rates: --arrivals {self._spec.kind}, without one")

    @property
    def own_rate_rps(self) -> float | None:
        """The rate that was asked for or recorded; None in a closed loop."""
        spec = self._spec
        if spec.rate_rps is None and self._trace is not None:
            return traces.rate_of(self._trace)
        return sum(self._rates.values()) if self._rates else spec.rate_rps

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
            return traces.replay(self._trace, requests, rate_rps)
        if rate_rps is None:
            raise ConfigError(f"{spec.text} needs a rate ({spec.kind}:200), or --load")
        law = workload.OPEN_LOOPS[spec.kind]
        if spec.options:
            law = partial(law, **dict(spec.options))
        if not self._rates:
            return law(requests, rate_rps, rng)
        times = rate_rps / sum(self._rates.values())
        rates = {name: rate * times for name, rate in self._rates.items()}
        arrivals, self.owners = workload.of_tenants(law, requests, rates, self._seed)
        return arrivals


def _lengths_of(arguments: argparse.Namespace, profile: Profile) -> Lengths | None:
    spec: flags.LengthSpec | None = arguments.lengths
    if spec is None:
        for flag in ("token_ms", "max_batch_cost", "composes"):
            if getattr(arguments, flag) is not None:
                raise ConfigError(
                    "needs --lengths", field="--" + flag.rstrip("s").replace("_", "-")
                )
        return None
    with naming("--lengths"):
        sizes = spec.sizes(arguments.requests, arguments.seed)
    sized: SizedProfile
    if isinstance(profile, TableProfile) and arguments.token_ms is None:
        sized = profile
    else:
        sized = TokenProfile(profile, (arguments.token_ms or 0.0) / 1e3)
    return Lengths(sizes, sized, arguments.max_batch_cost)


def _capacity(arguments: argparse.Namespace, profile: Profile, lengths: Lengths | None) -> float:
    """The highest rate, in full batches; where lengths differ, each batch has items of one length,
    as the model pads."""
    max_rows, workers = arguments.max_batch_size, sum(1.0 / each for each in arguments.workers)
    if lengths is None:
        return capacity_rps(batch_seconds(profile, max_rows), workers)
    max_cost = lengths.max_cost or math.inf
    if arguments.composes == [Compose.PACKED]:
        return packed_capacity_rps(lengths.profile, lengths.mean, max_rows, max_cost, workers)
    return sorted_capacity_rps(lengths.profile, lengths.sizes, max_rows, max_cost, workers)


def _profile(arguments: argparse.Namespace) -> Profile:
    given: Profile | None = arguments.latency
    return given or TableProfile(measured_costs(arguments.profile), arguments.size)


def measured_costs(file: Path) -> CostTable:
    """The batch times that --profile names."""
    try:
        return CostTable.from_json(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError, ConfigError) as error:
        raise ConfigError(f"{file}: {error}", field="--profile") from error


def check_batch_sizes(policies: Iterable[flags.PolicySpec], max_rows: int) -> None:
    for policy in policies:
        if policy.max_rows is not None and policy.max_rows > max_rows:
            raise ConfigError(
                f"{policy.text} has larger batches than --max-batch-size {max_rows}",
                field="--policy",
            )


def tell(
    arguments: argparse.Namespace,
    title: str,
    results: list[R],
    to_text: Callable[[list[R]], str],
    draw: Callable[..., None],
) -> None:
    """Print the results, and draw them if that was asked for."""
    if arguments.json:
        print(json.dumps([each.to_json() for each in results], indent=2, allow_nan=False))
    else:
        print(f"{title}\n\n{to_text(results)}")
    if arguments.plot:
        with naming("--plot"):
            draw(results, arguments.plot, title=title)
        print(f"wrote {arguments.plot}", file=sys.stderr)


@contextmanager
def naming(flag: str) -> Iterator[None]:
    """A mistake found below is a mistake in this flag."""
    try:
        yield
    except ConfigError as error:
        if error.field is not None:
            raise
        raise ConfigError(str(error), field=flag) from error
