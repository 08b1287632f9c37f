"""Everything configurable, once. Files, variables and flags all come from these structs.

A typo fails at start, by name: unknown fields are errors, and every field has a limit and a line of
description, which becomes its `--help`.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from headway.errors import ConfigError
from headway.setting_errors import in_words

T = TypeVar("T", bound=msgspec.Struct)
KEY_HASH = r"^sha256:[0-9a-f]{64}$"
_NAME = r"^[A-Za-z0-9][\w.\-]*$"
MAX_BODY_BYTES = 64 * 2**20
MAX_JSON_BYTES = 16 * 2**20
Count: TypeAlias = Annotated[int, Meta(ge=1)]
Positive: TypeAlias = Annotated[float, Meta(gt=0)]
NotNegative: TypeAlias = Annotated[float, Meta(ge=0)]


def _doc(description: str, **limits: Any) -> Meta:
    """The description and the limits of a setting."""
    return Meta(description=description, **limits)


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model and the settings of its scheduler. Only `name` and `target` are required."""

    name: Annotated[str, _doc("the model's name for clients", pattern=_NAME)]
    aliases: Annotated[
        tuple[Annotated[str, msgspec.Meta(pattern=_NAME)], ...],
        _doc("other names that clients may call it by"),
    ] = ()
    target: Annotated[
        str,
        _doc(
            "module:Class or :function, a .onnx or .gguf file, a folder, a name of `headway models`"
        ),
    ]
    max_batch_size: Annotated[
        int, _doc("most rows in one batch; 0: its arrays have no axis of rows", ge=0)
    ] = 64
    max_wait_ms: Annotated[
        NotNegative | None, _doc("longest wait for more items; absent: it is learned")
    ] = None
    max_batch_cost: Annotated[
        Count | None, _doc("most rows × largest size in a batch; absent: any")
    ] = None
    slo_ms: Annotated[
        Positive | None, _doc("answer within this time; refuse requests early that would miss it")
    ] = None
    slo_percentile: Annotated[
        float, _doc("percentage of answers that must meet the SLO", gt=0, lt=100)
    ] = 99.0
    max_queue: Annotated[Count, _doc("most rows waiting; more are refused")] = 4096
    policy: Annotated[Literal["auto", "idle", "window", "static"], _doc("when batches start")] = (
        "auto"
    )
    order: Annotated[
        Literal["fifo", "shortest"], _doc("which item of a priority class is next")
    ] = "fifo"
    compose: Annotated[
        Literal["auto", "dp", "buckets", "sort", "fifo", "packed"],
        _doc("how items of different sizes share batches"),
    ] = "auto"
    buckets: Annotated[
        str, _doc("for compose = buckets: largest size of each, as 64,128; pow2; quantile:N")
    ] = "pow2"
    pad_sizes: Annotated[
        tuple[int, ...], _doc("the only sizes the model runs at; shorter items are padded")
    ] = ()
    dependent_rows: Annotated[
        Literal["alone", "refuse", "batch"],
        _doc("arrays whose rows depend on each other: run each request alone, refuse, or batch"),
    ] = "alone"
    worker: Annotated[
        Literal["auto", "inline", "thread", "process"],
        _doc("where the model runs: in the event loop, in threads or in processes"),
    ] = "auto"
    workers: Annotated[Count, _doc("batches that run at once")] = 1
    max_restarts: Annotated[
        int, _doc("restarts in a row of a worker process before it is given up", ge=0)
    ] = 16
    heartbeat_timeout_s: Annotated[
        Positive,
        _doc(
            "kill a worker process that has run or slept for this long without a sign of life; "
            "time in which it waits for a CPU does not count"
        ),
    ] = 10.0
    worker_memory_mb: Annotated[
        Positive | None, _doc("most memory of a worker process; absent: any")
    ] = None
    pin: Annotated[
        tuple[str, ...], _doc("cores (0-3, 0+2) or a device (cuda:0) for each process, in turn")
    ] = ()
    tenants: Annotated[dict[str, float], _doc("weight of each tenant; others have 1")] = {}
    batch_sizes: Annotated[tuple[int, ...], _doc("the only batch sizes the model runs at")] = ()
    timeout_ms: Annotated[
        Positive | None, _doc("longest time to answer; requests that cannot make it are refused")
    ] = None
    execute_timeout_ms: Annotated[
        Positive | None,
        _doc(
            "longest run of a batch, or of a stream's step; then its callers fail, and the model "
            "is not ready"
        ),
    ] = 300_000.0
    warm_up: Annotated[bool, _doc("time the model on typical batches before traffic")] = True
    warm_up_s: Annotated[
        Positive, _doc("most seconds for the warm-up; later starts use its timings")
    ] = 5.0
    load: Annotated[Literal["at-start", "on-request"], _doc("when the model is loaded")] = (
        "at-start"
    )
    unload_after_s: Annotated[
        Positive | None, _doc("unload after this long without a request; absent: never")
    ] = None
    load_timeout_s: Annotated[Positive, _doc("most seconds to load and warm up")] = 600.0
    options: Annotated[dict[str, Any], _doc("arguments for the model's constructor")] = {}
    # Language models only: they are batched token by token, and not by the fields above.
    max_context: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        _doc("most tokens of prompt and answer together; absent: the model's own"),
    ] = None
    max_sequences: Annotated[
        Count | None, _doc("most answers computed at once; absent: 64, on a GPU 256")
    ] = None
    step_tokens: Annotated[
        Annotated[int, Meta(ge=2)] | None, _doc("most tokens computed in a step; absent: 512")
    ] = None
    kv_cache_gib: Annotated[
        Positive | None, _doc("memory for keys and values; absent: by free memory")
    ] = None
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"],
        _doc("number format in which a language model computes"),
    ] = "auto"
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        _doc("where a language model computes; auto: on a GPU that torch finds"),
    ] = "auto"
    quantization: Annotated[
        Literal["none", "fp8", "int8"],
        _doc(
            "fp8, on a GPU: the layers' weights in 8-bit floats; int8, on a CPU: all products' "
            "weights in 8 bits"
        ),
    ] = "none"
    share_prefixes: Annotated[bool, _doc("share cached beginnings of prompts between tenants")] = (
        False
    )
    adapters: Annotated[
        dict[str, str], _doc("LoRA adapters: each one's name for clients, and its folder")
    ] = {}
    adapter_folder: Annotated[
        str, _doc("a watched folder: each PEFT folder in it is an adapter")
    ] = ""
    adapter_slots: Annotated[Count | None, _doc("most adapters in one step; absent: 8")] = None
    max_adapters: Annotated[
        Count, _doc("most adapters loaded at once; they are kept in memory")
    ] = 256
    max_adapter_rank: Annotated[Count | None, _doc("highest rank; absent: 64, on a GPU 16")] = None

    def __post_init__(self) -> None:
        if self.unload_after_s is not None and self.load != "on-request":
            raise ValueError(
                'unload_after_s: the model would never be loaded again; set load = "on-request"'
            )


