"""What the flags of `headway bench` ask for, taken together: the law of arrivals, the requests."""

import argparse
import json
import ssl

from headway.cli import simulate_flags as flags
from headway.cli.simulate_scenarios import naming
from headway.errors import ConfigError
from headway.lab.report import check_plot
from headway.lab.traces import read_trace
from headway.loadgen.exchange import Address
from headway.loadgen.sweep import ArrivalLaw
from headway.loadgen.target import Probe, Wanted, read_bodies

MAX_TOKENS = 64
_MANY_LENGTHS = 4096


def check(arguments: argparse.Namespace) -> None:
    """Do the flags make sense together?"""
    _check_load(arguments)
    _check_tokens(arguments)
    _check_bodies(arguments)
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
    if arguments.against and len((*arguments.rate, *arguments.concurrency)) != 1:
        raise ConfigError("needs one load: --rate or --concurrency", field="--against")


def _check_bodies(arguments: argparse.Namespace) -> None:
    if arguments.data is None and arguments.body is None:
        return
    if arguments.data is not None and arguments.body is not None:
        raise ConfigError("--data and --body both say what to send: one of them")
    made = {"--shape": arguments.shape, "--lengths": arguments.lengths}
    made["--rows"] = arguments.rows != 1
    for flag, value in made.items():
        if value:
            said = "is about requests that bench makes, not about given ones"
            raise ConfigError(said, field=flag)


def _check_tokens(arguments: argparse.Namespace) -> None:
    made = arguments.data is None and arguments.body is None
    generates = arguments.api in ("chat", "completions")
    for flag in ("max_tokens", "ignore_eos", "first_ms", "between_ms"):
        is_body = flag in ("max_tokens", "ignore_eos")
        if getattr(arguments, flag) and not (generates and (made or not is_body)):
            said = "is for answers that bench asks for with --api chat or completions"
            raise ConfigError(said, field=f"--{flag.replace('_', '-')}")
    if arguments.api != "auto":
        for flag in ("shape", "json_tensors"):
            if getattr(arguments, flag):
                raise ConfigError("is about tensors of v2", field=f"--{flag.replace('_', '-')}")
        if arguments.rows != 1:
            raise ConfigError("is about tensors of v2", field="--rows")


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
    if arguments.body is not None:
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
    key = [("Authorization", f"Bearer {arguments.key}")] if arguments.key else []
    return (*key, *arguments.header)


def _all_headers(arguments: argparse.Namespace) -> tuple[tuple[str, str], ...]:
    found = _headers(arguments)
    if arguments.deadline_ms is not None:
        found = (*found, ("Headway-Timeout-Ms", f"{arguments.deadline_ms:g}"))
    return found


def probe_of(arguments: argparse.Namespace, url: str) -> Probe:
    address = Address.parse(url, may_be_grpc=True)
    return Probe(address, _headers(arguments), tls_of(arguments, address))


def tls_of(arguments: argparse.Namespace, address: Address) -> ssl.SSLContext | None:
    if not address.is_tls:
        return None
    try:
        context = ssl.create_default_context(cafile=arguments.ca)
    except OSError as error:
        raise ConfigError(f"{arguments.ca}: {error}", field="--ca") from error
    if arguments.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def slo_s(arguments: argparse.Namespace) -> float | None:
    return None if arguments.slo_ms is None else arguments.slo_ms / 1e3
