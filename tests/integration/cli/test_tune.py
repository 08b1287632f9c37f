"""`headway tune` on real models and servers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODELS = """
import time

def slow(values: list[float]) -> list[float]:
    time.sleep(0.005 + 0.0005 * len(values))
    return values
"""
PROFILE = {"rows": [1, 2, 4, 8], "sizes": None, "ms": [[5.5], [6.0], [7.0], [9.0]]}

LENGTHS = """
import time

import headway

class Padded(headway.Model):
    def size(self, text):
        return len(text)

    def predict(self, texts):
        time.sleep(0.001 + 1e-5 * len(texts) * max(map(len, texts)))
        return [len(text) for text in texts]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(MODELS)
    (tmp_path / "slow.json").write_text(json.dumps(PROFILE))
    return tmp_path


def tune(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headway", "tune", *arguments],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


GIVEN = ("app:slow", "--profile", "slow.json", "--max-batch-size", "2")


def test_the_best_setting_is_simulated_and_tried_on_a_server(folder: Path) -> None:
    done = tune(
        folder, *GIVEN, "--concurrency", "8", "--seconds", "0.5", "--json", "--plot", "all.png"
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "all.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads(done.stdout)
    assert told["best"]["simulated_p99_ms"] <= told["default"]["simulated_p99_ms"]
    assert told["default"]["live_p99_ms"] >= 5.5  # it sleeps at least as long
    assert isinstance(told["gain"], bool)


def test_a_rate_and_a_limit_are_simulated(folder: Path) -> None:
    done = tune(folder, *GIVEN, "--rate", "100", "--p99-ms", "30", "--no-verify")
    assert done.returncode == 0, done.stderr
    assert "default: auto, ≤ 2 rows" in done.stdout
    assert "p99 ≤ 30 ms holds up to" in done.stdout


def test_samples_are_measured_sent_and_simulated_with_their_sizes(folder: Path) -> None:
    (folder / "padded.py").write_text(LENGTHS)
    (folder / "texts.jsonl").write_text("\n".join(json.dumps("a" * n) for n in (8, 40, 200)))
    given = ("padded:Padded", "--samples", "texts.jsonl", "--max-batch-size", "4")
    done = tune(folder, *given, "--rate", "50", "--seconds", "0.5", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["default"]["simulated_p99_ms"] >= 3.0  # the longest sleeps 3 ms
    assert told["default"]["live_p99_ms"] >= 3.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*GIVEN,), "--rate"),
        ((*GIVEN, "--concurrency", "4", "--p99-ms", "5"), "needs --rate"),
        ((*GIVEN, "--rate", "5", "--arrivals", "closed:4,1"), "without a rate"),
        (("app:slow", "--rate", "5", "--profile", "none.json"), "--profile"),
        (("app:slow", "--rate", "5", "--samples", "none.json"), "--samples: none.json"),
        ((*GIVEN, "--rate", "5", "--no-verify", "--seconds", "1"), "--seconds"),
        ((*GIVEN, "--rate", "5", "--no-verify", "--samples", "app.py"), "--samples"),
    ],
)
def test_what_cannot_be_tuned_is_said(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    done = tune(folder, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