# Of a language model: the other fields of a model say how requests are batched, and are not for it.
GENERATION = frozenset(
    [
        *("max_context", "max_sequences", "step_tokens", "kv_cache_gib", "dtype"),
        *("share_prefixes", "adapters", "adapter_folder", "adapter_slots", "max_adapters"),
        *("max_adapter_rank", "quantization", "device"),
    ]
)
_BOTH = frozenset(
    [
        *("name", "aliases", "target", "max_queue", "tenants", "timeout_ms", "warm_up", "load"),
        *("unload_after_s", "load_timeout_s", "options", "versions", "worker", "max_restarts"),
        *("heartbeat_timeout_s", "worker_memory_mb", "pin", "execute_timeout_ms"),
    ]
)


def check_kind(config: ModelConfig, *, generates: bool) -> None:
    """Raises ConfigError for a setting of the other kind of model, by name."""
    for field in msgspec.structs.fields(type(config)):
        is_other = field.name not in GENERATION | _BOTH if generates else field.name in GENERATION
        if is_other and getattr(config, field.name) != default_of(field):
            why = (
                "is for models that are batched by requests; a language model is batched by "
                f"tokens: {', '.join(sorted(GENERATION))}"
                if generates
                else "is for language models only"
            )
            raise ConfigError(f"it {why}", field=field.name)


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    made = field.default_factory
    return field.default if made is msgspec.NODEFAULT else made()


class ServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The server's settings: its addresses, and what it accepts."""

    host: Annotated[str, _doc("address to listen on")] = "127.0.0.1"
    port: Annotated[int, _doc("HTTP port; 0: any free one", ge=0, le=65535)] = 8000
    grpc_port: Annotated[int, _doc("gRPC port; 0: any free one, -1: no gRPC", ge=-1, le=65535)] = (
        8001
    )
    server_name: Annotated[
        str, _doc("the name in /v2; some clients look for triton", min_length=1)
    ] = "headway"
    max_body_bytes: Annotated[Count, _doc("largest HTTP body or gRPC message")] = MAX_BODY_BYTES
    max_json_bytes: Annotated[
        Count, _doc("largest JSON in a body; binary tensors and files may be larger")
    ] = MAX_JSON_BYTES
    max_held_bytes: Annotated[
        Count, _doc("most bytes of request bodies at once, over all connections")
    ] = 2**30
    max_connections: Annotated[Count, _doc("most connections at once, on each port")] = 4096
    max_handshakes: Annotated[
        Count, _doc("most unfinished TLS handshakes at once, on each port")
    ] = 256
    max_header_bytes: Annotated[int, _doc("largest request head", ge=256)] = 32 * 2**10
    header_timeout_s: Annotated[Positive, _doc("time to send a request's head")] = 10.0
    body_timeout_s: Annotated[Positive, _doc("time to send a request's body")] = 60.0
    write_timeout_s: Annotated[
        Positive, _doc("time a client may go without reading its answer")
    ] = 30.0
    stream_interval_s: Annotated[
        float,
        _doc(
            "while many streams run: least time between two writes of one, over HTTP or gRPC; "
            "0: every chunk is written by itself",
            ge=0,
            le=1,
        ),
    ] = 0.005
    keep_alive_s: Annotated[Positive, _doc("idle time before a connection is closed")] = 75.0
    drain_s: Annotated[NotNegative, _doc("time to finish accepted requests when asked to stop")] = (
        30.0
    )
    stop_delay_s: Annotated[
        NotNegative, _doc("time to keep serving, reported as not ready, before the drain")
    ] = 0.0
    max_connections_per_address: Annotated[
        Count, _doc("most connections from one client address")
    ] = 1024
    max_request_rows: Annotated[Count, _doc("most rows in one request")] = 65536
    max_tensor_elements: Annotated[Count, _doc("most elements in one request's tensors")] = 2**24
    keys_file: Annotated[
        str, _doc("a file of keys, as `headway keys new` writes it", min_length=1)
    ] = ""
    api_keys: Annotated[
        dict[str, str], _doc("keys that may infer, by their hash: tenant=sha256:…", min_length=1)
    ] = {}
    admin_without_key: Annotated[
        bool, _doc("every client of a server without keys may load, unload and drain")
    ] = False
    tls_cert: Annotated[str, _doc("certificate chain, PEM; turns TLS on", min_length=1)] = ""
    tls_key: Annotated[str, _doc("the certificate's private key, PEM", min_length=1)] = ""
    tls_client_ca: Annotated[
        str, _doc("PEM; clients must show a certificate that it signed", min_length=1)
    ] = ""
    cors_origins: Annotated[
        tuple[str, ...], _doc("web pages that may call, as https://host; *: all")
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        _doc("names by which clients may call a server without keys, besides local ones; *: any"),
    ] = ()
    repository: Annotated[
        str, _doc("folder of models: one folder each, versions in numbered folders")
    ] = ""
    strict_readiness: Annotated[
        bool, _doc("not ready until every model that the repository holds at start is loaded")
    ] = True
    watch: Annotated[bool, _doc("load and unload models as the repository changes")] = False
    watch_every_s: Annotated[Positive, _doc("seconds between two looks at the repository")] = 2.0
    cache_dir: Annotated[
        str,
        _doc(
            "folder for warm-up tables that cannot be stored beside their model; absent: headway "
            "in $XDG_CACHE_HOME or ~/.cache"
        ),
    ] = ""
    shared_memory: Annotated[bool, _doc("clients on this machine may pass tensors in /dev/shm")] = (
        False
    )
    metrics: Annotated[bool, _doc("record and serve /metrics")] = True
    load_port: Annotated[
        int,
        _doc(
            "port for HAProxy's agent check and /metrics/load, without a key; 0: any, -1: none",
            ge=-1,
            le=65535,
        ),
    ] = -1
    access_log: Annotated[bool, _doc("log one line for each request")] = False
    log_format: Annotated[Literal["text", "json"], _doc("form of log lines")] = "text"
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _doc("least severe level to log")
    ] = "info"
    tracing: Annotated[bool, _doc("OpenTelemetry spans, exported as OTEL_… variables say")] = False
    debug: Annotated[bool, _doc("tracebacks in error answers")] = False

    def __post_init__(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key must be set together")
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")
        for tenant, text in self.api_keys.items():
            if not re.fullmatch(KEY_HASH, text):
                raise ValueError(f"api_keys: {tenant}: a hash of `headway keys new` is expected")


class KeyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A `[[keys]]` table: a key's tenant, rights and limits. The key itself is stored nowhere."""

    id: Annotated[str, _doc("its name in messages", pattern=_NAME)]
    hash: Annotated[str, _doc("of the key: sha256:…", pattern=KEY_HASH)]
    tenant: Annotated[str, _doc("the tenant that its requests are charged to", min_length=1)]
    weight: Annotated[Positive, _doc("the tenant's weight beside others; absent: 1")] = 1.0
    rights: Annotated[
        tuple[Literal["infer", "metrics", "admin"], ...],
        _doc("infer, metrics, admin (all rights); absent: infer", min_length=1),
    ] = ("infer",)
    models: Annotated[tuple[str, ...], _doc("models it may use; absent: all")] = ()
    requests_per_s: Annotated[Positive | None, _doc("requests a second; absent: no limit")] = None
    rows_per_s: Annotated[Positive | None, _doc("rows a second; absent: no limit")] = None
    concurrent: Annotated[Count | None, _doc("requests at once; absent: no limit")] = None
    tokens_per_minute: Annotated[
        Positive | None, _doc("tokens a minute of language models; absent: no limit")
    ] = None


class KeysFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole `keys.toml`."""

    keys: tuple[KeyConfig, ...] = ()


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A whole `headway.toml`: `[server]`, and one table for each of `[[models]]` and `[[keys]]`.

    `[every_model]` overrides the `model.toml` of all models of `server.repository`.
    """

    server: ServerConfig = ServerConfig()
    models: tuple[ModelConfig, ...] = ()
    every_model: Annotated[dict[str, Any], _doc("settings of every model of the repository")] = {}
    keys: tuple[KeyConfig, ...] = ()

    def __post_init__(self) -> None:
        names = [name for model in self.models for name in (model.name, *model.aliases)]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"two models or aliases are named {sorted(twice)[0]!r}")


