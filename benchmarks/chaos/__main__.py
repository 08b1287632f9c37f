"""`python -m benchmarks.chaos [--seed N] [--seconds S | --soak S]`: exits 1 if anything broke."""

import argparse
import sys
from pathlib import Path

from benchmarks.chaos.report import lines_of
from benchmarks.chaos.run import run
from benchmarks.chaos.scenario import plan


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="decides requests and faults")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--soak", type=float, help="run for this many seconds: does anything grow?")
    parser.add_argument("--log", type=Path, help="keep the server's log in this file")
    arguments = parser.parse_args()
    seconds = arguments.soak or arguments.seconds
    surge_s = min(10.0, seconds / 6)
    done = run(plan(arguments.seed, seconds, surge_s=surge_s), samples=arguments.soak is not None)
    if arguments.log is not None:
        arguments.log.write_text("".join(done.log))
    print("\n".join(lines_of(done)), flush=True)
    return 1 if done.broken else 0


if __name__ == "__main__":
    sys.exit(main())
