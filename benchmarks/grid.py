"""The scheduler over a grid of worlds, beside every fixed setting: what it makes of any traffic.

Virtual time, the production scheduler. A point's figures are the means over its seeds. What the
fixed settings make of a point does not depend on the scheduler, and is kept on disk: a second run
takes half the time. An interrupted run goes on where it was, as long as the scheduler is the same.

`python -m benchmarks grid --seeds 3 --write` makes the published table: 1,734 runs on two cores.
Beside it are an older commit's figures for the same points, from `grid_before.json`, which
`python -m benchmarks.grid FILE NAME` writes where that commit's `core/` is on the path.
"""

import itertools
import json
import os
import shutil
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

import numpy as np

import headway.core
from benchmarks.report import Bar, Report
from benchmarks.worlds import Clients, Curve, Judgement, World, all_caps, judge
from headway.lab.oracle import Fixed, Score, score_grid
from headway.lab.profiles import Noise

TRACES = Path(os.environ.get("HEADWAY_TRACES", Path(__file__).parents[2] / "shared" / "traces"))
IMAGES = Path(__file__).parents[1] / "docs" / "images"
BEFORE = Path(__file__).with_name("grid_before.json")
TEMPORARY = Path(tempfile.gettempdir())
ORACLES = TEMPORARY / f"headway-oracles-{os.getuid()}"
SEEDS, REQUESTS, PROCESSES = 3, 8_000, 2
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
TOLD_EVERY_S = 20.0


Judged: TypeAlias = tuple[World, Judgement]


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


def _kept() -> Path:
    """Of a run with just this scheduler that was interrupted."""
    digest = 0
    for file in sorted(Path(headway.core.__file__).parent.rglob("*.py")):
        digest = zlib.crc32(file.read_bytes(), digest)
    return TEMPORARY / f"headway-grid-{os.getuid()}-{digest:08x}"


KEPT = _kept()


def _judged(job: tuple[World, int, int]) -> dict[str, float]:
    file = KEPT / f"{_key(job)}.json"
    if file.exists():
        return dict(json.loads(file.read_text()))
    judgement = judge(*job, fixed=_fixed(job))
    found = {key: value for key, value in asdict(judgement).items() if key != "best"}
    file.write_text(json.dumps(found))
    return found


def _fixed(job: tuple[World, int, int]) -> dict[Fixed, Score]:
    """What every fixed setting makes of the point."""
    world, seed, requests = job
    file = ORACLES / f"{_key(job)}.json"
    if file.exists():
        return {Fixed(*key): Score(*score) for key, score in json.loads(file.read_text())}
    scores = score_grid(world.scenario(seed, requests), caps=all_caps(world.curve.max_rows))
    file.write_text(json.dumps(list(scores.items())))
    return scores


def _key(job: tuple[World, int, int]) -> str:
    return f"{zlib.crc32(repr(job).encode()):08x}"


def run(points: Sequence[World], seeds: int, requests: int, processes: int) -> list[Judgement]:
    """The mean over the seeds, by point."""
    for folder in (KEPT, ORACLES):
        folder.mkdir(mode=0o700, exist_ok=True)
    jobs = [(world, seed, requests) for seed in range(seeds) for world in points]
    if processes > 1:
        with ProcessPoolExecutor(processes) as pool:
            found = list(_told(pool.map(_judged, jobs, chunksize=4), len(jobs)))
    else:
        found = list(_told(map(_judged, jobs), len(jobs)))
    shutil.rmtree(KEPT)
    return [_mean(found[at :: len(points)]) for at in range(len(points))]


def _told(found: Iterable[dict[str, float]], count: int) -> Iterator[dict[str, float]]:
    """Says now and then how far it is."""
    started = told = time.monotonic()
    for number, each in enumerate(found, 1):
        now = time.monotonic()
        if now - told >= TOLD_EVERY_S or number == count:
            told = now
            left_s = (now - started) / number * (count - number)
            print(
                f"grid: {number} of {count} runs, {now - started:.0f} s, about {left_s:.0f} s left",
                file=sys.stderr,
                flush=True,
            )
        yield each


