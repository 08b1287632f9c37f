"""`headway.ray` on a real Ray of this machine. Ray is too large for `dev`: to run these, install
`headway[ray]` and pytest in an environment of their own."""

import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed")
serve = pytest.importorskip("ray.serve", reason="Ray Serve is not installed")
httpx = pytest.importorskip("httpx")

from local_ray import local_ray  # noqa: E402

import headway  # noqa: E402
import headway.ray  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

MODEL = '''
import os
import time
import headway


class Who(headway.Model[float, float]):
    """Its process. The first that finds no file is three times slower."""

    def load(self) -> None:
        self.times = 1
        try:
            os.close(os.open("{slow}", os.O_CREAT | os.O_EXCL))
            self.times = 3
        except FileExistsError:
            pass

    def predict(self, values: list[float]) -> list[float]:
        time.sleep(self.times * (0.02 + 0.002 * len(values)))
        return [os.getpid() + self.times / 10 for _ in values]
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("ray")
    (folder / "ray_app.py").write_text(MODEL.format(slow=folder / "slow"))
    with local_ray(folder, num_cpus=4):
        yield folder


@pytest.fixture
def handle(folder: Path) -> Any:
    (folder / "slow").unlink(missing_ok=True)
    made = headway.ray.deployment(
        "ray_app:Who", num_replicas=2, max_batch_size=16, ray_actor_options={"num_cpus": 0.5}
    )
    return serve.run(made.bind(), name="who")


def ask(handle: Any, count: int, threads: int = 8) -> list[float]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda _: handle.predict.remote(1.0).result(), range(count)))


def test_handles_and_routes_answer_and_a_slow_replica_gets_little(handle: Any) -> None:
    assert len(handle.predict_many.remote([1.0, 2.0, 3.0]).result()) == 3
    answer = httpx.post("http://127.0.0.1:8000/v1/predict/who", json=1.0, timeout=30)
    assert answer.status_code == 200, answer.text
    assert httpx.get("http://127.0.0.1:8000/v2/health/ready", timeout=30).status_code == 200
    ask(handle, 40)
    shares = Counter(round(each % 1, 1) for each in ask(handle, 300))
    assert shares[0.3] < 0.3 * 300, shares


def test_a_replica_that_is_killed_loses_no_request_that_ray_sends_again(handle: Any) -> None:
    [victim] = {int(each) for each in ask(handle, 40) if round(each % 1, 1) == 0.1}
    killing = threading.Timer(0.3, os.kill, [victim, signal.SIGKILL])
    killing.start()
    failed = 0

    def one(_: int) -> float:
        nonlocal failed
        for _ in range(20):
            try:
                return float(handle.predict.remote(1.0).result())
            except ray.exceptions.RayActorError:  # Ray does not send again what had begun
                failed += 1
        raise AssertionError("it never answers")

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, range(300)))
    assert len(found) == 300
    assert failed <= 16


def test_mistakes_show_at_once_and_by_name(caplog: pytest.LogCaptureFixture, folder: Path) -> None:
    with pytest.raises(headway.ConfigError, match="max_batch_sice"):
        headway.ray.deployment("ray_app:Who", max_batch_sice=3)
    with pytest.raises(headway.ConfigError, match="num_replica"):
        headway.ray.deployment("ray_app:Who", num_replica=3)
    with caplog.at_level(logging.WARNING):
        headway.ray.deployment("ray_app:Who", max_ongoing_requests=5)
    assert "batches stay small" in caplog.text.replace("\n", " ")
