"""`headway profile` measures real models, and what it measures is read by others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headway.core.costs import CostTable

MODELS = """
import time

def slow(values: list[float]) -> list[float]:
    time.sleep(0.004 + 0.001 * len(values))
    return values

def lost(values: list[float]) -> list[float]:
    raise ValueError("the weights are missing")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(MODELS)
    return tmp_path


def headway(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headway", *arguments],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_profile_is_told_kept_and_simulated(folder: Path) -> None:
    target = ("app:slow", "--max-batch-size", "8")
    done = headway(folder, "profile", *target, "--seconds", "3", "--out", "slow.json")
    assert done.returncode == 0, done.stderr
    assert "max_batch_size = " in done.stdout
    table = CostTable.from_json(json.loads((folder / "slow.json").read_text()))
    assert table.rows == (1, 2, 3, 4, 6, 8) or table.rows[-1] == 8
    assert all(cell[0] >= 0.005 for cell in table.seconds)  # it sleeps at least as long
    assert list((folder / "cache").rglob("*.json")), "the warm-up's table"
    load = ("--arrivals", "poisson", "--load", "0.5", "--requests", "500", "--max-batch-size", "8")
    assert headway(folder, "simulate", *load, "--profile", "slow.json").returncode == 0


def test_samples_are_given_in_a_file(folder: Path) -> None:
    (folder / "samples.jsonl").write_text("1.5\n")
    arguments = ("--samples", "samples.jsonl", "--seconds", "1", "--max-batch-size", "2", "--json")
    done = headway(folder, "profile", "app:slow", *arguments)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == [1, 2]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("app:slow", "--samples", "none.jsonl"), 2, "no such file"),
        (("app:slow", "--seconds", "0"), 2, "more than 0"),
        (("app:slow", "--out", "none/a.json"), 2, "--out: there is no folder none"),
        (("app:none",), 2, "none"),
        (("app:lost", "--seconds", "1"), 2, "could not be measured"),
        (("app:slow", "--plot", "a.txt"), 2, "not a picture"),
    ],
)
def test_what_cannot_be_measured_is_said(
    folder: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = headway(folder, "profile", *arguments)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr
