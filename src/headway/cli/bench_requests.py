"""What the flags of `headway bench` ask for, taken together: the law of arrivals, the requests."""

import argparse
import json
import ssl
from collections.abc import Iterable

from headway.cli import server_flags
from headway.cli import simulate_flags as flags
from headway.cli.simulate_scenarios import naming
from headway.errors import ConfigError
from headway.lab.report import check_plot
from headway.lab.traces import read_trace
from headway.loadgen.asking import RemoteServer
from headway.loadgen.exchange import Address, is_in
from headway.loadgen.openai_bodies import GENERATING, OPENAI_PATHS
from headway.loadgen.sweep import ArrivalLaw
from headway.loadgen.target import Target, Wanted, read_bodies, read_file

MAX_TOKENS = 64
_MANY_LENGTHS = 4096
_PROBE_S = 10.0  # to answer what is asked before the load


def check(arguments: argparse.Namespace) -> None:
    """Do the flags make sense together?"""
    _check_load(arguments)
    _check_tokens(arguments)
    _check_bodies(arguments)
    _check_headers(arguments)
    urls = filter(None, (arguments.url, arguments.against))
    server_flags.check_tls(arguments, *(Address.parse(url, may_be_grpc=True) for url in urls))
    if arguments.plot is not None:
        if arguments.against:
            raise ConfigError("draws the load of one server", field="--plot")
        with naming("--plot"):
            check_plot(arguments.plot)


def _check_load(arguments: argparse.Namespace) -> None:
    if arguments.rate and arguments.concurrency:
        raise ConfigError("--rate is an open loop, --concurrency a closed one: one of them")
    if arguments.arrivals is not None and not (arguments.rate or arguments.find):
        raise ConfigError("needs --rate", field="--arrivals")
    if arguments.find and (arguments.rate or arguments.concurrency or arguments.against):
        raise ConfigError("finds the rate itself, on one server", field="--find")
    if arguments.precision is not None and not arguments.find:
        raise ConfigError("is for --find", field="--precision")
    if arguments.max_in_flight is not None and not (arguments.rate or arguments.find):
        said = "is for open loops (--rate, --find); in a closed one, --concurrency says how many"
        raise ConfigError(said, field="--max-in-flight")
    if arguments.against and len((*arguments.rate, *arguments.concurrency)) != 1:
        raise ConfigError("needs one load: --rate or --concurrency", field="--against")


def _refuse(arguments: argparse.Namespace, names: Iterable[str], said: str) -> None:
    """Those of the flags that are given."""
    for name in names:
        if getattr(arguments, name) and (name != "rows" or arguments.rows != 1):
            raise ConfigError(said, field=f"--{name.replace('_', '-')}")


def _check_bodies(arguments: argparse.Namespace) -> None:
    if arguments.api == "transcriptions":
        _refuse(arguments, ["data"], "is JSON; a clip of speech is given with --body")
    if arguments.data is None and arguments.body is None:
        return
    if arguments.data is not None and arguments.body is not None:
        raise ConfigError("--data and --body both say what to send: one of them")
    made = ["shape", "lengths", "rows", "json_tensors", "max_tokens", "ignore_eos"]
    if arguments.api not in ("auto", "transcriptions"):
        made.append("model")
    _refuse(arguments, made, "is about requests that bench makes, not about given ones")


_MADE_HEADERS = {
    "authorization": "api_key",
    "headway-timeout-ms": "deadline_ms",
    "headway-priority": "classes",
    "headway-tenant": "tenants",
}


def _check_headers(arguments: argparse.Namespace) -> None:
    for name, _ in arguments.header:
        if flag := _MADE_HEADERS.get(name.lower()):
            _refuse(arguments, [flag], f"sets {name}, and so does --header: one of them")


def check_target(arguments: argparse.Namespace, target: Target) -> None:
    """Do the flags fit the model that was found?"""
    if any(each.is_stream for each in target.exchanges):
        return
    _refuse_tokens(arguments, ("auto",))
    said = 'is for streamed answers, and no body says "stream": true'
    _refuse(arguments, ["first_ms", "between_ms"], said)


def _refuse_tokens(arguments: argparse.Namespace, apis: Iterable[str]) -> None:
    if arguments.api in apis:
        said = "is for --api chat, completions or responses"
        _refuse(arguments, ["max_tokens", "ignore_eos", "first_ms", "between_ms"], said)


def _check_tokens(arguments: argparse.Namespace) -> None:
    _refuse_tokens(arguments, OPENAI_PATHS.keys() - GENERATING)
    if arguments.api == "responses":
        _refuse(arguments, ["ignore_eos"], "is not for --api responses, which has no such field")
    if arguments.api != "auto":
        _refuse(arguments, ["shape", "json_tensors", "rows"], "is about tensors of v2")


def law_of(arguments: argparse.Namespace) -> ArrivalLaw:
    spec: flags.ArrivalSpec | None = arguments.arrivals
    if spec is None:
        return ArrivalLaw("poisson")
    if spec.clients:
        raise ConfigError("a closed loop is asked for with --concurrency", field="--arrivals")
    if spec.rate_rps is not None:
        raise ConfigError("the rate is given by --rate", field="--arrivals")
    trace = None if spec.file is None else read_trace(spec.file)
    return ArrivalLaw(spec.kind, spec.options, trace)


def wanted_of(arguments: argparse.Namespace) -> Wanted:
    spec: flags.LengthSpec | None = arguments.lengths
    bodies: list[bytes] = []
    if arguments.body is not None and arguments.api == "transcriptions":
        bodies = [read_file(arguments.body)]
    elif arguments.body is not None:
        bodies = read_bodies(arguments.body)
    elif arguments.data is not None:
        try:
            json.loads(arguments.data)
        except ValueError as error:
            raise ConfigError(f"no JSON: {error}", field="--data") from error
        bodies = [arguments.data.encode()]
    return Wanted(
        model=arguments.model,
        rows=arguments.rows,
        shapes=dict(arguments.shape),
        lengths=None if spec is None else spec.sizes(_MANY_LENGTHS, arguments.seed),
        is_binary=False if arguments.json_tensors else None,
        api=arguments.api,
        max_tokens=arguments.max_tokens or MAX_TOKENS,
        ignore_eos=arguments.ignore_eos,
        bodies=bodies,
        headers=_all_headers(arguments),
        classes=arguments.classes,
        tenants=arguments.tenants,
        seed=arguments.seed,
    )


def _headers(arguments: argparse.Namespace) -> tuple[tuple[str, str], ...]:
    found = tuple(arguments.header)
    key = server_flags.key_of(arguments)
    if key and not is_in(found, "Authorization"):
        found = (("Authorization", f"Bearer {key}"), *found)
    return found


def _all_headers(arguments: argparse.Namespace) -> tuple[tuple[str, str], ...]:
    found = _headers(arguments)
    if arguments.deadline_ms is not None:
        found = (*found, ("Headway-Timeout-Ms", f"{arguments.deadline_ms:g}"))
    return found


def probe_of(arguments: argparse.Namespace, url: str) -> RemoteServer:
    address = Address.parse(url, may_be_grpc=True)
    return RemoteServer(address, _headers(arguments), tls_of(arguments, address), _PROBE_S)


def tls_of(arguments: argparse.Namespace, address: Address) -> ssl.SSLContext | None:
    return server_flags.tls_of(arguments) if address.is_tls else None


def slo_s(arguments: argparse.Namespace) -> float | None:
    return None if arguments.slo_ms is None else arguments.slo_ms / 1e3
