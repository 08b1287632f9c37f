"""Closed loops with other think times than exponential ones: `auto` beside an older commit's.

    python -m benchmarks.thinking [COMMIT]

Think times are lognormal (σ 1), constant, or nearly constant but long at first, or a third of the
traffic is open: it comes from callers that are many and think for long, so their requests are
Poisson. Virtual time; same callers.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.optimum import Line
from benchmarks.report import Bar, Report, machine
from headway.core.policy import Firing
from headway.lab.simulate import Outcome, Scenario, simulate
from headway.lab.workload import ClosedLoop

ROOT = Path(__file__).parents[1]
SEEDS, REQUESTS = 3, 12_000
COUNTED = 0.1, 0.7  # of the answers: at the end, only callers with long think times are left
OPEN_THINK_S = 2.0  # of each caller whose requests are open traffic
POINTS = (
    *((Line(5, 0.05, 64), *each) for each in ((16, 5), (48, 1), (64, 1), (64, 2), (200, 10))),
    *((Line(20, 1, 64), *each) for each in ((8, 10), (64, 1), (64, 10))),
    *((Line(10, 0.1, 64), *each) for each in ((24, 3), (65, 1), (65, 10))),
    *((Line(1, 0.8, 32), *each) for each in ((24, 3), (64, 20))),
    *((Line(2, 0.3, 16), *each) for each in ((12, 1), (40, 5))),
)
LEAST = {"lognormal": 0.99, "a third open": 0.99, "constant": 0.97, "late once": 0.97}


def _loop(law: str, line: Line, clients: int, think_s: float, seed: int) -> ClosedLoop:
    rng = np.random.default_rng([seed, 29])
    if law == "constant":
        return ClosedLoop(clients, np.full(REQUESTS, think_s))
    if law == "late once":  # nearly constant; at the start, some are ten times as late
        think = think_s * rng.uniform(0.8, 1.2, REQUESTS)
        think[rng.integers(clients // 2, clients * 8, clients)] *= 10.0
        return ClosedLoop(clients, think)
    if law == "lognormal":
        return ClosedLoop(clients, think_s * rng.lognormal(-0.5, 1.0, REQUESTS))
    batch = min(clients, line.max_rows)
    loop_rps = clients / max(think_s + line.seconds[batch], line.seconds[batch] * clients / batch)
    others = round(loop_rps / 2 * OPEN_THINK_S)
    pace = np.full(clients + others, OPEN_THINK_S / think_s)
    pace[:clients] = 1.0
    return ClosedLoop(clients + others, rng.exponential(think_s, REQUESTS), pace)


def _rate_rps(outcome: Outcome) -> float:
    ends = np.sort(outcome.arrived_at + outcome.latencies_s)
    first, last = (int(share * len(ends)) for share in COUNTED)
    return float((last - first) / (ends[last] - ends[first]))


def measured() -> dict[str, float]:
    """Answers a second, by law and point: the geometric mean over the seeds."""
    found = {}
    for law in LEAST:
        for line, clients, think_ms in POINTS:
            rates = []
            for seed in range(SEEDS):
                loop = _loop(law, line, clients, think_ms / 1e3, seed)
                scenario = Scenario.build(
                    loop, line.profile, max_rows=line.max_rows, seed=seed, max_queue=1_000_000
                )
                rates.append(_rate_rps(simulate(scenario, scenario.policy(Firing.AUTO))))
            point = f"{line}: {clients} callers, {think_ms:g} ms"
            found[f"{law}|{point}"] = float(np.exp(np.mean(np.log(rates))))
    return found


def _of_commit(commit: str) -> Mapping[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        packed = subprocess.run(
            ["git", "archive", commit, "src"], cwd=ROOT, capture_output=True, check=True
        )
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.thinking", "--bare"],
            env={**os.environ, "PYTHONPATH": f"{folder}/src{os.pathsep}{ROOT}"},
            cwd=folder,
            capture_output=True,
            check=True,
        )
    return dict(json.loads(done.stdout))


def thinking(commit: str) -> Report:
    then, now = _of_commit(commit), measured()
    ratios = {key: now[key] / then[key] for key in now}
    rows, bars = [], []
    for law, least in LEAST.items():
        of_law = {key: ratio for key, ratio in ratios.items() if key.startswith(law)}
        worst = min(of_law, key=lambda key: of_law[key])
        bars.append(
            Bar(f"{law}: ≥ {least} × {commit}", f"{of_law[worst]:.3f}", of_law[worst] >= least)
        )
        mean = float(np.exp(np.mean(np.log(list(of_law.values())))))
        rows.append(
            [law, len(of_law), f"{mean:.3f}", f"{of_law[worst]:.3f}", worst.partition("|")[2]]
        )
    return Report(
        f"Closed loops with other think times: answers a second ÷ those of {commit}",
        ["think times", "points", "geometric mean", "worst", "where"],
        rows,
        bars,
        [f"{SEEDS} seeds of {REQUESTS:,} requests each; one worker"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.thinking", description=__doc__)
    parser.add_argument("commit", nargs="?", default="9f85faae")
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare:
        print(json.dumps(measured()))
    else:
        print(thinking(arguments.commit).to_markdown() + f"- {machine()}")


if __name__ == "__main__":
    main()
