"""`headway tune`: what to set for a model and its traffic, simulated and then tried."""

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headway.cli import simulate_flags as flags
from headway.cli.bench_flags import counts
from headway.cli.commands import Commands
from headway.cli.served_process import served
from headway.cli.simulate_scenarios import measured_costs
from headway.core.costs import CostTable
from headway.errors import ConfigError, HeadwayError
from headway.lab import traces, tuning, workload
from headway.lab.columns import aligned
from headway.lab.overhead import Look, live_costs
from headway.lab.profiles import Noise, TableProfile
from headway.lab.report import check_plot
from headway.lab.simulate import Lengths, Scenario
from headway.lab.tuning import Scored, TunedSetting
from headway.lab.workload import ClosedLoop, Sizes, Times
from headway.loadgen.asking import RemoteServer
from headway.loadgen.connection import LostServer, opener
from headway.loadgen.driver import Driver
from headway.loadgen.exchange import Address
from headway.loadgen.report import Point
from headway.loadgen.statistics import Interval
from headway.loadgen.sweep import ArrivalLaw, Bench, Timing
from headway.loadgen.target import Wanted, find_target, read_bodies

if TYPE_CHECKING:
    from headway.config import ModelConfig

_QUICK, _THOROUGH, _SEEDS = 1_500, 6_000, 2  # items to simulate
_GAIN = 0.95  # times the default's p99: less is worth a setting
_ROUNDS = 2
_LIVE_S = 5.0
_ALONE_S, _LOOK_S, _MOST_BATCHES = 0.5, 2.0, 4096  # to see what a server adds to the profile
_DESCRIPTION = """\
Find out what to set for a model: measure its batch times, look at a server under your traffic for
what it adds to them, simulate some sixty settings with the production scheduler, run the best one
and the default on a server, and say what to set, what it gains, and what the default would give.
Often the default is best; then it says so.

  headway tune minilm --rate 100 --p99-ms 50
  headway tune app:Model --rate 200 --arrivals trace:traffic.jsonl
  headway tune app:Model --concurrency 32 --profile model.json
"""
_FLAGS = ("max_batch_size", "workers", "worker", "pin", "options", "name")


def add_parser(commands: Commands) -> None:
    from headway.cli.serve import add_model_flags

    parser = commands.add_parser(
        "tune",
        usage="%(prog)s MODEL --rate R|--concurrency N [options]",
        help="what to set for a model and its traffic",
        description=_DESCRIPTION,
    )
    add = parser.add_argument
    add("target", metavar="MODEL", help="as for `headway serve`")
    load = parser.add_mutually_exclusive_group(required=True)
    load.add_argument("--rate", type=flags.positive, metavar="R", help="requests a second")
    load.add_argument(
        "--concurrency", type=counts, metavar="N", help="connections that wait for their answers"
    )
    add("--arrivals", type=flags.arrivals, metavar="LAW", help="of --rate, as for headway bench")
    add("--p99-ms", type=flags.positive, metavar="S", help="also tell up to which rate this holds")
    add("--profile", type=Path, metavar="FILE", help="batch times; default: measure")
    add(
        "--samples",
        type=Path,
        metavar="FILE",
        help="JSON lines: typical values, to measure and send",
    )
    add("--seconds", type=flags.positive, metavar="S", help="of a live run; default 5")
    add("--no-verify", action="store_true", help="only simulate")
    add("--seed", type=flags.count(2**63, least=0), default=0, metavar="K", help="default 0")
    add("--plot", type=Path, metavar="FILE", help="draw all settings (.png, .svg, .pdf)")
    add("--json", action="store_true", help="print the findings as JSON")
    add_model_flags(parser, _FLAGS)
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class Findings:
    default: Scored
    best: Scored
    holds_up_to_rps: float | None  # the best setting; None: not asked
    live: dict[str, list[Point]]  # by "default" and "best"; empty: not tried
    tried: list[Scored]  # every setting, simulated for a short time

    @property
    def has_gain(self) -> bool:
        """Does the best setting pay, and does the live run not contradict it?"""
        if self.best.setting == self.default.setting:
            return False
        is_better = _pays(self.best, self.default)
        if not self.live:
            return is_better
        ours, theirs = (self.live_p99_s(name) for name in ("best", "default"))
        return is_better and ours < theirs

    def live_p99_s(self, name: str) -> float:
        found: list[Interval] = [each.summary.percentiles_s[99.0] for each in self.live[name]]
        return float(np.median([each.value for each in found]))


