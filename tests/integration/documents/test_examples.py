"""Every example runs as a program of its own and prints what it is there to show."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MOST_LINES = 40

SHOWS = {
    "batcher": ["64 answers, last 3969", "the queue is full (100 rows); limit 100", "closed:"],
    "classify_image": ["grace_hopper.jpg", "military uniform", "refused: input 'image' is not an"],
    "classify_text": ["injection", "safe", "refused: input 'text' has 1002 tokens", "cut, and "],
    "decorator": ["one: [5.0, 1.0]", "100 callers at once", "in any thread: [4.0, 2.0]"],
    "explain_batches": ["batch  1:", "reason idle", "ran 1"],
    "fan_out_threads": ["320 words from 32 threads", "words each on average"],
    "map_lines": ["{'line': 1, 'result': 5}", "{'line': 3, 'result': 3}", '"lines": 0'],
    "model": ["'Great': positive (+2.0)", "'Bad , very bad': negative (-3.0)"],
    "pipeline_detect": ["2 crops in one batch", "['tall', 'wide']"],
    "pipeline_search": ["Trains leave every ten minutes"],
    "priorities_and_deadlines": [
        "the first batch was ['urgent', 'bulk 0', 'bulk 1', 'bulk 2']",
        "'gold 2'",
        "of 40 cannot make it",
    ],
    "read_image": ["Next departure 12:45", "Platform 7"],
    "rerank": ["Paris is the capital of France.\n "],
    "streaming": ["countdown from 3: [3, 2, 1]", "countdown from 1: [1]"],
    "tensor_model": ["[(1, 2), (2, 2)]", "100 rows at once come back as (100, 2)", "refused:"],
    "transcribe": ["a file: Ever tried ever failed", "samples: Ever tried", "refused: this is no"],
    "virtual_time_test": [
        "passed: calls that come while the model is busy leave together",
        "passed: an hour passes in no time",
    ],
}


def test_every_example_is_checked_here() -> None:
    assert [path.stem for path in EXAMPLES] == sorted(SHOWS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs_and_shows_what_it_says(path: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for text in SHOWS[path.stem]:
        assert text in done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_is_short_and_says_what_it_shows(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) < MOST_LINES
    assert lines[0].startswith('"""')
