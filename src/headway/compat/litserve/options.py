"""LitServe's options: those that are obeyed, those that change nothing here, and those that are
refused."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from headway.errors import ConfigError

# What they tune is learned here, or has no counterpart that a caller could notice.
_IGNORED_OPTIONS = frozenset(
    [
        *("api_server_worker_type", "batch_timeout", "fast_queue", "generate_client_file"),
        *("log_level", "num_api_servers", "pretty_logs", "stream", "track_requests"),
    ]
)
# Of other options, the values that ask for what is served anyway.
_ACCEPTED_VALUES: Mapping[str, Sequence[Any]] = {
    "api_path": ("/predict",),
    "devices": (1, "auto"),
    "healthcheck_path": ("/health",),
    "info_path": ("/info",),
    "loop": ("auto",),
    "restart_workers": (True,),
    "shutdown_path": ("/shutdown",),
    "workers_per_device": (1,),
}
# Methods that LitServe calls and Headway does not, with what to use instead.
_MEMBERS: Mapping[str, str] = {
    "authorize": "keys of the server say who may call it: `--keys-file`, or HEADWAY_KEYS_FILE",
    "format_encoded_response": "encode_response makes the answer",
    "has_active_requests": "continuous batching is for language models",
    "has_capacity": "continuous batching is for language models",
    "health": "the server's health says whether the model is loaded and its workers live",
    "pre_setup": "setup runs once in each worker",
    "set_logger_queue": "metrics and events take the place of loggers",
}
# LitServe's own names that are not here, with what to use instead.
INSTEAD: Mapping[str, str] = {
    "Callback": "`headway.events` tells what happens",
    "LitSpec": "a model's type hints say which routes answer: docs/guides/clients.md",
    "Logger": _MEMBERS["set_logger_queue"],
    "OpenAIEmbeddingSpec": "a model from texts to vectors answers /v1/embeddings without it",
    "OpenAISpec": "`headway serve FOLDER` of a language model answers /v1/chat/completions",
}
_SETTINGS = ("api_path", "enable_async", "loop", "mcp", "spec")  # of a class, in place of options
_KEY = "LIT_SERVER_API_KEY"


def check_members(api: Any) -> None:
    """Check a class or an instance. Raises ConfigError for members that only LitServe would use."""
    for name, instead in _MEMBERS.items():
        if getattr(api, name, None) is not None:
            raise ConfigError(f"headway.compat.litserve does not call it; {instead}", field=name)
    check_options({name: getattr(api, name, None) for name in _SETTINGS})
    if os.environ.get(_KEY):
        raise ConfigError(
            f"{_KEY} is set, and headway.compat.litserve does not read it: the server would be "
            f"open to all; {_MEMBERS['authorize']}. Unset the variable to start without it",
            field=_KEY,
        )


def check_options(options: Mapping[str, Any]) -> None:
    """Raises ConfigError. `None` and `False` ask for nothing."""
    for name, value in options.items():
        asks = value is not None and value is not False
        if asks and name not in _IGNORED_OPTIONS and value not in _ACCEPTED_VALUES.get(name, ()):
            raise ConfigError(
                "this LitServe option is not supported; the guide 'From LitServe' "
                "(docs/guides/from-litserve.md) says what takes its place",
                field=name,
            )


def checked_size(rows: Any) -> int:
    if type(rows) is not int or rows < 1:
        raise ConfigError(
            f"a whole number of at least 1 is expected, not {rows!r}", field="max_batch_size"
        )
    return rows