def _pays(one: Scored, default: Scored) -> bool:
    return one.lost < default.lost - 1e-3 or one.p99_s < _GAIN * default.p99_s


def _check(arguments: argparse.Namespace) -> None:
    for flag in ("arrivals", "p99_ms"):
        if getattr(arguments, flag) is not None and arguments.rate is None:
            raise ConfigError("needs --rate", field=f"--{flag.replace('_', '-')}")
    if arguments.concurrency is not None and len(arguments.concurrency) != 1:
        raise ConfigError("is one number here", field="--concurrency")
    if arguments.seconds is not None and arguments.no_verify:
        raise ConfigError("is of a live run, and --no-verify wants none", field="--seconds")
    if arguments.samples is not None:
        if arguments.profile is not None and arguments.no_verify:
            raise ConfigError("with --profile and --no-verify no model runs", field="--samples")
        if not arguments.samples.is_file():
            raise ConfigError(f"{arguments.samples}: there is no such file", field="--samples")


def run(arguments: argparse.Namespace) -> int:
    from headway.cli.mapping import config_of

    _check(arguments)
    if arguments.plot is not None:
        check_plot(arguments.plot)
    law = _law(arguments)
    sys.path.insert(0, str(Path.cwd()))  # `app:Model` is app.py here
    config = config_of(arguments)
    try:
        table = _table(arguments, config)
        findings = _found(arguments, config, table, law)
    except ConfigError:
        raise
    except (HeadwayError, LostServer) as error:
        print(f"headway: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(_to_json(findings), indent=2, allow_nan=False))
    else:
        print(_told(arguments, config, findings))
    if arguments.plot is not None:
        _draw(arguments, config, findings)
    return 0


def _draw(arguments: argparse.Namespace, config: "ModelConfig", found: Findings) -> None:
    settings = {"default": found.default.setting}
    if found.best.setting != found.default.setting:
        settings["best"] = found.best.setting
    live_s = {
        name: (setting, found.live_p99_s(name)) for name, setting in settings.items() if found.live
    }
    tuning.draw(found.tried, live_s, arguments.plot, f"{config.name} at {_load_of(arguments)}")
    print(f"wrote {arguments.plot}", file=sys.stderr)


def _table(arguments: argparse.Namespace, config: "ModelConfig") -> CostTable:
    from headway.cli.profile import measured

    if arguments.profile is None:
        return asyncio.run(measured(config, arguments.samples, 15.0))
    return measured_costs(arguments.profile)


def _found(
    arguments: argparse.Namespace, config: "ModelConfig", table: CostTable, law: ArrivalLaw
) -> Findings:
    from tqdm import tqdm

    largest = min(config.max_batch_size, max(table.rows[-1], 1))
    sizes, costs = np.array(table.sizes), None
    if not arguments.no_verify:
        alone, loaded = _seen(arguments, law, largest)
        sizes = np.array([each["size"] for batch in loaded.batches for each in batch["items"]])
        costs = live_costs(table, alone, loaded)
    if costs is not None:
        table = costs.table

    def scenarios(requests: int, rate: float | None, seeds: int) -> list[Scenario]:
        arrivals = [
            _arrivals(arguments, law, requests, rate, arguments.seed + seed)
            for seed in range(seeds)
        ]
        built = [
            Scenario.build(
                each,
                TableProfile(table, int(sizes.mean()) if table.sizes else None),
                lengths=_lengths(sizes, table, each, arguments.seed + seed),
                max_rows=largest,
                seed=seed,
                noise=Noise(0.02),
                workers=config.workers,
                max_queue=config.max_queue,
            )
            for seed, each in enumerate(arrivals)
        ]
        return built if costs is None else [costs.applied(each) for each in built]

    tried: list[Scored] = []
    thorough = scenarios(_THOROUGH, arguments.rate, _SEEDS)
    settings = sum(1 for _ in tuning.grid(largest))
    with tqdm(total=settings, desc="simulating", unit="setting", leave=False, disable=None) as bar:
        quick = scenarios(_QUICK, arguments.rate, 1)

        def note(each: Scored) -> None:
            tried.append(each)
            bar.update()

        finalists = tuning.best_of(largest, quick, thorough, note)
    default = tuning.scored(TunedSetting(largest), thorough)
    best = min([default, *finalists], key=lambda each: each.rank)
    holds = None
    if arguments.p99_ms is not None:
        limit_s = arguments.p99_ms / 1e3
        chosen = best if _pays(best, default) else default

        def passes(rate: float) -> bool:
            score = tuning.scored(chosen.setting, scenarios(_QUICK, rate, 1))
            return score.lost < 1e-3 and score.p99_s <= limit_s

        holds = tuning.highest_rate(passes, arguments.rate)
    live = {} if arguments.no_verify else _tried(arguments, law, default.setting, best.setting)
    return Findings(default, best, holds, live, tried)


def _arrivals(
    arguments: argparse.Namespace, law: ArrivalLaw, requests: int, rate: float | None, seed: int
) -> Times | ClosedLoop:
    if rate is not None:
        return law.due(rate, requests / rate, seed)
    rng = np.random.default_rng([seed, 0])
    return workload.closed_loop(arguments.concurrency[0], 0.0, requests, rng, "constant")


def _seen(arguments: argparse.Namespace, law: ArrivalLaw, largest: int) -> tuple[Look, Look]:
    command = [arguments.target, *_model_flags(arguments), *TunedSetting(largest).as_flags()]
    with served([*command, "--admin-without-key"]) as url, _driver(arguments, url) as driver:
        rate = arguments.rate
        due = law.due(rate, _LOOK_S, arguments.seed) if rate else arguments.concurrency[0]
        return look(driver, url, due)


def look(driver: Driver, url: str, due: Times | int) -> tuple[Look, Look]:
    """At a server that has just started: with one caller alone, and under the load (when requests
    are due, or how many connections wait for their answers)."""
    remote = RemoteServer(Address.parse(url))

    def batches(since: int) -> list[dict[str, Any]]:
        page = remote.json("/admin/explain", has="batches", since=since, limit=_MOST_BATCHES)
        found: list[dict[str, Any]] = page["batches"]
        return found

    alone = Look(driver.closed_loop(1, _ALONE_S).latencies_s, batches(0))
    loaded = driver.closed_loop(due, _LOOK_S) if isinstance(due, int) else driver.open_loop(due)
    since = max((each["number"] for each in alone.batches), default=0)
    return alone, Look(loaded.latencies_s, batches(since))


def _lengths(
    sizes: Sizes, table: CostTable, arrivals: Times | ClosedLoop, seed: int
) -> Lengths | None:
    if not table.sizes:
        return None
    rng = np.random.default_rng([seed, 4])
    requests = arrivals.requests if isinstance(arrivals, ClosedLoop) else len(arrivals)
    return Lengths(rng.choice(sizes, requests), TableProfile(table))


def _law(arguments: argparse.Namespace) -> ArrivalLaw:
    spec: flags.ArrivalSpec | None = arguments.arrivals
    if spec is None:
        return ArrivalLaw("poisson")
    if spec.clients or spec.rate_rps is not None:
        raise ConfigError("names a law without a rate: --rate has it", field="--arrivals")
    trace = None if spec.file is None else traces.read_trace(spec.file)
    return ArrivalLaw(spec.kind, spec.options, trace)


# ---- trying


def _tried(
    arguments: argparse.Namespace, law: ArrivalLaw, default: TunedSetting, best: TunedSetting
) -> dict[str, list[Point]]:
    """Both on servers of their own, in turns; only one runs at a time."""
    names = {"default": default} if best == default else {"default": default, "best": best}
    found: dict[str, list[Point]] = {name: [] for name in names}
    for number in range(_ROUNDS):
        for name in list(names)[:: -1 if number % 2 else 1]:
            command = [arguments.target, *_model_flags(arguments), *names[name].as_flags()]
            with served(command) as url:
                found[name].append(_measured(arguments, law, url, number))
    if best == default:
        found["best"] = found["default"]
    return found


def _model_flags(arguments: argparse.Namespace) -> list[str]:
    """What was typed about the model, for the server too; not the batch size, which is tuned."""
    typed: list[str] = []
    for name in _FLAGS[1:]:
        flag = f"--{name}"
        for number, text in enumerate(arguments.typed):
            if text == flag:
                typed += arguments.typed[number : number + 2]
            elif text.startswith(f"{flag}="):
                typed.append(text)
    return typed


def _measured(arguments: argparse.Namespace, law: ArrivalLaw, url: str, seed: int) -> Point:
    with _driver(arguments, url) as driver:
        bench = Bench(driver, law, Timing(arguments.seconds or _LIVE_S, 1.0, 30.0), url=url)
        if arguments.rate is None:
            return bench.with_connections(arguments.concurrency[0])
        return bench.at_rate(arguments.rate, seed=arguments.seed + seed)


@contextmanager
def _driver(arguments: argparse.Namespace, url: str) -> Iterator[Driver]:
    """It sends the samples, or values made from the model's signature."""
    address = Address.parse(url)
    bodies = () if arguments.samples is None else read_bodies(arguments.samples)
    target = find_target(RemoteServer(address), Wanted(seed=arguments.seed, bodies=bodies))
    with Driver(opener(address), target.exchanges) as driver:
        driver.try_once()
        yield driver


# ---- telling


def _load_of(arguments: argparse.Namespace) -> str:
    if arguments.rate:
        return f"{arguments.rate:g}/s"
    return f"{arguments.concurrency[0]} connections"


def _told(arguments: argparse.Namespace, config: "ModelConfig", found: Findings) -> str:
    lines = [f"{config.name} at {_load_of(arguments)}", ""]
    rows = [["setting", "simulated p99 ms", "mean", "lost", "live p99 ms"]]
    for name, each in (("default", found.default), ("best", found.best)):
        live = f"{found.live_p99_s(name) * 1e3:.3g}" if found.live else "–"
        cells = [f"{each.p99_s * 1e3:.3g}", f"{each.mean_s * 1e3:.3g}", f"{each.lost:.1%}", live]
        rows.append([f"{name}: {each.setting}", *cells])
    lines += [*aligned(rows), ""]
    if found.has_gain:
        lines += ["set:", *(f"  {each}" for each in found.best.setting.as_toml())]
    else:
        lines.append("leave the default: no setting is better by 5 % and keeps that on a server")
    if found.holds_up_to_rps is not None:
        lines.append(f"p99 ≤ {arguments.p99_ms:g} ms holds up to {found.holds_up_to_rps:.4g}/s")
    return "\n".join([*lines, *why_not_valid(found.live)])


def why_not_valid(live: Mapping[str, list[Point]]) -> list[str]:
    """A line for each kind of fault of each setting that was tried: its figures differ by run."""
    lines = {
        (name, re.sub(r"\d+", "", fault)): f"not a valid live run ({name}): {fault}"
        for name, points in live.items()
        if name == "default" or points is not live["default"]
        for point in reversed(points)
        for fault in point.summary.faults
    }
    return list(lines.values())


def _to_json(found: Findings) -> dict[str, Any]:
    def figures(name: str, each: Scored) -> dict[str, Any]:
        live = None
        if found.live and np.isfinite(found.live_p99_s(name)):
            live = round(found.live_p99_s(name) * 1e3, 4)
        return {
            "max_batch_size": each.setting.max_batch_size,
            "window_ms": each.setting.window_ms,
            "simulated_p99_ms": round(each.p99_s * 1e3, 4),
            "simulated_mean_ms": round(each.mean_s * 1e3, 4),
            "lost_share": round(each.lost, 6),
            "live_p99_ms": live,
            "live_is_valid": all(p.summary.is_valid for p in found.live.get(name, [])),
        }

    return {
        "default": figures("default", found.default),
        "best": figures("best", found.best),
        "gain": found.has_gain,
        "holds_up_to_rps": found.holds_up_to_rps,
    }
