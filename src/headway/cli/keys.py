"""`headway keys`: makes API keys, and lists them."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from headway.cli.commands import Commands
from headway.errors import ConfigError

_NEW = """\
Makes a key of 192 random bits. Give the key to its user: it is shown only now. The lines below
it go into the file of `headway serve --keys-file`. They hold its hash, not the key.

  headway keys new --tenant acme --requests-per-s 100 --file keys.toml
"""


def add_parser(commands: Commands) -> None:
    parser = commands.add_parser(
        "keys", help="make API keys, list them", description="Make and list API keys."
    )
    kinds: Commands = parser.add_subparsers(
        title="what", metavar="WHAT", required=True, parser_class=type(parser)
    )
    _add_new(kinds)
    listing = kinds.add_parser(
        "list",
        help="list the keys of a file",
        description="Lists the keys of a file: ids and rights, nothing secret.",
    )
    listing.add_argument("file", metavar="FILE", help="a keys.toml")
    listing.add_argument("--json", action="store_true", help="for programs: one JSON list")
    listing.set_defaults(run=run_list)


def _add_new(kinds: Commands) -> None:
    from headway.config import KeyConfig
    from headway.flags import described

    parser = kinds.add_parser(
        "new", usage="%(prog)s --tenant TEXT [options]", help="make a key", description=_NEW
    )
    about = described(KeyConfig)
    parser.add_argument("--tenant", required=True, metavar="TEXT", help=about["tenant"])
    parser.add_argument("--id", metavar="TEXT", help=f"{about['id']} (default: the tenant)")
    parser.add_argument("--rights", default="infer", metavar="TEXT,TEXT", help=about["rights"])
    parser.add_argument("--models", default="", metavar="TEXT,TEXT", help=about["models"])
    for name, kind in (
        ("weight", float),
        ("requests_per_s", float),
        ("rows_per_s", float),
        ("concurrent", int),
        ("tokens_per_minute", float),
    ):
        metavar = "N" if kind is int else "X"
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, dest=name, type=kind, metavar=metavar, help=about[name])
    parser.add_argument("--file", metavar="FILE", help="append the lines to this file")
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")
    parser.set_defaults(run=run_new)


def run_new(arguments: argparse.Namespace) -> int:
    from headway.config import KeyConfig, converted
    from headway.server.auth.keys import new_key

    made = new_key()
    given = {
        "id": arguments.id or arguments.tenant,
        "hash": made.hash,
        "tenant": arguments.tenant,
        "rights": _listed(arguments.rights),
        "models": _listed(arguments.models) or None,
        "weight": arguments.weight,
        "requests_per_s": arguments.requests_per_s,
        "rows_per_s": arguments.rows_per_s,
        "concurrent": arguments.concurrent,
        "tokens_per_minute": arguments.tokens_per_minute,
    }
    table = {name: value for name, value in given.items() if value is not None}
    key = converted(KeyConfig, table, "")
    stanza = stanza_of(table)
    if arguments.file:
        _append(Path(arguments.file), key, stanza)
    if arguments.json:
        print(json.dumps({"key": made.key, **table}))
        return 0
    print(f"The key, shown only now:\n\n  {made.key}\n")
    if arguments.file:
        print(f"{arguments.file} has its hash; a running server reads it again on SIGHUP.")
    else:
        print(f"For keys.toml:\n\n{stanza}")
    return 0


def stanza_of(table: dict[str, Any]) -> str:
    """The text of one `[[keys]]` table. JSON's texts, numbers and lists are valid TOML, too."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in table.items()]
    return "\n".join(["[[keys]]", *lines, ""])


def _append(path: Path, key: Any, stanza: str) -> None:
    """Append a key to the file. If this creates it, only its owner may read it."""
    from headway.config import check_keys, keys_in

    known = keys_in(path) if path.exists() else ()
    check_keys((*known, key))
    before = path.read_text() if path.exists() else ""
    gap = "" if not before else "\n" if before.endswith("\n") else "\n\n"
    try:
        path.touch(mode=0o600)
        with path.open("a") as file:
            file.write(gap + stanza)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error


def run_list(arguments: argparse.Namespace) -> int:
    import msgspec

    from headway.config import keys_in

    keys = keys_in(Path(arguments.file))
    if arguments.json:
        json.dump(msgspec.to_builtins(keys), sys.stdout, indent=2)
        print()
        return 0
    for key in keys:
        limits = [
            f"{key.requests_per_s:g} requests/s" if key.requests_per_s else "",
            f"{key.rows_per_s:g} rows/s" if key.rows_per_s else "",
            f"{key.concurrent} at once" if key.concurrent else "",
            f"{key.tokens_per_minute:g} tokens/min" if key.tokens_per_minute else "",
        ]
        quotas = ", ".join(filter(None, limits)) or "no quota"
        models = ", ".join(key.models) or "all models"
        print(
            f"{key.id:<20} {key.tenant} ×{key.weight:g}; {'+'.join(key.rights)}; {models}; {quotas}"
        )
    return 0


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
