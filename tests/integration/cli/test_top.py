"""`headway top` against a real server."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_server import Server, served

from headway.cli.top import Watch
from headway.loadgen.asking import RemoteServer
from headway.loadgen.exchange import Address
from headway.server.auth.keys import hash_of

SHOUT = """
def shout(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]
"""
PORTS = ("--port", "0", "--grpc-port", "-1")
SECRET = "hw-a-secret-of-some-length"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("top")
    (folder / "shout.py").write_text(SHOUT)
    with served(folder, "shout.py", *PORTS, "--admin-without-key") as running:
        for text in ("a", "b", "c"):
            running.http.post("/v1/predict/shout", json=text)
        yield running


def top(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "headway", "top", *arguments, "--every", "0.1"],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
        env={**os.environ, **variables},
    )


def test_models_and_their_last_batches_are_shown(server: Server) -> None:
    shown = top(server.url, "--count", "2")
    assert (shown.returncode, shown.stderr) == (0, "")
    frames = shown.stdout.split("headway top")[1:]
    assert len(frames) == 2
    assert "MODEL" in frames[1]
    assert "shout 1  ready" in frames[1]
    assert "shout batch 3, worker 0: 1 of " in frames[1]
    assert "\x1b" not in shown.stdout


def test_without_the_right_it_shows_figures_and_says_why_no_batches(tmp_path: Path) -> None:
    (tmp_path / "shout.py").write_text(SHOUT)
    keys = f"acme={hash_of(SECRET)}"
    with served(tmp_path, "shout.py", *PORTS, HEADWAY_API_KEYS=keys) as server:
        assert "no figures: " in top(server.url, "--count", "1").stdout
    with served(tmp_path, "shout.py", *PORTS) as server:
        shown = top(server.url, "--count", "1").stdout
    assert "shout 1  ready" in shown
    assert "Only an operator sees the last batches: " in shown
    assert "`" not in shown
    assert "\n-: nothing of it since the last look" in shown
    assert "admin" in shown


def test_a_server_that_was_started_again_has_no_old_batches(tmp_path: Path) -> None:
    (tmp_path / "shout.py").write_text(SHOUT)
    flags = ("--grpc-port", "-1", "--admin-without-key")
    with served(tmp_path, "shout.py", "--port", "0", *flags) as first:
        first.http.post("/v1/predict/shout", json="a")
        watch = Watch(RemoteServer(Address.parse(first.url)))
        watch.look()
        watch.look()
        assert [line for line in watch.frame() if line.startswith("shout batch 1")]
    watch.look()
    assert watch.frame()[-1].endswith("no server listens there")
    with served(tmp_path, "shout.py", "--port", str(first.port), *flags):
        watch.look()
        watch.look()
        assert [line for line in watch.frame() if line.startswith("shout 1 ")]
        assert not [line for line in watch.frame() if line.startswith("shout batch")]


def test_a_server_that_is_not_there_is_waited_for(server: Server) -> None:
    shown = top("http://127.0.0.1:9", "--count", "2")
    assert shown.returncode == 1
    assert shown.stdout.count("no figures: ") == 2
    assert top(server.url, "--count", "-1").returncode == 2


def test_a_terminal_is_drawn_over_within_its_size(server: Server) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "headway", "top", server.url, "--every", "0.1", "--count", "3"],
        stdout=theirs,
        env={**os.environ, "COLUMNS": "40", "LINES": "8"},
    )
    assert process.wait(60) == 0
    os.close(theirs)
    shown = os.read(ours, 2**16).decode()
    os.close(ours)
    assert shown.startswith("\x1b[2J")
    frames = shown.split("\x1b[H")[1:]
    assert len(frames) == 3
    for frame in frames:
        lines = frame.replace("\x1b[K", "").partition("\x1b[J")[0].splitlines()
        assert len(lines) <= 7
        assert max(map(len, lines)) <= 40
