"""`make faults`: every seed's trouble, and a day of it, on virtual time. Prints the sums."""

import argparse
import gc
import logging
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from generation_world import GenerationWorld
from generation_world import Held as GenerationHeld
from world import Held, Ledger, LongWorld, World

CHUNK = 50
GROWTH = 1.02  # of all memory blocks, from the second look to the last


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--hours", type=float, default=24.0, help="of virtual time")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    broken = _run_seeds(options.first, options.seeds, options.processes)
    grown = _run_long(options.hours) if options.hours else False
    grown |= _run_generation(options.first, options.hours) if options.hours else False
    return 1 if broken or grown else 0


def _run_seeds(first: int, count: int, processes: int) -> int:
    total, broken = Ledger(), 0
    chunks = [
        range(at, min(at + CHUNK, first + count)) for at in range(first, first + count, CHUNK)
    ]
    with ProcessPoolExecutor(processes) as pool:
        for ledger, wrong in pool.map(_run_chunk, chunks):
            total.add(ledger)
            for line in wrong:
                broken += 1
                print(line)
    print(f"{count} seeds, {broken} with an invariant broken")
    _print_table("requests", total.outcomes)
    _print_table("faults from outside", total.faults)
    return broken


def _run_chunk(seeds: range) -> tuple[Ledger, list[str]]:
    logging.disable(logging.CRITICAL)
    gc.freeze()  # where memory runs out, garbage is collected: ours is not what is looked for
    total, wrong = Ledger(), []
    for seed in seeds:
        try:
            total.add(World(seed).run())
        except Exception as error:  # noqa: BLE001  whatever it is, the other seeds run too
            wrong.append(f"seed {seed}: {type(error).__name__}: {error}")
    return total, wrong


def _run_long(hours: float) -> bool:
    world = LongWorld(0, hours=hours)
    ledger = world.run()
    print(f"{hours:g} hours of virtual time, {sum(ledger.outcomes.values())} requests")
    _print_table("faults from outside", ledger.faults)
    return _has_grown(world.held)


def _run_generation(seed: int, hours: float) -> bool:
    world = GenerationWorld(seed, hours=hours)
    world.run()
    print(f"{hours:g} hours of virtual time, a language model")
    _print_table("answers, and engines", world.outcomes)
    return _has_grown(world.held)


def _has_grown(held: list[Held] | list[GenerationHeld]) -> bool:
    print("  hour   blocks  objects  waiting")
    for each in held:
        print(f"  {each.hours:4.1f} {each.blocks:8d} {each.objects:8d} {each.waiting:8d}")
    early, late = held[1], held[-1]
    grown = late.blocks > GROWTH * early.blocks
    print(f"memory {'GREW' if grown else 'flat'}: {late.blocks / early.blocks - 1:+.2%} blocks")
    return grown


def _print_table(title: str, counts: "Counter[str] | Counter[tuple[str, str]]") -> None:
    print(f"  {title}: {sum(counts.values())}")
    for name, count in sorted(counts.items(), key=lambda each: (str(each[0]), each[1])):
        label = name if isinstance(name, str) else ", ".join(name)
        print(f"    {count:8d}  {label}")


if __name__ == "__main__":
    sys.exit(main())
