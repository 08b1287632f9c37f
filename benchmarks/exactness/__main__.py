"""Runs the cases, prints a line for each group; exits 1 where one is neither exact nor refused."""

import argparse
import collections
import importlib
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from benchmarks.exactness.cases import Case, Verdict, is_right, verdict_by_name

# A module each, with `cases() -> list[Case]`.
GROUPS = ("decoders", "gguf", "texts", "encoders", "arrays")
_CASES = 50  # of a process


def main() -> int:
    options = _options()
    failed = 0
    for group in options.groups or GROUPS:
        began = time.perf_counter()
        cases = _cases(group, is_short=options.short, name=options.case)
        verdicts = _run(group, cases, options.processes)
        for case, verdict in zip(cases, verdicts, strict=True):
            if options.verbose or not is_right(case, verdict):
                print(f"  {case.name}: {verdict.outcome} {verdict.detail}"[:400])
        wrong = sum(not is_right(*pair) for pair in zip(cases, verdicts, strict=True))
        failed += wrong
        counts = collections.Counter(verdict.outcome for verdict in verdicts)
        parts = ", ".join(
            f"{counts[kind]} {kind}" for kind in ("exact", "refused", "wrong", "crash")
        )
        seconds = time.perf_counter() - began
        print(f"{group}: {len(cases)} cases: {parts}; {wrong} not as they must be; {seconds:.0f} s")
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exactness", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="group", help=", ".join(GROUPS))
    parser.add_argument("--short", action="store_true", help="the cases that CI runs")
    parser.add_argument("--case", help="only cases with this in their name")
    parser.add_argument("--verbose", action="store_true", help="a line for each case")
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


def _cases(group: str, *, is_short: bool, name: str | None) -> list[Case]:
    found: list[Case] = importlib.import_module(f"benchmarks.exactness.{group}").cases()
    return [
        case
        for case in found
        if (case.is_short or not is_short) and (name is None or name in case.name)
    ]


def _run(group: str, cases: list[Case], processes: int) -> list[Verdict]:
    """In processes of their own, some cases each: what a library leaves behind ends with them."""
    names = [case.name for case in cases]
    found: dict[str, Verdict] = {}
    for first in range(0, len(names), _CASES * processes):
        found |= _together(group, names[first : first + _CASES * processes], processes)
    for name in names:  # a process that died took its neighbours' cases with it: each by itself
        if name not in found:
            found |= {name: Verdict("crash", "its process died"), **_together(group, [name], 1)}
    return [found[name] for name in names]


def _together(group: str, names: list[str], processes: int) -> dict[str, Verdict]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context) as pool:
        running = {name: pool.submit(verdict_by_name, group, name) for name in names}
        return {name: each.result() for name, each in running.items() if not each.exception()}


if __name__ == "__main__":
    sys.exit(main())
