"""`headway demo`, as `make serve` runs it."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DEMO = [sys.executable, "-m", "headway", "demo"]
HEEDING = [  # the same, where a shell's `&` has had Ctrl-C ignored
    sys.executable,
    "-c",
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from headway.cli.main import main; sys.exit(main(['demo']))",
]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "ascii"}


@pytest.fixture(scope="module")
def shown() -> str:
    done = subprocess.run(
        DEMO, capture_output=True, text=True, timeout=60, check=False, env=ENVIRONMENT
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_batching_answers_many_times_as_many(shown: str) -> None:
    alone, together = (int(rate) for rate in re.findall(r"(\d+) answers/s", shown))
    assert together > 3 * alone  # some twenty times on an idle machine
    assert "texts on average" in shown


def test_every_batch_in_the_timetable_has_its_reason(shown: str) -> None:
    rows = re.findall(r"^ +[\d.]+ ms .* \d+ #+ (\w+)$", shown, flags=re.MULTILINE)
    assert len(rows) == 12
    explained = re.findall(r"^ +\d+%  (\w+) ", shown, flags=re.MULTILINE)
    assert set(rows) <= set(explained)


def test_one_bad_input_fails_alone(shown: str) -> None:
    assert "got ModelFailed: classify raised ValueError" in shown
    assert shown.count("ModelFailed") == 1
    assert "15 neighbours were answered" in shown


def test_it_says_what_to_try_next_and_that_exists(shown: str) -> None:
    _, _, advice = shown.partition("Try next")
    for path in re.findall(r"^  (\w+/\S+)", advice, flags=re.MULTILINE):
        assert (ROOT / path).exists()
    assert "headway simulate" in advice


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_ends_it_at_once_without_a_traceback() -> None:
    with subprocess.Popen(
        HEEDING, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as demo:
        assert demo.stdout is not None
        demo.stdout.readline()  # it has begun
        demo.send_signal(signal.SIGINT)
        _, errors = demo.communicate(timeout=10)
    assert (demo.returncode, errors) == (130, "")


def test_help_lists_every_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headway", "--help"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
        env=ENVIRONMENT,
    )
    for command in ("demo", "simulate"):
        assert re.search(rf"^ +{command} ", done.stdout, flags=re.MULTILINE)
