"""A machine without Linux's own calls, as far as one can be had on Linux: before anything else is
imported, these are taken away. The default worker must get by without."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from real_server import served

# What macOS does not have. (A program there has no /proc either.)
WITHOUT = """
import builtins, io, os, select, signal, socket

for name in dir(os):
    if name.startswith(("eventfd", "EFD_", "memfd_", "MFD_", "pidfd_", "sched_", "SCHED_")):
        delattr(os, name)
for module, names in (
    (signal, ("pidfd_send_signal",)),
    (socket, ("TCP_INFO", "SO_PEERCRED", "TCP_USER_TIMEOUT", "TCP_QUICKACK")),
    (select, ("epoll",)),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

really_open = io.open

def open_elsewhere(file, *arguments, **more):
    if isinstance(file, (str, os.PathLike)) and os.fspath(file).startswith("/proc/"):
        raise FileNotFoundError(2, "No such file or directory", os.fspath(file))
    return really_open(file, *arguments, **more)

io.open = builtins.open = open_elsewhere
"""
MODELS = """
import headway

def shout(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]

class Spell(headway.Model):
    def stream(self, items: list[str]):
        for step in range(max(map(len, items)) + 1):
            yield [item[step] if step < len(item) else headway.END for item in items]
"""


@pytest.mark.parametrize("target", ["models.py:shout", "models.py:Spell"])
def test_the_default_worker_needs_nothing_of_linux(tmp_path: Path, target: str) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    ports = ("--port", "0", "--grpc-port", "0")
    with served(tmp_path, target, *ports, PYTHONPATH=path_with(tmp_path)) as server:
        name = target.partition(":")[2].lower()
        answer = server.http.post(f"/v1/predict/{name}", json="abc")
        assert answer.status_code == 200
        assert answer.text.replace("\n", "").lower().count("b") == 1
        assert server.http.get("/metrics").status_code == 200
        assert server.http.get("/docs").status_code == 200


def test_a_process_of_its_own_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    arguments = ("models.py:shout", "--worker", "process", "--port", "0", "--grpc-port", "-1")
    done = subprocess.run(
        [sys.executable, "-m", "headway", "serve", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path_with(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "headway: model 'shout': worker: processes of its own need Linux\n"


def path_with(folder: Path) -> str:
    return os.pathsep.join([str(folder), *filter(None, sys.path)])