def _mean(found: Sequence[dict[str, float]]) -> Judgement:
    return Judgement(**{key: float(np.mean([each[key] for each in found])) for key in found[0]})


def grid(quick: bool, seeds: int | None = None) -> Report:
    points = worlds()[:: 9 if quick else 1]
    seeds = seeds or (1 if quick else SEEDS)
    requests = 2_500 if quick else REQUESTS
    found = run(points, seeds, requests, 1 if quick else PROCESSES)
    return report(list(zip(points, found, strict=True)), seeds, requests)


def report(judged: Sequence[Judged], seeds: int, requests: int) -> Report:
    timed = [pair for pair in judged if pair[0].family not in ("slo", "overload")]
    olds, before = _before(judged)
    return Report(
        "The grid: `auto` beside every fixed window and batch size, in any traffic",
        [
            "family",
            "points",
            "p99 and mean ≤ 1.05",
            "≤ 1.10",
            "worst p99",
            "worst mean",
            "dominated",
            "worst ÷ idle",
        ],
        [
            [
                family,
                len(_of_family(timed, family)),
                *(
                    _both(figure, _of_family(timed, family), _of_family(olds, family))
                    for figure in FIGURES
                ),
            ]
            for family in dict.fromkeys(world.family for world, _ in timed)
        ],
        [*_bars(timed, olds), *_slo_bars(judged, olds)],
        [
            f"{len(judged)} points, {seeds} seeds of {requests:,} requests; the fixed settings are "
            "windows of 0 to 50 ms with every power of two and one and a half times that; p99 "
            "beside the setting with the best p99 of that very sample, mean beside the same one",
            *before,
            *_one_setting(timed, seeds, requests),
            *_luck(timed, seeds, requests),
            f"picture: {_picture(timed)}",
            *(
                f"worst: {world}: p99 {each.p99:.2f}, mean {each.mean:.2f}"
                for world, each in _worst(timed)
            ),
        ],
    )


def _before(judged: Sequence[Judged]) -> tuple[list[Judged], list[str]]:
    """What an older commit made of the same points, and which one it was."""
    if not BEFORE.exists():
        return [], []
    kept = json.loads(BEFORE.read_text())
    points = {name: Judgement(**each) for name, each in kept["points"].items()}
    olds = [(world, points[str(world)]) for world, _ in judged if str(world) in points]
    note = f"before the arrow: {kept['what']}, {kept['seeds']} seeds of the same points"
    return olds, [note]


def _of_family(judged: Sequence[Judged], family: str) -> list[Judgement]:
    return [each for world, each in judged if world.family == family]


def _both(
    figure: Callable[[Sequence[Judgement]], str],
    found: Sequence[Judgement],
    olds: Sequence[Judgement],
) -> str:
    """Then and now, where both know the same points."""
    now = figure(found)
    return f"{figure(olds)} → {now}" if len(olds) == len(found) else now


def _one_setting(timed: Sequence[Judged], seeds: int, requests: int) -> Iterator[str]:
    """`auto` beside the one fixed setting that has the best p99 over all samples of the point:
    what somebody has who tunes it for just this traffic, once."""
    found = [(world, _beside_one_setting(world, each, seeds, requests)) for world, each in timed]
    for who, workers, limit in (("one worker", (1, 1), 1.05), ("pools", (2, 8), 1.10)):
        some = [each for world, each in found if workers[0] <= len(world.speeds) <= workers[1]]
        if some:
            ratios, dominated = (list(each) for each in zip(*some, strict=True))
            yield (
                f"beside one setting for all seeds of a point, {who}: ≤ {limit:.2f} at "
                f"{np.mean([each <= limit for each in ratios]):.1%}, worst {max(ratios):.2f}, "
                f"dominated at {np.mean([each > 1.05 for each in dominated]):.1%}"
            )


