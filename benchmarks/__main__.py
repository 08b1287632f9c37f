"""`python -m benchmarks [name …] [--quick] [--write]`: runs, prints, and keeps the figures.

`python -m benchmarks.lab` does the same with those of single parts."""

import argparse
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from benchmarks import (
    ablation,
    attacks,
    bench_command,
    closed_http,
    decisions,
    fairness,
    fleets,
    grid,
    optimum,
    overhead,
    pool_slo,
    scheduling,
    serving,
    tool_calls,
    tune_command,
)
from benchmarks.peers import http_beside_engine
from benchmarks.peers import run as peers
from benchmarks.report import Benchmark, Report, machine, machine_in_short

BENCHMARKS: dict[str, Benchmark] = {
    **scheduling.BENCHMARKS,
    **optimum.BENCHMARKS,
    **ablation.BENCHMARKS,
    **grid.BENCHMARKS,
    **pool_slo.BENCHMARKS,
    **fleets.BENCHMARKS,
    **overhead.BENCHMARKS,
    **decisions.BENCHMARKS,
    **serving.BENCHMARKS,
    **closed_http.BENCHMARKS,
    **bench_command.BENCHMARKS,
    **fairness.BENCHMARKS,
    **tune_command.BENCHMARKS,
    **attacks.BENCHMARKS,
    **peers.BENCHMARKS,
    **http_beside_engine.BENCHMARKS,
    **attacks.ON_DEMAND,
    **tool_calls.BENCHMARKS,
}
# They need an environment of their own, `.venv-llm`.
ON_DEMAND = {
    *peers.BENCHMARKS,
    *http_beside_engine.BENCHMARKS,
    *attacks.ON_DEMAND,
    *tool_calls.BENCHMARKS,
}
RESULTS = Path(__file__).with_name("RESULTS.md")


def keep_section(name: str, report: Report, how: str) -> None:
    """Replace the benchmark's own section of RESULTS.md, or add it."""
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    section = start + report.to_markdown(report.kept) + how + end
    old = RESULTS.read_text() if RESULTS.exists() else "# Results\n"
    if start in old:
        before, rest = old.split(start)
        RESULTS.write_text(before + section + rest.split(end)[1])
    else:
        RESULTS.write_text(f"{old}\n{section}")


def keep_rows(name: str, report: Report, _: str) -> None:
    """Replace the rows that name the benchmark, or add them to the last table."""
    lines = RESULTS.read_text().splitlines()
    old = [line for line in lines if f"| `{name}`, " in line]
    place = lines.index(old[0]) if old else len(lines)
    kept = [line for line in lines if line not in old]
    kept[place:place] = report.to_rows(f"`{name}`, {machine_in_short()}")
    RESULTS.write_text("\n".join(kept) + "\n")


def main(
    command: str = "benchmarks",
    benchmarks: Mapping[str, Benchmark] = BENCHMARKS,
    on_demand: Collection[str] = frozenset(ON_DEMAND),
    keep: Callable[[str, Report, str], None] = keep_section,
) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {command}", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(benchmarks))
    parser.add_argument("--quick", action="store_true", help="fewer requests and repeats")
    parser.add_argument("--seeds", type=int, help="grid: samples of every point; default: 3")
    parser.add_argument("--write", action="store_true", help=f"also into {RESULTS.name}")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in benchmarks]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}; there are {', '.join(benchmarks)}")
    missed = 0
    for name in arguments.names or [each for each in benchmarks if each not in on_demand]:
        started = time.perf_counter()
        if name == "grid":
            report = grid.grid(arguments.quick, arguments.seeds)
        else:
            report = benchmarks[name](arguments.quick)
        missed += sum(not bar.reached for bar in report.bars)
        took = f"{time.perf_counter() - started:.0f} s"
        how = f"- `python -m {command} {name}`, {took}; {machine()}\n"
        print(report.to_markdown() + how, flush=True)
        if arguments.write:
            keep(name, report, how)
    print(f"{missed} figures not reached" if missed else "every figure reached")
    return 0


if __name__ == "__main__":
    sys.exit(main())
