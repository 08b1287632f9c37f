"""`python -m benchmarks.lab.on_ray [name …]`: `headway.ray` on a real Ray of this machine.

Ray is large: install `headway[ray]` and httpx in an environment of their own. The models sleep, so
two cores suffice; Ray's own processes take most of them.
"""

import asyncio
import functools
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import headway
from benchmarks.__main__ import keep_rows, main
from benchmarks.report import Bar, Benchmark, Report

_ROOT = Path(__file__).parents[2]
_MODELS = "benchmarks.lab.on_ray"
ROWS = 16
FIXED = (8, 32, 64, 128, 256)


class Slow(headway.Model[float, float]):
    """40 ms and 4 ms a row; three times that in the first process that finds no file."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def load(self) -> None:
        self.times = 1
        try:
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
            self.times = 3
        except FileExistsError:
            pass

    def predict(self, values: list[float]) -> list[float]:
        time.sleep(self.times * (0.04 + 0.004 * len(values)))
        return [os.getpid() + self.times / 10 for _ in values]


class Echo(headway.Model[float, float]):
    def predict(self, values: list[float]) -> list[float]:
        return values


class Texts(headway.Model[str, int]):
    """4 ms, and 2 µs a padded letter."""

    def size(self, text: str) -> int:
        return len(text)

    def predict(self, texts: list[str]) -> list[int]:
        time.sleep(0.004 + 2e-6 * len(texts) * max(map(len, texts)))
        return [len(text) for text in texts]


class FixedTexts:
    """The same as people write it for Ray Data."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "prediction": Texts().predict(list(batch["text"]))}


@contextmanager
def _ray() -> Iterator[Any]:
    """One for all that run: its start takes long."""
    import ray
    from ray import serve

    if not ray.is_initialized():
        os.environ["PYTHONPATH"] = f"{_ROOT}{os.pathsep}{_ROOT / 'src'}"
        ray.init(
            address="local",
            num_cpus=4,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=200 * 2**20,
        )
    try:
        yield ray
    finally:
        serve.shutdown()


def _slow_handle(mark: Path, is_one_slow: bool, **settings: Any) -> Any:
    from ray import serve

    import headway.ray

    mark.unlink(missing_ok=True)
    if not is_one_slow:
        mark.touch()
    made = headway.ray.deployment(
        f"{_MODELS}:Slow",
        options={"mark": str(mark)},
        max_batch_size=ROWS,
        ray_actor_options={"num_cpus": 0.5},
        **settings,
    )
    return serve.run(made.bind(), name="slow")