def _beside_one_setting(
    world: World, judged: Judgement, seeds: int, requests: int
) -> tuple[float, float]:
    """The worse of p99 and mean beside the best setting, and beside the one that beats it most."""
    samples = [_fixed((world, seed, requests)) for seed in range(seeds)]
    p99_s = {each: np.mean([sample[each].p99_s for sample in samples]) for each in samples[0]}
    mean_s = {each: np.mean([sample[each].mean_s for sample in samples]) for each in samples[0]}
    best = min(p99_s, key=lambda each: float(p99_s[each]))
    worse = {each: (judged.p99_s / p99_s[each], judged.mean_s / mean_s[each]) for each in p99_s}
    return float(max(worse[best])), float(max(min(each) for each in worse.values()))


def _luck(timed: Sequence[Judged], seeds: int, requests: int) -> Iterator[str]:
    """How a fixed setting does that was chosen on the other samples of its point, and `auto`
    beside it: no scheduler knows the sample before it is over."""
    if seeds < 2:
        return
    for family in dict.fromkeys(world.family for world, _ in timed):
        lucky, ours = [], []
        for world, judged in timed:
            if world.family == family:
                scores = [_fixed((world, seed, requests)) for seed in range(seeds)]
                chosen = [_chosen_elsewhere(scores, at) for at in range(seeds)]
                bests = [min(each.values()) for each in scores]
                lucky.append(float(np.mean(list(map(_beside, chosen, bests)))))
                p99_s = judged.p99_s / np.mean([each.p99_s for each in chosen])
                ours.append(max(p99_s, judged.mean_s / np.mean([each.mean_s for each in chosen])))
        yield (
            f"luck: a fixed setting chosen on the other seeds is within 1.05 at "
            f"{_within(lucky):.0%} of {family}, worst {max(lucky):.2f}; `auto` beside that setting "
            f"at {_within(ours):.0%}, worst {max(ours):.2f}"
        )


def _within(ratios: Sequence[float]) -> float:
    return float(np.mean([each <= 1.05 for each in ratios]))


def _beside(score: Score, best: Score) -> float:
    return max(score.p99_s / best.p99_s, score.mean_s / best.mean_s)


def _chosen_elsewhere(scores: Sequence[dict[Fixed, Score]], at: int) -> Score:
    """What the setting that is best on the other samples makes of this one."""
    others = [each for number, each in enumerate(scores) if number != at]
    bests = [min(score.p99_s for score in each.values()) for each in others]

    def elsewhere(fixed: Fixed) -> float:
        return sum(each[fixed].p99_s / best for each, best in zip(others, bests, strict=True))

    return scores[at][min(scores[at], key=elsewhere)]


def _worst(timed: Sequence[Judged]) -> list[Judged]:
    return sorted(timed, key=lambda pair: -max(pair[1].p99, pair[1].mean))[:8]


def _share(found: Sequence[Judgement], limit: float) -> float:
    return float(np.mean([max(each.p99, each.mean) <= limit for each in found]))


def _farthest(found: Sequence[Judgement]) -> float:
    return max(max(each.p99, each.mean) for each in found)


def _dominated(found: Sequence[Judgement]) -> float:
    return float(np.mean([each.dominated > 1.05 for each in found]))


FIGURES: tuple[Callable[[Sequence[Judgement]], str], ...] = (
    lambda found: f"{_share(found, 1.05):.0%}",
    lambda found: f"{_share(found, 1.10):.0%}",
    lambda found: f"{max(each.p99 for each in found):.2f}",
    lambda found: f"{max(each.mean for each in found):.2f}",
    lambda found: str(sum(each.dominated > 1.05 for each in found)),
    lambda found: f"{max(max(each.idle_p99, each.idle_mean) for each in found):.2f}",
)


