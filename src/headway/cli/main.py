"""The `headway` command: its sub-commands, its errors, its exit codes.

Exit codes: 0 done, 1 failed, 2 a flag or a file is wrong (one line on stderr says which).
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from headway.cli import demo, health, keys, mapping, models, serve, simulate
from headway.errors import ConfigError


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        parsed = _parser().parse_args(arguments)
        code: int = parsed.run(parsed)
        sys.stdout.flush()
    except ConfigError as error:
        print(f"headway: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `headway … | head`: whoever read us has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


class _Parser(argparse.ArgumentParser):
    """Mistakes are one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} ({self.prog} --help explains)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="headway", description="The batching brain for model inference.", allow_abbrev=False
    )
    commands: argparse._SubParsersAction[argparse.ArgumentParser] = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=_Parser
    )
    serve.add_parser(commands)
    mapping.add_parser(commands)
    models.add_parser(commands)
    keys.add_parser(commands)
    health.add_parser(commands)
    demo.add_parser(commands)
    simulate.add_parser(commands)
    return parser