class _Load:
    """Open arrivals at a handle."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self.took_s: list[float] = []
        self.from_: Counter[float] = Counter()
        self.lost = 0
        self.again = 0  # had begun when their replica was lost, and were sent again

    async def one(self) -> None:
        from ray.exceptions import RayActorError

        at = time.perf_counter()
        for _ in range(20):
            try:
                self.from_[await self._handle.predict.remote(1.0)] += 1
            except RayActorError:
                self.again += 1
            else:
                self.took_s.append(time.perf_counter() - at)
                return
        self.lost += 1

    async def run(self, rate: float, span_s: float) -> None:
        draw, due = random.Random(32), time.perf_counter()
        end = due + span_s
        async with asyncio.TaskGroup() as tasks:
            while due < end:
                due += draw.expovariate(rate)
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                tasks.create_task(self.one())

    def percentile_s(self, percent: float) -> float:
        return float(np.percentile(self.took_s, percent))

    @property
    def p99_s(self) -> float:
        return self.percentile_s(99)


# ---- routing and a lost replica


def routes(quick: bool) -> Report:
    """Fresh replicas in every turn: by what it happens to have counted, Ray's router may stay with
    the fast one or with the slow one for ten seconds."""
    from ray.serve.config import RequestRouterConfig

    turns, span_s, rate = (2 if quick else 5), 8.0, 150.0
    kinds: dict[str, dict[str, Any]] = {
        "headway.ray": {},
        "Ray's own": {"request_router_config": RequestRouterConfig()},
    }
    found: dict[str, list[_Load]] = {name: [] for name in kinds}
    with _ray() as ray, tempfile.TemporaryDirectory() as folder:
        mark = Path(folder, "slow")
        for turn in range(turns):
            for name in list(kinds)[:: -1 if turn % 2 else 1]:
                handle = _slow_handle(mark, True, num_replicas=2, **kinds[name])
                asyncio.run(_Load(handle).run(rate / 2, 3.0))  # what is learned
                load = _Load(handle)
                asyncio.run(load.run(rate, span_s))
                found[name].append(load)
                ray.serve.delete("slow")
    ours, theirs = found.values()
    share = float(np.median([_slow_share(each) for each in ours]))
    ratios = [one.p99_s / other.p99_s for one, other in zip(ours, theirs, strict=True)]
    ratio = float(np.median([each.p99_s for each in ours]))
    ratio /= float(np.median([each.p99_s for each in theirs]))
    return Report(
        "Ray Serve: two replicas, one 3× slower",
        ["router", "turn", "share of the slow one", "p50", "p99"],
        [
            [name, turn, f"{_slow_share(each):.1%}", _ms(each.percentile_s(50)), _ms(each.p99_s)]
            for name, loads in found.items()
            for turn, each in enumerate(loads, 1)
        ],
        [
            Bar("share of the slow one < 30 %", f"{share:.1%}", share < 0.3),
            Bar(
                "p99 ≤ 0.5× Ray's default router",
                f"{ratio:.2f}× ({min(ratios):.2f}–{max(ratios):.2f})",
                ratio <= 0.5,
            ),
        ],
        [
            f"40 ms and 4 ms a row, at most {ROWS}: the fast one can do 154/s, the slow one 51/s; "
            f"{rate:.0f} requests/s by Poisson, by handle; medians of {turns} turns"
        ],
    )


def killed(quick: bool) -> Report:
    with _ray(), tempfile.TemporaryDirectory() as folder:
        load = _killed(Path(folder, "slow"), 80.0, 8.0 if quick else 25.0)
    return Report(
        "Ray Serve: one of two replicas killed under load",
        ["answered", "lost", "sent again by the caller"],
        [[len(load.took_s), load.lost, load.again]],
        [
            Bar(
                "no request lost beyond Ray's own retries",
                f"{load.lost} of {len(load.took_s)}; {load.again} had begun and were sent again by "
                "the caller",
                not load.lost,
            )
        ],
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"


def _slow_share(load: _Load) -> float:
    slow = sum(count for value, count in load.from_.items() if round(value % 1, 1) == 0.3)
    return slow / max(1, load.from_.total())


def _killed(mark: Path, rate: float, span_s: float) -> _Load:
    handle = _slow_handle(mark, False, num_replicas=2)
    load = _Load(handle)

    async def play() -> None:
        running = asyncio.create_task(load.run(rate, span_s))
        await asyncio.sleep(span_s / 3)
        os.kill(int(max(load.from_)), signal.SIGKILL)
        await running

    asyncio.run(play())
    return load


# ---- the number of replicas


def scale(quick: bool) -> Report:
    with _ray(), tempfile.TemporaryDirectory() as folder:
        scaling = {"min_replicas": 1, "max_replicas": 4, "target_wait_s": 0.3}
        handle = _slow_handle(
            Path(folder, "slow"),
            False,
            autoscaling_config={**scaling, "downscale_delay_s": 12.0},
        )
        load = _Load(handle)
        path: list[tuple[float, int]] = []

        async def play() -> None:
            async with _watched(path):
                for rate, span_s in ((40.0, 10.0), (170.0, 40.0), (30.0, 45.0)):
                    await load.run(rate, span_s)

        asyncio.run(play())
    counts = [count for _, count in path]
    told = ", ".join(f"{count} at {at:.0f} s" for at, count in path)
    return Report(
        "Ray Serve: replicas follow a step of the load",
        ["at", "replicas"],
        [[f"{at:.0f} s", count] for at, count in path],
        [
            Bar("1 → 2 → 1", told, counts == [1, 2, 1]),
            Bar("0 lost", f"{load.lost} of {len(load.took_s)}", not load.lost),
        ],
        ["40, 170 and 30 requests/s for 10, 40 and 45 s; one replica can do 154; down after 12 s"],
    )


@asynccontextmanager
async def _watched(path: list[tuple[float, int]]) -> AsyncIterator[None]:
    """How many replicas run."""
    from ray import serve

    async def watch() -> None:
        while True:
            status = await asyncio.to_thread(serve.status)
            states = dict(status.applications["slow"].deployments["headway"].replica_states)
            here = int(states.get("RUNNING", 0))
            if here and (not path or path[-1][1] != here):
                path.append((time.perf_counter() - began, here))
            await asyncio.sleep(0.5)

    began = time.perf_counter()
    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()


# ---- requests a second


def http(quick: bool) -> Report:
    import httpx
    from ray import serve

    import headway.ray

    looks, span_s = (6, 4.0) if quick else (10, 6.0)

    class Front:
        async def __call__(self, request: Any) -> Any:
            return await request.json()

    async def rate(path: str) -> float:
        count, end = 0, time.perf_counter() + span_s
        async with httpx.AsyncClient(base_url="http://127.0.0.1:8000", timeout=30) as client:

            async def loop() -> None:
                nonlocal count
                while time.perf_counter() < end:
                    answer = await client.post(path, json=1.0)
                    assert (answer.status_code, answer.json()) == (200, 1.0), answer.text
                    count += 1

            await asyncio.gather(*(loop() for _ in range(16)))
        return count / span_s

    with _ray():
        echo = serve.deployment(max_ongoing_requests=512, ray_actor_options={"num_cpus": 0.5})
        serve.run(echo(Front).bind(), name="front", route_prefix="/front")
        made = headway.ray.deployment(f"{_MODELS}:Echo", ray_actor_options={"num_cpus": 0.5})
        serve.run(made.bind(), name="headway", route_prefix="/headway")
        paths = ("/front", "/headway/v1/predict/echo")
        for path in paths:
            asyncio.run(rate(path))
        turns = []
        for look in range(looks):
            turn = {path: asyncio.run(rate(path)) for path in paths[:: -1 if look % 2 else 1]}
            turns.append([turn[path] for path in paths])
    ratios = [ours / theirs for theirs, ours in turns]
    ratio = float(np.median(ratios))
    return Report(
        "Ray Serve over HTTP: requests/s beside Ray's own echo, 16 clients",
        ["Ray's echo", "headway.ray"],
        [[f"{each:.0f}/s" for each in turn] for turn in turns],
        [
            Bar(
                "≥ 0.95× Ray's own echo",
                f"{ratio:.2f}× ({min(ratios):.2f}–{max(ratios):.2f})",
                ratio >= 0.95,
            )
        ],
        [f"the median of {looks} turns of {span_s:.0f} s, in turns first and second"],
    )


# ---- Ray Data


def data(quick: bool) -> Report:
    import headway.ray

    turns, blocks, rows_each = (1, 3, 1_500) if quick else (2, 5, 2_000)
    count = blocks * rows_each
    rng = np.random.default_rng(1)
    lengths = np.clip(np.rint(64 * np.exp(rng.standard_normal(count))), 1, 512).astype(int)
    with _ray() as ray:
        ray.data.DataContext.get_current().enable_progress_bars = False
        rows = [{"id": number, "text": "x" * int(n)} for number, n in enumerate(lengths)]
        given = ray.data.from_items(rows, override_num_blocks=blocks).materialize()

        def took_s(kind: Callable[..., Any], **more: Any) -> float:
            """From the first block on, for all rows: an actor's start does not count."""
            pool = ray.data.ActorPoolStrategy(size=1)
            found = given.map_batches(kind, compute=pool, num_cpus=1, **more)
            done = [
                (time.perf_counter(), len(each["id"]))
                for each in found.iter_batches(batch_size=None, prefetch_batches=0)
            ]
            assert sum(rows for _, rows in done) == count
            later = sum(rows for _, rows in done[1:])
            return (done[-1][0] - done[0][0]) * count / later

        predict = functools.partial(
            took_s,
            headway.ray.Predict,
            fn_constructor_args=(f"{_MODELS}:Texts",),
            batch_size=None,
        )
        kinds = {0: predict}
        kinds |= {size: functools.partial(took_s, FixedTexts, batch_size=size) for size in FIXED}
        seconds = Counter[int]()
        for turn in range(turns):
            for size in list(kinds)[:: -1 if turn % 2 else 1]:
                seconds[size] += kinds[size]()
    ours, *fixed = (turns * count / seconds[size] for size in kinds)
    ratio = ours / max(fixed)
    return Report(
        "Ray Data: rows/s on mixed lengths beside fixed batch sizes",
        ["Predict", *map(str, FIXED)],
        [[f"{ours:.0f}", *(f"{each:.0f}" for each in fixed)]],
        [Bar("≥ 1.3× the best fixed batch_size of five", f"{ratio:.2f}×", ratio >= 1.3)],
        [
            f"{turns * count:,} texts, lognormal (median 64, σ 1, at most 512), 4 ms + 2 µs a "
            f"padded letter; {turns} turns of {blocks} blocks, without the first one and the "
            "actor's start"
        ],
    )


def resumed(quick: bool) -> Report:
    from benchmarks.lab.ray_resumed import resumed  # pyarrow comes with Ray only

    return resumed(quick)


BENCHMARKS: dict[str, Benchmark] = {
    "ray-http": http,
    "ray-data": data,
    "ray-resumed": resumed,
    "ray-routes": routes,
    "ray-killed": killed,
    "ray-scale": scale,
}
ON_DEMAND: Sequence[str] = ()

if __name__ == "__main__":
    sys.exit(main("benchmarks.lab.on_ray", BENCHMARKS, ON_DEMAND, keep_rows))
