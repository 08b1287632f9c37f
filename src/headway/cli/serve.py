"""`headway serve`: turns flags into a configuration, and runs the server."""

import argparse
import functools
import os
import re
import sys
import traceback
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.cli.commands import Commands
from headway.errors import ConfigError, HeadwayError
from headway.observe import logs

if TYPE_CHECKING:
    from headway.config import Config
    from headway.flags import Flag

_MOST_FILES = 65536
_DESCRIPTION = """\
Serves models over HTTP and gRPC to clients that already exist: KServe v2 / Triton, OpenAI, plain
JSON. Calls that arrive together share a batch; nothing needs tuning.

  headway serve                      the built-in text-embedding model
  headway serve app:Sentiment        a headway.Model of yours: class Sentiment in app.py
  headway serve app:predict          a function of yours, from a list to a list
  headway serve path/to/file.py      the only model in a file; file.py:Sentiment says which
  headway serve model.onnx           an ONNX file
  headway serve chat                 a small language model, and a page to talk to it
  headway serve model.gguf           a language model; so is a folder of safetensors
  headway serve org/name             a model of the Hugging Face hub
  headway serve headway.toml         several models, with all their settings
  headway serve ./models --watch     a folder of models; they are loaded and unloaded as it changes
"""
_EPILOGUE = """\
A setting can be given in three places, and the first of them wins: a flag (--slo-ms 50), a variable
(HEADWAY_SLO_MS=50), the file (slo_ms = 50). A flag or variable of a model applies to every model of
the file.
"""
# Every setting of ModelConfig and ServerConfig, as the help lists them.
FLAG_GROUPS = {
    "addresses": ("host", "port", "grpc_port", "load_port", "server_name", "shared_memory"),
    "how calls are batched": (
        *("max_batch_size", "max_wait_ms", "max_batch_cost", "slo_ms", "slo_percentile"),
        *("timeout_ms", "max_queue", "policy", "order", "tenants"),
        *("compose", "buckets", "pad_sizes", "batch_sizes", "dependent_rows"),
    ),
    "how the model is loaded and run": (
        *("aliases", "options", "load", "load_timeout_s", "unload_after_s", "warm_up", "warm_up_s"),
        *("worker", "workers", "pin", "worker_memory_mb", "execute_timeout_ms"),
        *("heartbeat_timeout_s", "max_restarts"),
    ),
    "language models only": (
        *("device", "dtype", "quantization", "max_context", "max_sequences", "step_tokens"),
        *("kv_cache_gib", "share_prefixes", "adapters", "adapter_folder", "adapter_slots"),
        *("max_adapters", "max_adapter_rank"),
    ),
    "a folder of models": ("repository", "strict_readiness", "watch", "watch_every_s", "cache_dir"),
    "keys, TLS and browsers": (
        *("keys_file", "api_keys", "admin_without_key"),
        *("tls_cert", "tls_key", "tls_client_ca", "cors_origins", "allowed_hosts"),
    ),
    "logs, metrics and traces": (
        *("log_level", "log_format", "access_log", "metrics", "tracing", "debug"),
    ),
    "limits on requests and connections": (
        *("max_body_bytes", "max_json_bytes", "max_held_bytes"),
        *("max_request_rows", "max_tensor_elements"),
        *("max_connections", "max_connections_per_address", "max_handshakes"),
        *("max_header_bytes", "header_timeout_s", "body_timeout_s", "write_timeout_s"),
        *("keep_alive_s", "stream_interval_s"),
    ),
    "stopping": ("drain_s", "stop_delay_s"),
}


def add_parser(commands: Commands) -> None:
    from headway.config import ModelConfig, ServerConfig
    from headway.flags import flags

    parser = commands.add_parser(
        "serve",
        usage="%(prog)s [MODEL] [options]",  # there are a hundred: they follow in groups
        help="serve models over HTTP and gRPC",
        description=_DESCRIPTION,
        epilog=_EPILOGUE,
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="MODEL",
        help="module:name or file.py:name (a class, an instance, a function), a .onnx, .pt2 or "
        ".gguf file, a name from `headway models` or of the hub, a .toml file, or a folder: of "
        "models, or of one transformers or diffusers model (default: minilm)",
    )
    parser.add_argument(
        "--name",
        metavar="TEXT",
        help="the model's name for clients; not with a .toml file or a folder of models (default: "
        "the name of its class or function; of its file, where only that is given)",
    )
    parser.add_argument(
        "--reload",
        action="store_true",
        help="for development: start again whenever a .py or .toml file here changes",
    )
    known = {flag.field: flag for struct in (ModelConfig, ServerConfig) for flag in flags(struct)}
    for title, fields in FLAG_GROUPS.items():
        group = parser.add_argument_group(title)
        for field in fields:
            add_flag(group, known[field])
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.reload:
        return _reload(arguments)
    sys.path.insert(0, str(Path.cwd()))  # `app:Model` is app.py here
    config = config_of(arguments, dict(os.environ))
    logs.configure(format=config.server.log_format, level=config.server.log_level)
    _allow_open_files()
    from headway.cli.greeting import announcing
    from headway.server.event_loop import run as run_loop
    from headway.server.run import check_grpc
    from headway.server.run import run as serve

    if arguments.grpc_port is not None and config.server.grpc_port >= 0:
        check_grpc()
    reread = functools.partial(config_of, arguments, dict(os.environ))
    try:
        run_loop(serve(config, announcing(config), reread=reread))
    except ConfigError:
        raise
    except HeadwayError as error:
        if error.__cause__ is not None and not isinstance(error.__cause__, HeadwayError):
            traceback.print_exception(error.__cause__)  # the model's own: where it happened
        print(f"headway: {error}", file=sys.stderr)
        return 1
    return 0


