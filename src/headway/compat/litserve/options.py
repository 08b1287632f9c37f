"""Which of LitServe's options are obeyed, which change nothing here, and which are refused."""

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
    "loop": ("auto",),
    "workers_per_device": (1,),
}


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
