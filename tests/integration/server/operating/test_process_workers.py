"""A server whose models run in processes of their own."""

import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from real_server import Server, served
from repositories import write_settings, write_version

from processes import wait_gone

PATIENCE_S = 30.0
ANY_PORT = ("--port", "0", "--grpc-port", "-1", "--admin-without-key")
MODEL = """
import os, time
import headway

class Slow(headway.Model):
    def load(self): time.sleep(0.1)
    def predict(self, items: list[int]) -> list[list[int]]:
        time.sleep(0.005)
        return [[item, os.getpid()] for item in items]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(MODEL)
    return tmp_path


def workers(server: Server) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = server.http.get("/admin/workers").json()["workers"]
    return lines


def test_several_workers_of_a_python_model_are_processes_and_the_log_says_why(
    folder: Path,
) -> None:
    with served(folder, "app:Slow", "--workers", "2", *ANY_PORT) as server:
        lines = workers(server)
        assert [set(line) for line in lines] == [
            {"model", "version", "pid", "state", "restarts", "last_error"}
        ] * 2
        assert {(line["model"], line["state"], line["restarts"]) for line in lines} == {
            ("slow", "ready", 0)
        }
        answer = server.http.post("/v1/predict/slow", json=7).json()
        assert answer[0] == 7
        assert answer[1] in [line["pid"] for line in lines]
        assert "slow runs in processes of its own: 2 workers in one process" in server.log.text
    for line in lines:
        wait_gone(line["pid"])


def test_a_thread_worker_is_listed_too(folder: Path) -> None:
    with served(folder, "app:Slow", *ANY_PORT) as server:
        assert [(line["pid"], line["state"]) for line in workers(server)] == [(server.pid, "ready")]


def test_a_worker_that_is_killed_under_load_costs_nobody_an_answer(folder: Path) -> None:
    arguments = ("app:Slow", "--worker", "process", "--workers", "2", "--max-batch-size", "4")
    with served(folder, *arguments, *ANY_PORT) as server:
        half, pid = threading.Event(), workers(server)[0]["pid"]

        def ask(number: int) -> bool:
            if number == 100:
                half.set()
            answer = server.http.post("/v1/predict/slow", json=number)
            return answer.status_code == 200 and answer.json()[0] == number

        with ThreadPoolExecutor(16) as clients:
            answers = [clients.submit(ask, number) for number in range(400)]
            assert half.wait(PATIENCE_S)
            os.kill(pid, signal.SIGKILL)
            assert all(answer.result() for answer in answers)
        server.log.wait_for("is ready again")
        line = workers(server)[0]
        assert (line["restarts"], line["last_error"]) == (1, "was killed by SIGKILL")
        assert line["pid"] != pid
        page = server.http.get("/metrics").text
        assert re.search(r"headway_worker_restarts_total{[^}]*} 1\b", page)
        assert re.search(r'headway_workers{[^}]*state="away"} 0\b', page)


def test_a_model_is_reloaded_into_new_processes(tmp_path: Path) -> None:
    write_version(tmp_path / "models", "m", 1, mark=1)
    write_settings(tmp_path / "models", "m", 'worker = "process"\nwarm_up = false\n')
    with served(tmp_path, "models", *ANY_PORT) as server:

        def mark() -> int:
            answer: int = server.http.post("/v1/predict/m", json=[0.5]).json()[0]
            return answer

        assert mark() == 1
        before = workers(server)[0]["pid"]
        write_version(tmp_path / "models", "m", 1, mark=2)
        assert server.http.post("/admin/models/m/reload").status_code == 200
        assert mark() == 2
        assert workers(server)[0]["pid"] != before
        wait_gone(before)
        # One that cannot be loaded leaves the old one, and no process behind.
        write_version(tmp_path / "models", "m", 1, mark=3, load="raise RuntimeError('no')")
        assert server.http.post("/admin/models/m/reload").status_code == 400
        assert mark() == 2
        assert len(workers(server)) == 1


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_outlives_the_server(folder: Path, end: signal.Signals) -> None:
    code = 0 if end == signal.SIGTERM else -end
    arguments = ("app:Slow", "--worker", "process", "--workers", "2")
    with served(folder, *arguments, *ANY_PORT, ends_with=code) as server:
        pids = [line["pid"] for line in workers(server)]
        server.process.send_signal(end)
        server.process.wait(PATIENCE_S)
    for pid in pids:
        wait_gone(pid)


def test_a_model_that_cannot_be_started_again_is_not_ready_and_the_others_are(
    tmp_path: Path,
) -> None:
    (tmp_path / "app.py").write_text(
        MODEL + "class Frail(headway.Model):\n"
        "    def load(self):\n"
        "        open('weights').close()\n"
        "    def predict(self, items: list[int]) -> list[int]:\n"
        "        if 13 in items: os._exit(3)\n"
        "        return items\n"
    )
    (tmp_path / "weights").touch()
    (tmp_path / "headway.toml").write_text(
        "[server]\nport = 0\ngrpc_port = -1\nadmin_without_key = true\n"
        '[[models]]\nname = "slow"\ntarget = "app:Slow"\n'
        '[[models]]\nname = "frail"\ntarget = "app:Frail"\nworker = "process"\nmax_restarts = 1\n'
    )
    with served(tmp_path, "headway.toml") as server:
        (tmp_path / "weights").unlink()
        answer = server.http.post("/v1/predict/frail", json=13)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "60")
        assert server.http.post("/v1/predict/frail", json=1).status_code == 503
        assert server.http.get("/v2/models/frail/ready").status_code == 503
        assert server.http.get("/v2/models/slow/ready").status_code == 200
        assert server.http.post("/v1/predict/slow", json=1).json()[0] == 1
        assert {line["model"]: line["state"] for line in workers(server)} == {
            "slow": "ready",
            "frail": "failed",
        }
        (tmp_path / "weights").touch()
        assert server.http.post("/admin/models/frail/reload").status_code == 200
        assert server.http.post("/v1/predict/frail", json=1).json() == 1
