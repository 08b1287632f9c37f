"""Writes the references that the code itself knows best: `http.md`, `cli.md`, `headway-toml.md`.

    python docs/reference/generate.py

`tests/integration/documents/test_references.py` fails where one is not what this would write.
"""

import argparse
from pathlib import Path
from typing import Any

import msgspec

from headway.cli.main import _parser
from headway.config import (
    KeyConfig,
    ModelConfig,
    ServerConfig,
    default_of,
)
from headway.flags import described
from headway.hosting.registry import Registry
from headway.server.observing import Observing
from headway.server.run import routes_of
from headway.server.service.inference import Inference
from headway.server.service.routes import Route

HERE = Path(__file__).parent
NOTE = "<!-- Written by docs/reference/generate.py: change the code, then run it. -->"
TAGS = {
    "plain": "Plain JSON",
    "openai": "OpenAI, and reranking",
    "anthropic": "Anthropic",
    "huggingface": "Hugging Face and text-embeddings-inference",
    "cohere": "Cohere",
    "ollama": "Ollama",
    "v2": "KServe v2 and Triton",
    "v1": "KServe v1",
    "": "This server itself",
}


def references() -> dict[str, str]:
    """Each file's name and text."""
    return {"http.md": http(), "cli.md": cli(), "headway-toml.md": toml()}


# ---- HTTP


def http() -> str:
    lines = [
        "# HTTP routes",
        NOTE,
        "Where the server has keys, each route takes one with the right named here; `open` takes "
        "none, `read` any key. `/openapi.json` describes bodies and answers, `/docs` shows them.",
    ]
    found: dict[str, list[str]] = {tag: [] for tag in TAGS}
    for row in _routes():
        right = row.access.value
        found[row.tag].append(f"| `{row.method} {row.template}` | {right} | {row.summary} |")
    for tag, title in TAGS.items():
        lines += [f"## {title}", "| route | right | |\n|---|---|---|\n" + "\n".join(found[tag])]
    return _joined(lines)


def _routes() -> list[Route]:
    return routes_of(Inference(Registry())) + Observing(ServerConfig()).routes()


# ---- the command


def cli() -> str:
    parser = _parser()
    [commands] = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    lines = [
        "# The command",
        NOTE,
        "`headway COMMAND`. It exits with 0 when done, 1 when it failed, 2 where a flag or a file "
        "is wrong: one line on stderr says which.",
    ]
    helps = {each.dest: each.help or "" for each in commands._choices_actions}
    for name, command in commands.choices.items():
        lines += [f"## headway {name}", f"{_plain(helps[name])}.", *_options(command)]
    return _joined(lines)


def _options(command: argparse.ArgumentParser) -> list[str]:
    inner = [each for each in command._actions if isinstance(each, argparse._SubParsersAction)]
    rows = [
        f"| `{_named(each)}` | {_plain(each.help or '')} |"
        for each in command._actions
        if each.help != argparse.SUPPRESS
        and not isinstance(each, argparse._HelpAction | argparse._SubParsersAction)
    ]
    parts = ["| | |\n|---|---|\n" + "\n".join(rows)] if rows else []
    for action in inner:
        for name, below in action.choices.items():
            parts += [f"### {command.prog} {name}", *_options(below)]
    return parts


def _named(action: argparse.Action) -> str:
    if not action.option_strings:
        return str(action.metavar or action.dest)
    value = "" if action.nargs == 0 else f" {_metavar(action)}"
    return ", ".join(action.option_strings) + value.replace("|", "\\|")


def _metavar(action: argparse.Action) -> str:
    if action.metavar is not None:
        return str(action.metavar)
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper()


# ---- headway.toml


def toml() -> str:
    return _joined(
        [
            "# headway.toml",
            NOTE,
            "`headway serve headway.toml` reads it; `headway serve MODEL` needs none. A setting "
            "can also be typed as a flag (`--slo-ms 50`) or given in the environment "
            "(`HEADWAY_SLO_MS=50`). A flag overrides a variable, a variable the file, the file the "
            "default. An unknown setting, or a wrong value, stops the start with a message that "
            "names it. Paths and modules are looked for in the folder where the server is started.",
            '```toml\n[server]\nport = 9000\n\n[[models]]\nname = "embed"\ntarget = "minilm"\n'
            "slo_ms = 50\n```",
            "## [server]",
            _settings(ServerConfig),
            "## [[models]]",
            "One table for each model. `[every_model]` has the same settings, for all models of "
            "`server.repository`, whatever their `model.toml` says.",
            _settings(ModelConfig),
            "## [[keys]]",
            "`headway keys new` writes them. They may stand in a file of their own, `keys_file`.",
            _settings(KeyConfig),
        ]
    )


def _settings(struct: Any) -> str:
    texts = described(struct)
    rows = [
        f"| `{field.name}` | {_default(field)} | {_plain(texts[field.name])} |"
        for field in msgspec.structs.fields(struct)
    ]
    return "| setting | default | |\n|---|---|---|\n" + "\n".join(rows)


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "needed"
    value = default_of(field)
    if value in (None, {}, (), ""):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else _written(value)}`"


def _written(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{each}"' for each in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _plain(text: str) -> str:
    return text.replace("%%", "%").replace("|", "\\|").replace("\n", " ")


def _joined(parts: list[str]) -> str:
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    for name, text in references().items():
        (HERE / name).write_text(text)
