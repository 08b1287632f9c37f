"""`python -m benchmarks [name …] [--quick] [--write]`: runs, prints, and keeps the figures."""

import argparse
import sys
import time
from pathlib import Path

from benchmarks import (
    attacks,
    chat_deciding,
    chat_front,
    chat_load,
    chat_right,
    client_calls,
    composing,
    decisions,
    faults,
    gpu,
    grid,
    http_overload,
    lengths,
    metrics,
    optimum,
    overhead,
    plain,
    repository,
    scheduling,
    serving,
    speech,
    streams,
    workers,
)
from benchmarks.peers import http_beside_engine
from benchmarks.peers import run as peers
from benchmarks.report import Benchmark, machine

BENCHMARKS: dict[str, Benchmark] = {
    **scheduling.BENCHMARKS,
    **optimum.BENCHMARKS,
    **grid.BENCHMARKS,
    **composing.BENCHMARKS,
    **overhead.BENCHMARKS,
    **decisions.BENCHMARKS,
    **serving.BENCHMARKS,
    **plain.BENCHMARKS,
    **repository.BENCHMARKS,
    **http_overload.BENCHMARKS,
    **metrics.BENCHMARKS,
    **attacks.BENCHMARKS,
    **client_calls.BENCHMARKS,
    **gpu.BENCHMARKS,
    **lengths.BENCHMARKS,
    **faults.BENCHMARKS,
    **workers.BENCHMARKS,
    **speech.BENCHMARKS,
    **streams.BENCHMARKS,
    **peers.BENCHMARKS,
    **http_beside_engine.BENCHMARKS,
    **chat_load.BENCHMARKS,
    **chat_deciding.BENCHMARKS,
    **chat_front.BENCHMARKS,
    **chat_right.BENCHMARKS,
    **attacks.ON_DEMAND,
}
# They need an environment of their own, `.venv-llm`.
ON_DEMAND = {
    *peers.BENCHMARKS,
    *http_beside_engine.BENCHMARKS,
    *chat_load.BENCHMARKS,
    *chat_front.BENCHMARKS,
    *chat_right.BENCHMARKS,
    *attacks.ON_DEMAND,
}
RESULTS = Path(__file__).with_name("RESULTS.md")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="fewer requests and repeats")
    parser.add_argument("--seeds", type=int, help="grid: samples of every point; default: 3")
    parser.add_argument("--write", action="store_true", help=f"also into {RESULTS.name}")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    missed = 0
    for name in arguments.names or [each for each in BENCHMARKS if each not in ON_DEMAND]:
        started = time.perf_counter()
        if name == "grid":
            report = grid.grid(arguments.quick, arguments.seeds)
        else:
            report = BENCHMARKS[name](arguments.quick)
        missed += sum(not bar.reached for bar in report.bars)
        text = report.to_markdown()
        took = (
            f"- `python -m benchmarks {name}`, {time.perf_counter() - started:.0f} s; {machine()}\n"
        )
        print(text + took, flush=True)
        if arguments.write:
            keep(name, text + took)
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
