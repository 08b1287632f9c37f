"""`headway map --on local` with a real Ray of this machine, killed in between."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.data", reason="Ray Data is not installed")

pytestmark = [pytest.mark.slow]

MODEL = """
import os, signal, time
import headway


class Length(headway.Model[str, int]):
    def size(self, text: str) -> int:
        return len(text)

    def predict(self, texts: list[str]) -> list[int]:
        time.sleep(0.002)
        if "kill" in texts and not os.path.exists("{folder}/killed"):
            open("{folder}/killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return [headway.InvalidInput("not this one") if text == "bad" else len(text)
                for text in texts]
"""
COMMAND = ("ray_lengths:Length", "in.jsonl", "out.jsonl", "--on", "local", "--models", "1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ray_lengths.py").write_text(MODEL.format(folder=tmp_path))
    return tmp_path


def started(folder: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "headway", "map", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def texts_into(folder: Path, count: int) -> list[str]:
    texts = ["x" * (number * 7919 % 97) if number % 997 else "bad" for number in range(count)]
    texts[count // 2] = "kill"
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    (folder / "in.jsonl").write_text(lines.rstrip("\n"))
    return texts


def test_killed_and_resumed_every_line_is_answered_once_and_in_order(folder: Path) -> None:
    """Killed twice: a process of Ray's by the model, and the whole command."""
    texts = texts_into(folder, 40_000)
    out = folder / "out.jsonl"
    first = started(folder, *COMMAND)
    for _ in range(1200):
        if first.poll() is not None or (out.exists() and out.stat().st_size > 200_000):
            break
        threading.Event().wait(0.1)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    before = len(out.read_bytes().splitlines())
    assert 0 < before < len(texts)

    second = started(folder, *COMMAND, "--json")
    said, errors = second.communicate(timeout=240)
    assert second.returncode == 1, errors  # some lines are bad
    found: list[dict[str, Any]] = [json.loads(each) for each in out.read_text().splitlines()]
    assert [each["line"] for each in found] == list(range(1, len(texts) + 1))
    for each, text in zip(found, texts, strict=True):
        if text == "bad":
            assert each["error"] == {"code": "invalid_input", "message": "not this one"}
        else:
            assert each["result"] == len(text)
    assert os.path.exists(folder / "killed")
    summary = json.loads(said)
    assert summary["resumed_after_line"] > 0
    assert summary["failed"] + summary["failed_before"] == texts.count("bad")


def test_too_many_errors_end_it_at_the_first_beyond(folder: Path) -> None:
    texts = texts_into(folder, 5000)
    done = started(folder, *COMMAND, "--max-errors", "2")
    _, errors = done.communicate(timeout=240)
    assert done.returncode == 1
    assert "gave up" in errors
    lines = (folder / "out.jsonl").read_text().splitlines()
    bad = [number for number, text in enumerate(texts, 1) if text == "bad"]
    assert len(lines) == bad[2]
