"""The `headway` command: its sub-commands, its errors, its exit codes.

Exit codes: 0 done, 1 failed, 2 a flag or a file is wrong (one line on stderr says which).
"""

import argparse
import importlib
import os
import platform
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from headway.cli.commands import Commands
from headway.errors import ConfigError, Unavailable, nearest
from headway.version import VERSION

# Each is a module with `add_parser`. Only the one that is typed is imported: a server needs no
# simulator, and a probe starts `headway health` every few seconds.
_COMMANDS = {
    "serve": "serve",
    "map": "mapping",
    "models": "models",
    "keys": "keys",
    "health": "health",
    "explain": "explain",
    "top": "top",
    "demo": "demo",
    "bench": "bench",
    "profile": "profile",
    "conformance": "conformance",
    "tune": "tune",
    "record": "record",
    "simulate": "simulate",
}
# Flags of vLLM, Triton, TorchServe, LitServe and uvicorn, which newcomers type.
_FIRST = "what is served comes first: headway serve NAME, file.py, ./folder or headway.toml"
_PEERS = {
    **dict.fromkeys(
        ("--model", "--model-path", "--model-repository", "--model-store", "--config"), _FIRST
    ),
    "--served-model-name": "here it is --name",
    "--http-port": "here it is --port",
    "--http-address": "here it is --host",
    "--metrics-port": "metrics are served on --port, at /metrics",
    "--api-key": "keys are made by: headway keys new",
    "--batch-timeout": "the wait is learned; the longest is --max-wait-ms",
    "--max-batch-delay": "the wait is learned; the longest is --max-wait-ms",
    "--timeout": "here it is --timeout-ms",
    "--max-model-len": "here it is --max-context",
    "--max-num-seqs": "here it is --max-sequences",
    "--max-num-batched-tokens": "here it is --step-tokens",
    "--gpu-memory-utilization": "the KV cache takes what is free; --kv-cache-gib sets it",
    "--kv-cache-memory-bytes": "here it is --kv-cache-gib",
    **dict.fromkeys(("--enable-lora", "--lora-modules"), "here it is --adapters NAME=FOLDER"),
    "--max-loras": "here it is --adapter-slots",
    "--max-lora-rank": "here it is --max-adapter-rank",
    "--enable-prefix-caching": "prefixes are always cached; --share-prefixes is between tenants",
    **dict.fromkeys(
        ("--tensor-parallel-size", "-tp", "--pipeline-parallel-size"),
        "a language model runs on one device; --device chooses it",
    ),
    "--trust-remote-code": "code that comes with a model is never run",
    "--model-control-mode": "--watch follows the folder; the repository routes load and unload",
    "--ssl-certfile": "here it is --tls-cert",
    "--ssl-keyfile": "here it is --tls-key",
    "--workers-per-device": "here it is --workers",
    "--num-prompts": "here it is --seconds: a load lasts a time, not a number of requests",
    "--request-rate": "of headway bench: --rate",
    "--max-concurrency": "of headway bench: --concurrency",
    **dict.fromkeys(("--base-url", "--url"), "the server's URL is given without a flag"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        typed = sys.argv[1:] if arguments is None else list(arguments)
        if not typed:
            _parser().print_help(sys.stderr)
            return 2
        parsed = _parser(typed[0]).parse_args(typed, argparse.Namespace(typed=typed))
        code: int = parsed.run(parsed)
        sys.stdout.flush()
    except ConfigError as error:
        print(f"headway: {error}", file=sys.stderr)
        return 2
    except Unavailable as error:  # of a server that was asked
        print(f"headway: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `headway … | head`: the reader has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


class _Parser(argparse.ArgumentParser):
    """Reports a mistake in one line with a likely correction, without the usage before it."""

    def __init__(self, *, description: str = "", **options: Any) -> None:
        if "\n" in description:  # it is laid out already
            options["formatter_class"] = argparse.RawDescriptionHelpFormatter
        super().__init__(description=description, allow_abbrev=False, **options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:  # here, not in the parser of all commands: it does not know their flags
            flags = [name for action in self._actions for name in action.option_strings]
            typed = [each.partition("=")[0] for each in unknown if each.startswith("-")]
            hints = [_hint(each, flags, is_only=len(typed) == 1) for each in typed]
            if not typed and self.prog.endswith(" serve"):
                hints = ["; several models stand in a headway.toml, each as [[models]]"]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{''.join(hints)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        wrong = re.search(
            r"invalid choice: '(?P<typed>[^']*)' \(choose from (?P<known>.*)\)", message
        )
        if wrong is not None:
            message += nearest(wrong["typed"], re.findall(r"[\w-]+", wrong["known"]))
        raise ConfigError(f"{message} ({self.prog} --help explains)")


def _hint(typed: str, flags: Sequence[str], *, is_only: bool) -> str:
    """A suggestion for the end of a message, with its flag if there are several."""
    meant = f"; {_PEERS[typed]}" if typed in _PEERS else nearest(typed, flags)
    return meant if is_only or not meant else f"; {typed}: {meant.removeprefix('; ')}"


def _parser(command: str = "") -> argparse.ArgumentParser:
    """The flags of one command, or of all if none has this name."""
    parser = _Parser(prog="headway", description="The batching brain for model inference.")
    parser.add_argument("--version", action="version", version=_version())
    commands: Commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=_Parser
    )
    for module in [_COMMANDS[command]] if command in _COMMANDS else _COMMANDS.values():
        importlib.import_module(f"headway.cli.{module}").add_parser(commands)
    return parser


def _version() -> str:
    return f"headway {VERSION} (Python {platform.python_version()})"
