"""`headway map` as a process of its own, killed again and again."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MODELS = """
import os, signal

def size() -> int:
    return os.path.getsize("out.jsonl") if os.path.exists("out.jsonl") else 0

began = size()

def lengths(texts: list[str]) -> list[int]:
    if size() - began > int(os.environ.get("DIE_AFTER_BYTES", "1000000000")):
        os.kill(os.getpid(), signal.SIGKILL)
    if "bad" in texts:
        raise ValueError("this text is bad")
    return [len(text) for text in texts]

def judged(texts: list[str]) -> list[int]:
    return [ValueError("odd") if len(text) % 2 else len(text) for text in texts]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(MODELS)
    return tmp_path


def headway(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headway", "map", *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def texts_into(path: Path, count: int) -> list[str]:
    texts = ["x" * (number * 7919 % 97) for number in range(count)]
    path.write_text("".join(json.dumps(text) + "\n" for text in texts))
    return texts


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_killed_again_and_again_every_line_is_answered_once_and_in_order(folder: Path) -> None:
    texts = texts_into(folder / "in.jsonl", 3000)
    command = ("app:lengths", "in.jsonl", "out.jsonl", "--max-batch-size", "16", "--no-warm-up")
    killed, sizes = 0, [0]
    while (done := headway(folder, *command, DIE_AFTER_BYTES="9000")).returncode != 0:
        assert done.returncode == -signal.SIGKILL, done.stderr
        killed += 1
        sizes.append((folder / "out.jsonl").stat().st_size)
        assert sizes[-1] > sizes[-2], "it goes on, it does not begin again"
        with (folder / "out.jsonl").open("ab") as torn:  # as if it had died while writing
            torn.write(b'{"line":' if killed % 2 else b'{"line":1,"result":12')
    assert killed >= 3
    found = records(folder / "out.jsonl")
    assert [each["line"] for each in found] == list(range(1, 3001))
    assert [each["result"] for each in found] == [len(text) for text in texts]


def test_bad_lines_are_reported_by_number_and_the_rest_is_answered(folder: Path) -> None:
    (folder / "in.jsonl").write_text('"a"\nnot json\n\n"bad"\n7\n"bcd"\n')
    done = headway(folder, "app:lengths", "in.jsonl", "out.jsonl", "--json")
    assert done.returncode == 1, "some lines have no result"
    summary = json.loads(done.stdout)
    assert (summary["lines"], summary["failed"]) == (5, 3)
    assert summary["resumed_after_line"] == 0
    assert summary["batches"] >= 1
    told = done.stderr.splitlines()
    assert [line.split(":")[:2] for line in told] == [
        ["in.jsonl", "2"],
        ["in.jsonl", "4"],
        ["in.jsonl", "5"],
    ]
    found = records(folder / "out.jsonl")
    assert [each["line"] for each in found] == [1, 2, 4, 5, 6]
    codes = [each.get("error", {}).get("code") for each in found]
    assert codes == [None, "invalid_input", "model_failed", "invalid_input", None]
    assert "this text is bad" in found[2]["error"]["message"]
    again = headway(folder, "app:lengths", "in.jsonl", "out.jsonl")
    assert again.returncode == 1, "what an earlier run could not do is not done"
    assert (
        "nothing to do: an earlier run answered all lines up to 6; 3 of them failed" in again.stdout
    )
    allowed = headway(folder, "app:lengths", "in.jsonl", "other.jsonl", "--max-errors", "3")
    assert allowed.returncode == 0, "so many may fail"


def test_an_exception_in_place_of_a_result_is_that_lines_error(folder: Path) -> None:
    (folder / "in.jsonl").write_text('"a"\n"bc"\n')
    done = headway(folder, "app:judged", "in.jsonl", "out.jsonl")
    assert done.returncode == 1, done.stderr
    failed, result = records(folder / "out.jsonl")
    assert failed["error"] == {"code": "model_failed", "message": "ValueError: odd"}
    assert result["result"] == 2


def test_the_real_model_in_full_batches_of_like_length(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    texts = [" ".join(["word"] * (1 + number % 3 * 10)) for number in range(300)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    done = headway(tmp_path, "minilm", "in.jsonl", "out.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["padding_waste"] < 0.1
    assert summary["lines"] == 300
    vectors = numpy.array([each["result"] for each in records(tmp_path / "out.jsonl")])
    assert vectors.shape == (300, 384)
    for length in range(3):
        alike = vectors[length::3]
        assert numpy.abs(alike - alike[0]).max() < 1e-4


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("app:lengths", "nothing.jsonl", "out.jsonl"), "nothing.jsonl: there is no such file"),
        (("app:lengths", "in.jsonl", "in.jsonl"), "is the input"),
        (("app:nothing", "in.jsonl", "out.jsonl"), "app:nothing does not exist"),
        (("nothing", "in.jsonl", "out.jsonl"), "'nothing' is not a model"),
        (
            ("app:lengths", "in.jsonl", "none/out.jsonl"),
            "none/out.jsonl: the folder none does not exist",
        ),
        (("app:lengths", "-", "out.jsonl"), "- is not served: files are expected"),
        (
            ("app:lengths", "in.jsonl", "there.txt"),
            "there.txt exists, and this command did not begin it",
        ),
        (("app:lengths", "in.jsonl", "out.jsonl", "--max-batch-size", "-1"), "--max-batch-size"),
        (("app:lengths", "in.jsonl", "out.jsonl", "--max-errors", "-1"), "--max-errors"),
        (("all.toml", "in.jsonl", "out.jsonl"), "one is expected"),
        (("app:lengths", "in.jsonl"), "OUT"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_mistake_is_one_line_and_nothing_is_touched(
    folder: Path, arguments: tuple[str, ...], part: str
) -> None:
    (folder / "in.jsonl").write_text('"a"\n')
    (folder / "there.txt").write_text("mine")
    done = headway(folder, *arguments)
    assert done.returncode == 2
    assert part in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (folder / "in.jsonl").read_text() == '"a"\n'
    assert (folder / "there.txt").read_text() == "mine"


def test_help_says_what_lines_look_like(folder: Path) -> None:
    done = headway(folder, "--help")
    assert done.returncode == 0
    assert '{"line": 7, "result": …}' in done.stdout
    assert "--overwrite" in done.stdout


def test_ray_is_refused_by_name_where_it_is_not_or_not_wanted(folder: Path) -> None:
    texts_into(folder / "in.jsonl", 3)
    command = ("app:lengths", "in.jsonl", "out.jsonl")
    done = headway(folder, *command, "--models", "2")
    assert (done.returncode, "--models" in done.stderr) == (2, True), done.stderr
    for where, said in (("cluster:10001", "local or auto"), ("ray://cluster:10001", "--on auto")):
        done = headway(folder, *command, "--on", where)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    if importlib.util.find_spec("ray") is None:
        done = headway(folder, *command, "--on", "local")
        assert (done.returncode, "headway[ray]" in done.stderr) == (2, True), done.stderr
    assert not (folder / "out.jsonl").exists()
