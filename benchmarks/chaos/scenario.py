"""What is sent, and what goes wrong when: everything that a seed decides, before anything runs.

Pure: the same seed and length give the same requests and the same faults.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from benchmarks.chaos.models import BEHAVIOURS, WIDTH, digest_of

Model: TypeAlias = Literal["vectors", "texts", "stories", "neighbour"]
Transport: TypeAlias = Literal["http", "grpc"]

RATES: dict[Model, float] = {"vectors": 40.0, "texts": 40.0, "stories": 6.0, "neighbour": 80.0}
SURGE = 3  # times the load
GRPC_SHARE = 0.25
LEAVING_SHARE = 0.01  # of the clients go before they are answered
BIG_SHARE = 0.02  # of the texts
BURST = 16  # big texts at the same moment: more than fit into the worker's memory
LEAKS = 12  # enough to fill the worker
QUIET_S = 1.5  # at the start and at the end: what is normal, and is it so again?

# One after the other on each model, in an order that the seed decides.
FAULTS: dict[Model, tuple[str, ...]] = {
    "vectors": ("kill", "stop", "exit", "segfault", "hang", "raise", "reload", "kill"),
    "texts": ("kill", "exit", "freeze", "raise", "leak", "burst", "huge", "reload", "stop"),
    "stories": ("kill", "exit", "raise", "reload", "stop"),
    "neighbour": ("raise", "reload"),
}
SLOW = frozenset(["hang", "freeze"])  # each try to find the culprit waits for its time to be up
FROM_OUTSIDE = frozenset(["kill", "stop", "reload"])  # the others are inputs


@dataclass(frozen=True, slots=True)
class Request:
    """One request, and what its answer must be."""

    id: int
    due_at: float
    model: Model
    transport: Transport
    behaviour: str
    content: bytes  # a text, or the rows of `vectors`
    digests: tuple[str, ...]  # one for each row
    leaves_after_s: float | None = None  # the client goes then, …
    leaves_after_chunks: int | None = None  # … or after this many chunks of a stream

    @property
    def is_healthy(self) -> bool:
        return self.behaviour in ("fine", "big")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong: done from outside, or told for what an input will do."""

    at: float
    model: Model | Literal["all"]
    kind: str
    pick: int = 0  # which of the model's workers, counted round


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    seconds: float
    requests: Sequence[Request]  # in the order in which they are due
    faults: Sequence[Fault]  # likewise
    surge: tuple[float, float]


def plan(
    seed: int,
    seconds: float,
    *,
    rates: Mapping[Model, float] = RATES,  # requests a second
    kinds: Mapping[Model, Sequence[str]] = FAULTS,
    fault_every_s: float = 4.0,
    surge_s: float = 10.0,
) -> Plan:
    """The whole run. The surge begins at half time."""
    rng = random.Random(seed)
    surge = (seconds / 2, seconds / 2 + surge_s)
    faults = [Fault(surge[0], "all", "surge")] if surge_s else []
    faults += _faults(rng, seconds, fault_every_s, kinds)
    faults.sort(key=lambda fault: (fault.at, fault.model))
    asked = [
        *_healthy(rng, seconds, surge, rates),
        *(ask for fault in faults for ask in _inputs_of(fault)),
    ]
    asked.sort(key=lambda ask: (ask.at, ask.model, ask.behaviour))
    requests = [_request(rng, number, ask) for number, ask in enumerate(asked)]
    return Plan(seed, seconds, requests, faults, surge)


# ---- faults


def _faults(
    rng: random.Random, seconds: float, every_s: float, kinds: Mapping[Model, Sequence[str]]
) -> list[Fault]:
    """Of each model at most one in a period, so that what follows can be told to be its doing."""
    faults = []
    for model, each in kinds.items():
        turns = _turns(rng, each)
        at = QUIET_S
        while at + every_s <= seconds - QUIET_S:
            kind = next(turns)
            moment = at + rng.uniform(0.0, 0.2) * every_s
            faults.append(Fault(moment, model, kind, rng.randrange(8)))
            at += every_s * (2 if kind in SLOW else 1)
    return faults


def _turns(rng: random.Random, kinds: Sequence[str]) -> Iterator[str]:
    while True:
        yield from rng.sample(kinds, len(kinds))


# ---- requests


@dataclass(frozen=True, slots=True)
class _Ask:
    at: float
    model: Model
    behaviour: str


def _healthy(
    rng: random.Random, seconds: float, surge: tuple[float, float], rates: Mapping[Model, float]
) -> Iterator[_Ask]:
    for model, rate in rates.items():
        at = rng.expovariate(rate)
        while at < seconds:
            is_big = model == "texts" and rng.random() < BIG_SHARE
            yield _Ask(at, model, "big" if is_big else "fine")
            at += rng.expovariate(rate * (SURGE if surge[0] <= at < surge[1] else 1))


def _inputs_of(fault: Fault) -> list[_Ask]:
    if fault.kind in FROM_OUTSIDE or fault.model == "all":
        return []
    if fault.kind == "burst":
        return [_Ask(fault.at, fault.model, "big")] * BURST
    return [_Ask(fault.at, fault.model, fault.kind)] * (LEAKS if fault.kind == "leak" else 1)


def _request(rng: random.Random, number: int, ask: _Ask) -> Request:
    is_healthy = ask.behaviour == "fine"
    leaves = is_healthy and rng.random() < LEAVING_SHARE
    is_stream = ask.model == "stories"
    content, digests = _content(rng, number, ask)
    return Request(
        id=number,
        due_at=ask.at,
        model=ask.model,
        transport="grpc" if rng.random() < GRPC_SHARE else "http",
        behaviour=ask.behaviour,
        content=content,
        digests=digests,
        leaves_after_s=rng.uniform(0.0, 0.01) if leaves and not is_stream else None,
        # Streams are few and long: one in ten loses its reader.
        leaves_after_chunks=rng.randrange(4) if is_stream and rng.random() < 0.1 else None,
    )


def _content(rng: random.Random, number: int, ask: _Ask) -> tuple[bytes, tuple[str, ...]]:
    """No two requests of a run are alike."""
    if ask.model != "vectors":
        text = f"{ask.behaviour}:{number}:{rng.getrandbits(64):016x}"
        if ask.model == "stories":
            text += f":{rng.randint(4, 24)}"
        return text.encode(), (digest_of(text.encode()),)
    rows = []
    for place in range(rng.randint(1, 4)):
        behaviour = BEHAVIOURS.index(ask.behaviour if place == 0 else "fine")
        rows.append(bytes([behaviour]) + rng.randbytes(WIDTH - 1))
    return b"".join(rows), tuple(map(digest_of, rows))
