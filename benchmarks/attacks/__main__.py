"""One attack, or a few, by name: `python -m benchmarks.attacks "unread answers" [--stack mounted]`.

It prints what honest clients saw, beside the calm figures of the same server.
"""

import argparse

from benchmarks.attacks.run import one_line_each


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks", description=__doc__)
    parser.add_argument("names", nargs="+", metavar="name")
    parser.add_argument("--stack", default="headway", choices=("headway", "mounted"))
    parser.add_argument("--key", default="both", choices=("both", "no", "yes"))
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    keys = {"both": (False, True), "no": (False,), "yes": (True,)}[arguments.key]
    for line in one_line_each(arguments.names * arguments.rounds, arguments.stack, keys):
        print(*line, sep=" | ", flush=True)


if __name__ == "__main__":
    main()
