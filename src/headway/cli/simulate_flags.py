"""The flags of `headway simulate`: each is read and checked on its own."""

import argparse
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headway.core.items import Priority
from headway.core.policy import Compose, Firing, read_buckets
from headway.errors import ConfigError
from headway.lab import traces, workload
from headway.lab.profiles import NOISE_LAWS, Noise, PowerProfile

_MAX_LOAD = 20.0
_MAX_NOISE = 10.0


@dataclass(frozen=True, slots=True)
class ArrivalSpec:
    text: str
    kind: str
    rate_rps: float | None = None
    file: Path | None = None
    clients: int = 0
    think_s: float = 0.0
    thinking: str = "exponential"
    jitter_s: float = 0.0
    options: tuple[tuple[str, float], ...] = ()  # of the law

    @property
    def text_without_rate(self) -> str:
        return self.kind if self.file is None else f"{self.kind}:{self.file}"


@dataclass(frozen=True, slots=True)
class PolicySpec:
    text: str
    firing: Firing | None  # None: the oracle's choice
    max_wait_s: float | None = None
    max_rows: int | None = None


@dataclass(frozen=True, slots=True)
class LengthSpec:
    text: str
    file: Path | None = None
    median: float = 0.0
    sigma: float = 0.0
    clip: int | None = None

    def sizes(self, requests: int, seed: int) -> workload.Sizes:
        if self.file is not None:
            return np.resize(traces.read_sizes(self.file), requests)
        rng = np.random.default_rng([seed, 3])
        return workload.lognormal_sizes(requests, self.median, self.sigma, self.clip, rng)


def arrivals(text: str) -> ArrivalSpec:
    kind, _, rest = text.partition(":")
    if kind in workload.OPEN_LOOPS:
        return _open_loop(text, kind, rest)
    if kind in ("closed", "barrier"):
        return _closed_loop(text, kind, rest)
    if kind == "trace" and rest:
        file, at, rate = rest.rpartition("@")
        with suppress(argparse.ArgumentTypeError):
            if at:  # unless the @ is part of the name
                return ArrivalSpec(text, kind, rate_rps=positive(rate), file=Path(file))
        return ArrivalSpec(text, kind, file=Path(rest))
    kinds = [*workload.OPEN_LOOPS, "closed:CLIENTS,MS", "barrier:CLIENTS,MS", "trace:FILE"]
    raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(kinds)}")


def _open_loop(text: str, kind: str, rest: str) -> ArrivalSpec:
    rate, _, parameter = rest.partition(",")
    options: tuple[tuple[str, float], ...] = ()
    if parameter:
        if kind not in workload.PARAMETERS:
            raise argparse.ArgumentTypeError(f"{kind} takes a rate and nothing else, not {rest!r}")
        options = ((workload.PARAMETERS[kind], not_negative(parameter)),)
    return ArrivalSpec(text, kind, rate_rps=positive(rate) if rate else None, options=options)


def _closed_loop(text: str, kind: str, rest: str) -> ArrivalSpec:
    last = "JITTER_MS" if kind == "barrier" else "|".join(workload.THINKING)
    clients, think_ms, *more = _fields(
        rest, f"{kind}:CLIENTS,THINK_MS[,{last}]", at_least=2, at_most=3
    )
    if kind == "closed" and more and more[0] not in workload.THINKING:
        choices = ", ".join(workload.THINKING)
        raise argparse.ArgumentTypeError(f"{more[0]!r} is not one of {choices}")
    return ArrivalSpec(
        text,
        kind,
        clients=count(1_000_000)(clients),
        think_s=not_negative(think_ms) / 1e3,
        thinking=more[0] if kind == "closed" and more else "exponential",
        jitter_s=not_negative(more[0]) / 1e3 if kind == "barrier" and more else 0.0,
    )


def lengths(text: str) -> LengthSpec:
    kind, _, rest = text.partition(":")
    if kind == "trace" and rest:
        return LengthSpec(text, file=Path(rest))
    form = "N, lognormal:MEDIAN,SIGMA[,CLIP] or trace:FILE"
    if text.isdecimal():
        return LengthSpec(text, median=count(2**31)(text))
    if kind != "lognormal":
        raise argparse.ArgumentTypeError(f"{text!r} does not have the form {form}")
    median, sigma, *clip = _fields(rest, form, at_least=2, at_most=3)
    return LengthSpec(
        text,
        median=positive(median),
        sigma=not_negative(sigma),
        clip=count(2**31)(clip[0]) if clip else None,
    )


def compose(text: str) -> Compose:
    try:
        return Compose(text)
    except ValueError:
        choices = ", ".join(Compose)
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {choices}") from None


