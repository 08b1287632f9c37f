"""The scheduler over a grid of worlds, beside every fixed setting: what it makes of any traffic.

Virtual time, the production scheduler. A point's figures are the means over its seeds.
"""

import itertools
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from headway.lab.profiles import Noise
from headway.lab.worlds import Clients, Curve, World, judge

TRACES = Path(__file__).parents[2] / "shared" / "traces"
IMAGES = Path(__file__).parents[1] / "docs" / "images"
KEPT = Path(tempfile.gettempdir()) / f"headway-grid-{os.getuid()}"
GPU, CPU, MIXED = Curve(5, 0.05, 64), Curve(1, 0.8, 32), Curve(2, 0.2, 32)
TILES = (Curve(1, 0.1, 64, tile=8), Curve(1, 0.1, 64, tile=16), Curve(0.5, 0.05, 128, tile=32))
CURVES = (
    GPU,
    CPU,
    MIXED,
    *TILES,
    Curve(4, 0.15, 64, best=24),
    Curve(2, 0.5, 64, best=24),
    Curve(0.05, 1, 32),
    Curve(0, 4, 32, exponent=1.1),
    Curve(1, 0.4, 64, exponent=0.8),
    Curve(20, 0.5, 16),
)
LAWS = ("poisson", "mmpp", "fanout", "step", "gamma,3", "gamma,0.3", "pareto,1.5", "diurnal")
BURSTS = ("cron,0.1", "cron,0.5", "trains")
LOADS = (0.05, 0.3, 0.6, 0.9)
NOISES = (Noise(0.1), Noise(0.3), Noise(0.7), Noise(0.3, "gamma"), Noise(0.0, "", 0.02, 10.0))
SLOS = (1.25, 1.5, 2.0, 4.0, 8.0)


def worlds() -> list[World]:
    return [*_open_worlds(), *_closed_worlds(), *_pool_worlds(), *_slo_worlds()]


def _open_worlds() -> Iterator[World]:
    for law, curve, load in itertools.product((*LAWS, *BURSTS), (GPU, CPU, MIXED), LOADS):
        yield World("arrivals", curve, law, load)
    for name, curve, load in itertools.product(("conv", "code"), (GPU, CPU), (0.1, 0.3, 0.5)):
        path = TRACES / f"AzureLLMInferenceTrace_{name}.csv"
        if path.exists():
            yield World("traces", curve, load=load, trace=path)
    for curve, law, load in itertools.product(CURVES[3:], ("poisson", "mmpp"), LOADS):
        yield World("curves", curve, law, load)
    for noise, curve, law, load in itertools.product(
        NOISES, (GPU, CPU), ("poisson", "mmpp"), (0.2, 0.5, 0.8)
    ):
        yield World("noise", curve, law, load, noise=noise)
    for curve, drift, load in itertools.product((GPU, CPU, TILES[1]), (0.6, 1.5), (0.2, 0.5)):
        yield World("drift", curve, load=load, drift=drift)


def _closed_worlds() -> Iterator[World]:
    for curve, count, think_ms, thinking in itertools.product(
        (GPU, CPU, MIXED), (4, 24), (0.2, 2.0, 6.0), ("exponential", "constant", "mixed", "barrier")
    ):
        clients = Clients(count, think_ms, thinking, jitter_ms=0.3 if thinking == "barrier" else 0)
        yield World("clients", curve, clients=clients)


def _pool_worlds() -> Iterator[World]:
    for workers, curve, law, load in itertools.product(
        (2, 4, 8), (GPU, CPU, MIXED, TILES[1]), ("poisson", "mmpp"), (0.1, 0.3, 0.5, 0.7, 0.9)
    ):
        yield World("workers", curve, law, load, speeds=(1.0,) * workers)
    for speeds, curve, load in itertools.product(
        ((1.0, 2.0), (1.0, 1.0, 3.0, 3.0)), (GPU, CPU, MIXED), (0.2, 0.5, 0.8)
    ):
        yield World("workers", curve, load=load, speeds=speeds)


def _slo_worlds() -> Iterator[World]:
    for curve, slo, load in itertools.product((GPU, CPU), SLOS, (0.5, 0.8, 0.95)):
        yield World("slo", curve, "poisson", load, slo=slo)
    for curve, slo, noise in itertools.product((GPU, CPU), (2.0, 4.0), NOISES):
        yield World("slo", curve, "poisson", 0.5, noise=noise, slo=slo)
    for curve, slo, load in itertools.product((GPU, CPU), SLOS, (1.2, 2.0, 3.0)):
        yield World("overload", curve, "poisson", load, slo=slo)


# ---- running


def _judged(job: tuple[World, int, int]) -> dict[str, object]:
    world, seed, requests = job
    file = KEPT / f"{abs(hash_of(job)):x}.json"
    if file.exists():
        return dict(json.loads(file.read_text()))
    found: dict[str, object] = {"world": str(world), "family": world.family}
    found |= asdict(judge(world, seed, requests))
    file.write_text(json.dumps(found))
    return found


def hash_of(job: tuple[World, int, int]) -> int:
    import zlib

    return zlib.crc32(repr(job).encode())