def load(path: Path) -> Config:
    """Read a TOML file. Every mistake is a ConfigError that says where it is."""
    return of_tables(read(path), str(path))


def of_tables(tables: Mapping[str, Any], where: str) -> Config:
    """A configuration from tables that a program has made."""
    named: Mapping[str, type[msgspec.Struct]] = {
        "server": ServerConfig,
        "models": ModelConfig,
        "keys": KeyConfig,
    }
    return converted(Config, tables, where, tables=named)


def keys_of(config: Config, *, may_be_none: bool = False) -> tuple[KeyConfig, ...]:
    """Every key, from every source; none: all clients may infer. `may_be_none`: also where the
    configuration names a file of keys."""
    server = config.server
    typed = tuple(
        KeyConfig(id=tenant, hash=text, tenant=tenant) for tenant, text in server.api_keys.items()
    )
    keys = (*config.keys, *typed)
    if server.keys_file:
        if not Path(server.keys_file).exists():
            raise ConfigError(
                f"there is no file {server.keys_file}; headway keys new --tenant NAME --file "
                f"{server.keys_file} makes one",
                field="keys_file",
            )
        found = keys_in(Path(server.keys_file))
        if not found and not may_be_none:  # an empty file must not open the doors
            raise ConfigError(f"{server.keys_file}: it has no [[keys]]")
        keys += found
    check_keys(keys)
    return keys


def keys_in(path: Path) -> tuple[KeyConfig, ...]:
    """The keys of a file of their own."""
    return converted(KeysFile, read(path), str(path)).keys


def check_keys(keys: Iterable[KeyConfig]) -> None:
    """Raises ConfigError where two are the same, or contradict each other."""
    ids, hashes, weights = set[str](), set[str](), dict[str, float]()
    for key in keys:
        if key.id in ids or key.hash in hashes:
            raise ConfigError(f"key {key.id!r} is there twice", field="keys")
        if weights.setdefault(key.tenant, key.weight) != key.weight:
            raise ConfigError(f"tenant {key.tenant!r} has two weights", field="keys")
        ids.add(key.id)
        hashes.add(key.hash)


def read(path: Path) -> dict[str, Any]:
    """A TOML file as it is, not checked yet."""
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def converted(
    kind: type[T],
    given: Mapping[str, Any],
    where: str,
    *,
    tables: Mapping[str, type[msgspec.Struct]] = {},
) -> T:
    """The struct of these settings. Raises ConfigError, which names the file (`where`; "" for
    settings that were typed), the setting, and what is expected instead."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        found = in_words(str(error), given, kind, tables)
        # Settings that were typed or passed are in no table.
        found = f"{where}: {found}" if where else found.removeprefix("[server] ")
        raise ConfigError(found) from error


class TypedText(str):
    """A value from the command line; its reader, `models/options.py`, knows its type."""

    __slots__ = ()
