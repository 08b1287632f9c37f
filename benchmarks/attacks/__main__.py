"""One attack, or a few, by name: `python -m benchmarks.attacks "unread answers" [--stack mounted]`.

It prints what honest clients saw, beside the calm figures of the same server. `--all` tries
every one; where one is not refused, or an honest client was not served, it says so and ends with 1.
"""

import argparse
import sys

from benchmarks.attacks.run import names_of, one_line_each


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name")
    parser.add_argument("--all", action="store_true")
    stacks = ("headway", "mounted", "chat")
    parser.add_argument("--stack", default="headway", choices=stacks)
    parser.add_argument("--key", default="both", choices=("both", "no", "yes"))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.5, help="how long an attack goes on")
    told = "how long calm is measured before each attack; 0: in short stretches, once"
    parser.add_argument("--calm", type=float, default=0.0, metavar="SECONDS", help=told)
    arguments = parser.parse_args()
    keys = {"both": (False, True), "no": (False,), "yes": (True,)}[arguments.key]
    names = names_of(arguments.stack) if arguments.all else arguments.names
    if not names:
        parser.error("name an attack, or say --all")
    broken = 0
    names = names * arguments.rounds
    how_long = {"seconds": arguments.seconds, "calm_s": arguments.calm}
    for line, row in one_line_each(names, arguments.stack, keys, **how_long):
        mark = "" if line.holds else "BROKEN"
        broken += not line.holds
        print(*row, mark, *line.failures[:3], sep=" | ", flush=True)
    print(f"{broken} rows broken")
    sys.exit(broken > 0)


if __name__ == "__main__":
    main()
