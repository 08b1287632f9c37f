"""CPU time a request, this checkout beside an older one: `python -m benchmarks.compare REVISION`.

Both servers run at once on one core; the load, on the other core, turns to one of them and then to
the other. So whatever the machine does meanwhile, both meet it alike. Each pair of turns gives one
ratio; the table has their mean (of logarithms) and its 95 % interval.
"""

import argparse
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lab.http_overload import CAPACITY, OVERLOAD
from benchmarks.report import Bar, Report, machine
from benchmarks.serving import Running, exchanges_for, grpc_load, serving
from headway.core.batching import scheduler

ROOT = Path(__file__).parents[1]
MOST = 1.05  # times the CPU time of the older commit
Turn = Callable[[Running, float], float]  # server, seconds -> answered requests


def _closed(connections: int) -> Turn:
    def turn(server: Running, seconds: float) -> float:
        with server.loaded(exchanges_for("zero")) as generator:
            return len(generator.closed(connections, seconds).latencies_s)

    return turn


def _poisson(rate: float) -> Turn:
    def turn(server: Running, seconds: float) -> float:
        with server.loaded(exchanges_for("zero")) as generator:
            done = len(generator.poisson(rate, seconds).latencies_s)
            generator.last_failure = ""  # in overload, refusals are what was asked for
            return done

    return turn


def _grpc(server: Running, seconds: float) -> float:
    return grpc_load(server.port, seconds) * seconds


@dataclass(frozen=True, slots=True)
class Case:
    title: str
    server: str
    turn: Turn


CASES = {
    "s1-64": Case("S1, 64 connections", "headway-zero", _closed(64)),
    "s1-256": Case("S1, 256 connections", "headway-zero", _closed(256)),
    "s2": Case("S2, Poisson at 3,000/s", "headway-sleep", _poisson(3000.0)),
    "s3": Case("S3, 64 calls in flight", "headway-grpc", _grpc),
    "o1": Case("O1, 3× the capacity", "headway-heavy", _poisson(OVERLOAD * CAPACITY)),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("revision", help="the older commit, e.g. v0.1.0")
    parser.add_argument("cases", nargs="*", metavar="case", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=30, help="pairs of turns (30)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of one turn (1.5)")
    options = parser.parse_args()
    unknown = sorted(set(options.cases) - set(CASES))
    if unknown:
        parser.error(f"unknown case {unknown[0]!r}; there are {', '.join(CASES)}")
    with _checkout(options.revision) as old:
        figures = {
            name: _ratios(CASES[name], old, options.rounds, options.seconds)
            for name in options.cases or CASES
        }
    print(_report(figures, options).to_markdown() + f"- {machine()}")
    return 0


@contextmanager
def _checkout(revision: str) -> Iterator[Path]:
    """The older commit in a folder of its own, for as long as it is measured."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "old")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(path), revision], check=True)
        try:
            if not scheduler.__file__.endswith(".py"):  # ours is compiled: like with like
                build = [sys.executable, "hatch_build.py", "--if-changed"]
                subprocess.run(build, cwd=path, check=True)
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], check=True)


@dataclass(frozen=True, slots=True)
class Figures:
    old_us: list[float]
    new_us: list[float]

    @property
    def interval(self) -> tuple[float, float, float]:
        """The mean ratio, and where it lies with 95 % certainty."""
        logs = [math.log(new / old) for old, new in zip(self.old_us, self.new_us, strict=True)]
        middle = statistics.fmean(logs)
        if len(logs) < 2:
            return math.exp(middle), 0.0, math.inf
        reach = _student_t(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
        return math.exp(middle), math.exp(middle - reach), math.exp(middle + reach)


def _student_t(freedom: int) -> float:
    """Of a two-sided 95 % interval, from the normal's quantile (Hill's expansion, two terms)."""
    z = statistics.NormalDist().inv_cdf(0.975)
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


def _ratios(case: Case, old: Path, rounds: int, seconds: float) -> Figures:
    found = Figures([], [])
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(case.server, root)) for root in (old, ROOT)]
        for server in servers:
            case.turn(server, 1.0)  # warm
        for number in range(rounds):
            spent: dict[str, float] = {}
            pairs = list(zip(("old", "new"), servers, strict=True))
            for which, server in pairs if number % 2 else pairs[::-1]:
                before = server.cpu_s
                done = case.turn(server, seconds)
                spent[which] = (server.cpu_s - before) / done * 1e6
            found.old_us.append(spent["old"])
            found.new_us.append(spent["new"])
            print(f"\r{case.title}: {number + 1} of {rounds}", end="", file=sys.stderr)
    print(file=sys.stderr)
    return found


def _report(figures: dict[str, Figures], options: argparse.Namespace) -> Report:
    rows: list[Sequence[object]] = []
    bars = []
    for name, each in figures.items():
        ratio, low, high = each.interval
        rows.append(
            [
                CASES[name].title,
                f"{statistics.median(each.old_us):.1f} µs",
                f"{statistics.median(each.new_us):.1f} µs",
                f"{ratio:.3f} ({low:.3f}–{high:.3f})",
            ]
        )
        bars.append(Bar(f"{CASES[name].title}: interval below {MOST}", f"{high:.3f}", high < MOST))
    return Report(
        f"CPU time a request beside {options.revision[:12]}",
        ["load", "before", "now", "now ÷ before (95 % interval)"],
        rows,
        bars,
        [
            f"{options.rounds} pairs of turns of {options.seconds:g} s; "
            "CPU time is the server process's, user and system"
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