def _reload(arguments: argparse.Namespace) -> int:
    from headway.cli import source_watch

    target = arguments.target or ""
    if target and is_repository(target):
        raise ConfigError(
            f"{target} is a folder of models: --watch reloads those", field="--reload"
        )
    folders = [Path.cwd()]
    file = Path(target.partition(".py:")[0] + ".py") if ".py:" in target else Path(target)
    if file.is_file() and Path.cwd() not in file.resolve().parents:
        folders.append(file.resolve().parent)
    typed = [each for each in arguments.typed if each != "--reload"]
    return source_watch.run(typed, folders)


def config_of(arguments: argparse.Namespace, environment: dict[str, str]) -> "Config":
    """The whole configuration: flags before environment before file before defaults."""
    from headway.config import ModelConfig, ServerConfig, read
    from headway.flags import flags, resolve
    from headway.models.catalogue import DEFAULT

    target = arguments.target or DEFAULT
    where, base = target, {}
    if target.endswith(".toml"):
        base = read(Path(target))
        if arguments.name:
            raise ConfigError("the file already names its models", field="--name")
    elif is_repository(target):
        base = {"server": {"repository": target}}
        if arguments.name:
            raise ConfigError("models are named after their folders", field="--name")
    else:
        base = {"models": [{"name": arguments.name or name_for(target), "target": target}]}
    typed = {
        flag.field: value
        for struct in (ServerConfig, ModelConfig)
        for flag in flags(struct)
        if (value := getattr(arguments, flag.field)) is not None
    }
    config = resolve(base, where=where, environment=environment, typed=typed)
    if config.server.repository == target and not config.server.watch:
        _check_folder(Path(target))
    if not config.models and not config.server.repository:
        raise ConfigError(
            f'{target}: no model is named; add [[models]] with name = "…" and target = "…", or '
            'repository = "./folder" to [server]'
        )
    if config.server.watch and not config.server.repository:
        raise ConfigError(
            f"{target} is not a folder of models; while you write a model, use --reload",
            field="--watch",
        )
    return config


def _check_folder(folder: Path) -> None:
    """Refuse a folder without a model, or with a language model's file in place of its folder."""
    from headway.hosting.repository.folder import Repository

    entries = sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    files = [each.name for each in entries if each.suffix == ".gguf"]
    if files and not any(each.is_dir() for each in entries):
        raise ConfigError(
            f"{folder} holds {', '.join(files)}: name the file: headway serve {folder / files[0]}"
        )
    models = Repository(folder).scan().values()
    if all(each.error for each in models):
        errors = "".join(f" ({each.error})" for each in list(models)[:1])
        raise ConfigError(
            f"{folder} {'holds no model' if entries else 'is empty'}{errors}: a folder holds one "
            "model (config.json, tokenizer.json and *.safetensors; model.onnx or model.pt2; "
            "model_index.json), or a folder NAME/1/ for each of several models; --watch waits "
            "until there are some"
        )


def _allow_open_files() -> None:
    """Allow as many open files as permitted: each connection needs one, and the usual limit of 1024
    exists for `select`."""
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def is_repository(target: str) -> bool:
    """A folder of models; one with a config.json, or with a program and no folders, is a model."""
    from headway.models.catalogue import catalogue, is_model_folder, is_saved_model

    path = Path(target)
    if target in catalogue() or not path.is_dir():
        return False
    if is_saved_model(path):
        return False
    has_folders = any(each.is_dir() for each in path.iterdir())
    return has_folders or not is_model_folder(path)


def name_for(target: str) -> str:
    """`app:BigModel` is served as big-model, `path/to/net.onnx` as net, `org/name@v1` as name."""
    from headway.models.sources.weights import is_hub_name

    if ":" in target:
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", target.rpartition(":")[2])
        return words.lower()
    path = Path(target)
    if path.is_dir():
        return path.resolve().name
    return path.name.partition("@")[0] if is_hub_name(target) else path.stem


def add_model_flags(parser: argparse.ArgumentParser, names: Collection[str]) -> None:
    """These settings of a model, for the commands that run one."""
    from headway.config import ModelConfig
    from headway.flags import flags

    group = parser.add_argument_group("the model")
    for flag in flags(ModelConfig):
        if flag.field in names:
            add_flag(group, flag)


def add_flag(group: Any, flag: "Flag") -> None:
    if flag.is_switch:
        group.add_argument(
            flag.name, dest=flag.field, action=argparse.BooleanOptionalAction, help=flag.help
        )
    else:
        group.add_argument(flag.name, dest=flag.field, metavar=flag.metavar, help=flag.help)
