"""`python -m benchmarks [name …] [--quick] [--write]`: runs, prints, and keeps the figures.

`python -m benchmarks.lab` does the same with those of single parts."""

import argparse
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from benchmarks import (
    ablation,
    attacks,
    closed_http,
    decisions,
    grid,
    optimum,
    overhead,
    pool_slo,
    scheduling,
    serving,
)
from benchmarks.peers import http_beside_engine
from benchmarks.peers import run as peers
from benchmarks.report import Benchmark, machine

BENCHMARKS: dict[str, Benchmark] = {
    **scheduling.BENCHMARKS,
    **optimum.BENCHMARKS,
    **ablation.BENCHMARKS,
    **grid.BENCHMARKS,
    **pool_slo.BENCHMARKS,
    **overhead.BENCHMARKS,
    **decisions.BENCHMARKS,
    **serving.BENCHMARKS,
    **closed_http.BENCHMARKS,
    **attacks.BENCHMARKS,
    **peers.BENCHMARKS,
    **http_beside_engine.BENCHMARKS,
    **attacks.ON_DEMAND,
}
# They need an environment of their own, `.venv-llm`.
ON_DEMAND = {*peers.BENCHMARKS, *http_beside_engine.BENCHMARKS, *attacks.ON_DEMAND}
RESULTS = Path(__file__).with_name("RESULTS.md")


def main(
    command: str = "benchmarks",
    benchmarks: Mapping[str, Benchmark] = BENCHMARKS,
    on_demand: Collection[str] = frozenset(ON_DEMAND),
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
        text = f"{report.to_markdown()}- `python -m {command} {name}`, {took}; {machine()}\n"
        print(text, flush=True)
        if arguments.write:
            keep(name, text)
    print(f"{missed} figures not reached" if missed else "every figure reached")
    return 0


def keep(name: str, text: str) -> None:
    """Replace the benchmark's own section of RESULTS.md, or add it."""
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    old = RESULTS.read_text() if RESULTS.exists() else "# Results\n"
    if start in old:
        before, rest = old.split(start)
        old = before + start + text + end + rest.split(end)[1]
    else:
        old += f"\n{start}{text}{end}"
    RESULTS.write_text(old)


if __name__ == "__main__":
    sys.exit(main())