def buckets(text: str) -> tuple[tuple[int, ...], int]:
    try:
        return read_buckets(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def policy(text: str) -> PolicySpec:
    match text.partition(":"):
        case ("auto", "", ""):
            return PolicySpec(text, Firing.AUTO)
        case ("idle", "", ""):
            return PolicySpec(text, Firing.AUTO, max_wait_s=0.0)
        case ("static", "", ""):
            return PolicySpec(text, Firing.STATIC)
        case ("oracle", "", "") | ("oracle", ":", "mean"):
            return PolicySpec(text, None)
        case ("window", ":", rest):
            wait_ms, *rows = _fields(rest, "window:MS or window:MS,B", at_least=1, at_most=2)
            max_rows = count(65_536)(rows[0]) if rows else None
            return PolicySpec(text, Firing.WINDOW, not_negative(wait_ms) / 1e3, max_rows)
    raise argparse.ArgumentTypeError(
        f"{text!r} is not one of auto, idle, window:MS, window:MS,B, static, oracle, oracle:mean"
    )


def latency(text: str) -> PowerProfile:
    form = "ALPHA_MS,BETA_MS or ALPHA_MS,BETA_MS,EXPONENT"
    alpha, beta, *exponent = map(not_negative, _fields(text, form, at_least=2, at_most=3))
    try:
        return PowerProfile(alpha / 1e3, beta / 1e3, *exponent)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def loads(text: str) -> tuple[float, ...]:
    loads = tuple(map(positive, text.split(",")))
    if max(loads) > _MAX_LOAD:
        raise argparse.ArgumentTypeError(
            f"{max(loads):g} is more than {_MAX_LOAD:g}: loads are shares, 0.9 for 90 %"
        )
    return loads


def _fields(text: str, form: str, *, at_least: int, at_most: int) -> list[str]:
    fields = text.split(",")
    if not at_least <= len(fields) <= at_most or not all(fields):
        raise argparse.ArgumentTypeError(f"{text!r} does not have the form {form}")
    return fields


def count(most: int, *, least: int = 1) -> Callable[[str], int]:
    def count(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{value} does not lie between {least} and {most}")
        return value

    return count


def not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not (value >= 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 up")
    return value


def positive(text: str) -> float:
    value = not_negative(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value


def noise(text: str) -> Noise:
    cv, _, law = text.partition(",")
    value = not_negative(cv)
    if value > _MAX_NOISE:
        raise argparse.ArgumentTypeError(f"{cv} is more than {_MAX_NOISE:g}; 0.1 means 10 %")
    if law and law not in NOISE_LAWS:
        raise argparse.ArgumentTypeError(f"{law!r} is not one of {', '.join(NOISE_LAWS)}")
    return Noise(value, law or NOISE_LAWS[0])


def workers(text: str) -> tuple[float, ...]:
    """A number of workers, or how many times as long a batch takes on each."""
    parts = text.split(",")
    if len(parts) > 1:
        return tuple(map(positive, parts))
    return (1.0,) * count(1024)(text)


def classes(text: str) -> dict[Priority, float]:
    """`high=0.1,low=0.5`: shares of all items; the rest is normal."""
    shares: dict[Priority, float] = {}
    for part in text.split(","):
        name, _, share = part.partition("=")
        if name.upper() not in Priority.__members__:
            choices = ", ".join(each.lower() for each in Priority.__members__)
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {choices}")
        shares[Priority[name.upper()]] = not_negative(share)
    rest = 1.0 - sum(shares.values())
    if rest < -1e-9:
        raise argparse.ArgumentTypeError(f"the shares of {text} add up to more than 1")
    shares[Priority.NORMAL] = shares.get(Priority.NORMAL, 0.0) + max(0.0, rest)
    return shares


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """Tenants, their weights, and how many requests a second each of them sends."""

    weights: dict[str, float]
    rates: dict[str, float]  # empty: all send equally many

    @property
    def rate_rps(self) -> float | None:
        return sum(self.rates.values()) if self.rates else None


def tenants(text: str) -> TenantSpec:
    """`a=1,b=8` or `a=1:rate=1.5,b=8:rate=3`."""
    form = "NAME=WEIGHT or NAME=WEIGHT:rate=RATE"
    weights: dict[str, float] = {}
    rates: dict[str, float] = {}
    for part in text.split(","):
        named, colon, rate = part.partition(":")
        name, _, weight = named.partition("=")
        if not name or name in weights or (colon and not rate.startswith("rate=")):
            raise argparse.ArgumentTypeError(f"{part!r} does not have the form {form}, once each")
        weights[name] = positive(weight or "1")
        if colon:
            rates[name] = positive(rate.removeprefix("rate="))
    if rates and len(rates) < len(weights):
        missing = ", ".join(sorted(set(weights) - set(rates)))
        raise argparse.ArgumentTypeError(f"{missing} has no rate; all tenants have one, or none")
    return TenantSpec(weights, rates)