def _bars(timed: Sequence[Judged], olds: Sequence[Judged]) -> list[Bar]:
    def bar(
        asked: str,
        form: str,
        figure: Callable[[Sequence[Judgement]], float],
        limits: tuple[float, float],  # of the figure: from, to
        workers: tuple[int, int],  # from, to
    ) -> Bar:
        now, then = (
            [
                each
                for world, each in pairs
                if workers[0] <= len(world.speeds) <= workers[1] and world.slo == 0.0
            ]
            for pairs in (timed, olds)
        )
        value = _both(lambda found: format(figure(found), form), now, then)
        return Bar(asked, value, limits[0] <= figure(now) <= limits[1])

    one, pool, all_ = (1, 1), (2, 8), (1, 8)
    return [
        bar("one worker: ≤ 1.05 at 97 %", ".1%", lambda each: _share(each, 1.05), (0.97, 1), one),
        bar("one worker: ≤ 1.15 everywhere", ".2f", _farthest, (0, 1.15), one),
        bar("pools: ≤ 1.10 at 95 %", ".1%", lambda each: _share(each, 1.10), (0.95, 1), pool),
        bar("pools: ≤ 1.25 everywhere", ".2f", _farthest, (0, 1.25), pool),
        bar("dominated at no more than 1 %", ".1%", _dominated, (0, 0.01), all_),
    ]


def _slo_bars(judged: Sequence[Judged], olds: Sequence[Judged]) -> list[Bar]:
    late, late_then = _of_family(judged, "slo"), _of_family(olds, "slo")

    def beside(found: Sequence[Judgement]) -> float:
        return min(each.in_time / each.in_time_fixed for each in found)

    def lost(found: Sequence[Judgement]) -> float:
        return max(each.in_time_without - each.in_time for each in found)

    def reached(pairs: Sequence[Judged]) -> list[float]:
        flooded = [pair for pair in pairs if pair[0].family == "overload"]
        return [each.in_time / reachable(world) for world, each in flooded]

    now, then = reached(judged), reached(olds)
    of_reachable = f"{min(then):.3f} → {min(now):.3f}" if then else f"{min(now):.3f}"
    return [
        Bar(
            "in time ≥ 0.99 of the best fixed setting's",
            _both(lambda found: f"{beside(found):.3f}", late, late_then),
            beside(late) >= 0.99,
        ),
        Bar(
            "the SLO costs ≤ 0.5 points of what is in time",
            _both(lambda found: f"{lost(found):.2%}", late, late_then),
            lost(late) <= 0.005,
        ),
        Bar("overload: ≥ 0.95 of what can be reached", of_reachable, min(now) >= 0.95),
    ]


def reachable(world: World) -> float:
    """The share that is in time at best: full batches of those that have just come."""
    assert world.slo_s is not None
    offered_rps = world.load * world.capacity_rps
    best_rps = 0.0
    for rows in range(1, world.curve.max_rows + 1):
        batch_s = world.curve.profile.seconds(rows)
        if rows <= offered_rps * (world.slo_s - batch_s):
            best_rps = max(best_rps, rows / batch_s)
    return min(1.0, best_rps / offered_rps)


def _picture(timed: Sequence[Judged]) -> str:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5))
    for family in dict.fromkeys(world.family for world, _ in timed):
        found = [each for world, each in timed if world.family == family]
        axes.scatter(
            [each.mean for each in found], [each.p99 for each in found], s=12, label=family
        )
    axes.axhline(1.05, color="#999999", linewidth=0.8)
    axes.axvline(1.05, color="#999999", linewidth=0.8)
    axes.set(xlabel="mean ÷ that of the setting with the best p99", ylabel="p99 ÷ the best p99")
    axes.set_title("auto beside the best fixed setting of each point")
    axes.legend(fontsize=8)
    path = IMAGES / "grid.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, bbox_inches="tight")
    plt.close(figure)
    return str(path.relative_to(IMAGES.parents[1]))


BENCHMARKS: dict[str, Callable[[bool], Report]] = {"grid": grid}


def main(file: str, what: str, seeds: str = str(SEEDS)) -> None:
    """Keep what the scheduler that is on the path makes of every point."""
    points = worlds()
    found = run(points, int(seeds), REQUESTS, PROCESSES)
    named = {str(world): asdict(each) for world, each in zip(points, found, strict=True)}
    Path(file).write_text(json.dumps({"what": what, "seeds": int(seeds), "points": named}))


if __name__ == "__main__":
    main(*sys.argv[1:])
