"""Runs the cases, prints a line for each group; exits 1 where one is neither exact nor refused."""

import argparse
import collections
import importlib
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.exactness.cases import Case, Verdict, is_right, verdict_of

# A module each, with `cases() -> list[Case]`.
GROUPS = ("decoders", "gguf", "texts", "encoders", "arrays")


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
    """In processes of their own, a few cases each: what a library leaves behind ends with them."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, maxtasksperchild=40) as pool:
        return pool.map(_one, [(group, case.name) for case in cases], chunksize=1)


def _one(which: tuple[str, str]) -> Verdict:
    group, name = which
    case = next(
        case
        for case in importlib.import_module(f"benchmarks.exactness.{group}").cases()
        if case.name == name
    )
    with tempfile.TemporaryDirectory() as folder:
        return verdict_of(case, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
