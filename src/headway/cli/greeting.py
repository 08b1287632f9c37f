"""The message of `headway serve` once it listens: lines to copy that work."""

import json
import os
import shlex
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from headway.config import Config, keys_of
from headway.core.lifecycle.versions import NOT_CHOSEN
from headway.hosting.registry import Registry, ServedModel
from headway.server.service.examples import example_of

if TYPE_CHECKING:
    from headway.server.run import Addresses

_KEY = '-H "Authorization: Bearer $KEY" '


def announcing(config: Config) -> "Callable[[Addresses, Registry], None]":
    """Prints the greeting, once everything is ready."""

    def announce(addresses: "Addresses", registry: Registry) -> None:
        words = greeting(
            registry,
            addresses.http,
            addresses.grpc,
            has_keys=bool(keys_of(config)),
            admin_without_key=config.server.admin_without_key,
        )
        try:
            print(words, flush=True)
        except OSError:  # a full disk, or a closed pipe: the server runs all the same
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left to print

    return announce


def greeting(
    registry: Registry,
    url: str,
    grpc_address: str | None,
    *,
    has_keys: bool = False,
    admin_without_key: bool = False,
) -> str:
    """The addresses, and for the first model a call with curl and, where it embeds, with openai.

    With keys, the lines work once the reader has put a key into $KEY.
    """
    lines = [f"Serving {', '.join(registry.names()) or 'no model yet'}", f"  HTTP  {url}"]
    lines.append(f"  docs  {url}/docs")
    lines.append(f"  live  {url}/dashboard")
    if grpc_address is not None:
        lines.append(f"  gRPC  {grpc_address}")
    for entry in registry.index():
        if entry.state == "UNAVAILABLE" and entry.reason != NOT_CHOSEN:
            called = f"{entry.name} {entry.version}".rstrip()
            lines.append(f"  not served: {called}: {entry.reason}")
    for model in registry.models()[:1]:
        lines += ["", "Try it:", *_tries(model, url, has_keys=has_keys)]
    if admin_without_key:
        lines += ["", "Every client that reaches it may load, unload and drain, without a key."]
    lines += ["", "Ctrl-C stops: running requests are finished, new ones refused."]
    return "\n".join(lines)


def _tries(model: ServedModel, url: str, *, has_keys: bool) -> list[str]:
    lines = [f"  {_curl(model, url, _KEY if has_keys else '')}"]
    if _takes_any_json(model):
        lines.append("  (INPUT: one value as JSON; the model has no type hints that say which)")
    if model.language is not None and model.language.text.takes_chats:
        lines.append(f"  or talk to it: {url}/chat")
    if _embeds(model):
        lines.append(f"  {_openai(model, url, '$KEY' if has_keys else 'any')}")
    return lines


def _curl(model: ServedModel, url: str, key: str) -> str:
    if model.language is not None:
        path, prompt = "completions", '"prompt": "Once upon a time"'
        if model.language.text.takes_chats:
            path = "chat/completions"
            prompt = '"messages": [{"role": "user", "content": "Hello!"}]'
        body = f'{{"model": "{model.name}", {prompt}, "max_tokens": 64, "stream": true}}'
        return f"curl -N {key}{url}/v1/{path} -d '{body}'"
    flag = "-N " if model.streams else ""
    return f"curl {flag}{key}{url}/v1/predict/{model.name} -d {shlex.quote(_example(model))}"


def _openai(model: ServedModel, url: str, key: str) -> str:
    call = f"print(OpenAI().embeddings.create(model='{model.name}', input='hello').usage)"
    return (
        f"OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={key} "
        f'python -c "from openai import OpenAI; {call}"'
    )


def _example(model: ServedModel) -> str:
    """An example value as JSON; if the model takes any JSON, a placeholder."""
    if _takes_any_json(model):
        return "INPUT"
    return json.dumps(example_of(model.json_schemas()[0]))


def _takes_any_json(model: ServedModel) -> bool:
    """Whether it takes any JSON, or an object whose fields are unknown."""
    schema = model.json_schemas()[0]
    return example_of(schema) in (None, {}) and not schema.get("properties")


def _embeds(model: ServedModel) -> bool:
    outputs = model.outputs
    return (
        [each.dtype for each in model.inputs] == ["object"]
        and [each.dtype for each in outputs] == ["float32"]
        and len(outputs[0].shape) == 2
    )
